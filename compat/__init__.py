"""verl-compat: makes the verl, megatron-bridge, megatron-core and vLLM releases that people have work together."""
