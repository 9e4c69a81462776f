"""What the tests and the example share: tiny real models, CPU fix-ups, the Transformer Engine stand-in.

Importing this package imports no upstream.  Usual order::

    from support import cpu_fixups, enable_stubs, init_single_process
    enable_stubs()            # before megatron.bridge is imported
    init_single_process()     # gloo, one rank
    cpu_fixups()              # after megatron.bridge can be imported
"""

from support.cpu import cpu_fixups, enable_stubs, init_single_process, shutdown
from support.tiny import (
    VOCAB_SIZE,
    assert_same_tensors,
    build_model,
    build_provider,
    export_state,
    forward_logits,
    read_checkpoint,
    write_tiny_checkpoint,
)

__all__ = [
    "VOCAB_SIZE",
    "assert_same_tensors",
    "build_model",
    "build_provider",
    "cpu_fixups",
    "enable_stubs",
    "export_state",
    "forward_logits",
    "init_single_process",
    "read_checkpoint",
    "shutdown",
    "write_tiny_checkpoint",
]
