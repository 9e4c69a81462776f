"""Asynchronous saves are finished where no trainer finalises them."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="verl_async_save_finish",
    kind="guard",
    summary="Asynchronous saves are finished where no trainer finalises them",
    target="verl.utils.checkpoint.megatron_checkpoint_manager",
    applies={"verl": ">=0.7.0", "megatron-core": ">=0.14"},
    tested=(
        {"verl": "0.7.1", "megatron-core": "0.17.1"},
        {"verl": "0.8.0", "megatron-core": "0.17.1"},
        {"verl": "0.9.1", "megatron-core": "0.18.2"},
        {"verl": "0.9.1", "megatron-core": "0.19.2"},
    ),
    needed=(Has("MegatronCheckpointManager.save_checkpoint"),),
    patches=(Wrap("MegatronCheckpointManager.save_checkpoint", "verl_compat.shims.async_save:finish_save"),),
    why=(
        "verl finalises asynchronous saves from its PPO trainer, for the actor's workers only. With "
        "supervised fine-tuning, a critic in a pool of its own or the trainers of verl.trainer.ppo.v1 "
        "a save is scheduled and never finalised: no metadata.json, no tracker file, no error, and a "
        "restart from step 0."
    ),
    links=(
        "https://github.com/verl-project/verl/blob/v0.9.1/verl/utils/checkpoint/megatron_checkpoint_manager.py",
        "https://github.com/verl-project/verl/blob/v0.9.1/verl/trainer/ppo/ray_trainer.py",
        "https://github.com/verl-project/verl/issues/7952",
    ),
    keep="verl 0.9.1 finalises only from its PPO trainer",
)
