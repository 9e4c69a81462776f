"""Names of expert and quantizer parameters, as Bridge reads them from 0.5.0 on.

Older releases take only grouped experts (``...experts.linear_fc1.weight3``) apart: a layer made
of single experts (``SequentialMLP``, ``local_experts.3``) is not renumbered under expert
parallelism, and a quantizer buffer (``weight_quantizer._amax``) stops them with ValueError.
ModelOpt QAT has both (https://github.com/verl-project/verl/pull/6335 removed verl's own patch).
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

_GROUPED = re.compile(r"\.linear_fc\d\.(?:weight|bias)\d+$")
_LOCAL_EXPERT = re.compile(r"\.local_experts\.(\d+)\.")
_NUMBERED = re.compile(r"\.(?:weight|bias)(\d+)(?=$|\.)")
_QUANTIZER = re.compile(r"(?:^|\.)\w*_quantizer(?:\.|$)")
# the first that matches tells the expert: "experts.0" may be part of an outer name
_EXPERT_NUMBER = (
    re.compile(r"local_experts\.(\d+)"),
    re.compile(r"(?:weight|bias)(\d+)"),
    re.compile(r"experts\.(\d+)"),
)


def name_to_global(original: Any, models: Any, config: Any, param_name: str, vp_stage: int | None = None) -> str:
    """Wrap Bridge's ``_megatron_local_name_to_global``: expert numbers of every kind of expert.

    Args:
        original: Bridge's function; it renumbers layers, and the experts that it knows.
        models: model chunks.
        config: transformer config; ``num_moe_experts`` is read.
        param_name: local name.
        vp_stage: virtual pipeline stage.

    Returns:
        The global name.  Quantizer buffers that a grouped layer shares keep their name.
    """
    head, mark, tail = param_name.partition(".experts.")
    known = head.endswith(".mlp") and _GROUPED.search(param_name)
    if known or ".adapter." in param_name or not tail.startswith(("linear_fc", "local_experts.")):
        return str(original(models, config, param_name, vp_stage))
    # Layers are numbered by what stands before the experts; the rest would trip the original.
    head = str(original(models, config, head, vp_stage))
    return head + mark + _expert_to_global(models, config, tail)


def _expert_to_global(models: Any, config: Any, tail: str) -> str:
    group = _expert_group(models)
    if group is None or group.size() == 1:
        return tail
    match = _LOCAL_EXPERT.search(f".{tail}") or _NUMBERED.search(f".{tail}")
    if match is None:
        return tail
    start, stop = match.start(1) - 1, match.end(1) - 1
    return f"{tail[:start]}{config.num_moe_experts // group.size() * group.rank() + int(match[1])}{tail[stop:]}"


def _expert_group(models: Any) -> Any:
    """The expert-parallel group; Bridge 0.4.2 prefers the one that the model carries."""
    bridge = sys.modules["megatron.bridge.models.conversion.model_bridge"]
    own = getattr(bridge, "_get_ep_group", None)
    if own is not None:
        return own(models)
    from megatron.core import parallel_state

    return parallel_state.get_expert_model_parallel_group()


def expert_number(original: Any, param_name: str) -> int:
    """Wrap Bridge's ``extract_expert_number_from_param``: the innermost number wins."""
    for pattern in _EXPERT_NUMBER:
        match = pattern.search(param_name)
        if match:
            return int(match[1])
    return int(original(param_name))  # no number: Bridge's own error


def sort_key(original: Any, param_name: str) -> tuple[list[int], str]:
    """Wrap Bridge's ``extract_sort_key``: experts of a ``SequentialMLP`` in numerical order."""
    numbers, name = original(param_name)
    local = _LOCAL_EXPERT.search(param_name)
    if local is None or re.search(r"(?:bias|weight)\d+", param_name):
        return numbers, name
    layers = [number for number in numbers if number >= 0]
    return [*layers, int(local[1]), -1][:2], name


def is_quantizer_name(param_name: str) -> bool:
    """Whether a parameter or buffer belongs to a ModelOpt quantizer (``weight_quantizer._amax``)."""
    return _QUANTIZER.search(param_name) is not None


_unmapped: list[str] = []  # of the latest plan in this process, for the message


def leave_quantizers_out(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``build_conversion_tasks``: empty slots of quantizer buffers are left out of its result.

    A quantizer's buffers have no Hugging Face name unless ``ENABLE_BRIDGE_QUANT_MAPPING=1``; planning
    gives None for them, at which exports, saves and loads of every release up to 0.6.2 fail.  The list is
    global, so pipeline peers leave out the same slots.  Slots of anything else stay.
    """
    tasks = original(self, *args, **kwargs)
    if _quantizers_are_mapped() or not any(task is None for task in tasks):
        return tasks
    names = _slot_names(self, tasks)
    if names is None:
        return tasks
    slots = [
        (task, name) for task, name in zip(tasks, names, strict=True) if task is not None or not is_quantizer_name(name)
    ]
    _unmapped[:] = [name for task, name in slots if task is None]
    return [task for task, _ in slots]


def name_unmapped(original: Any, self: Any, tasks: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``_with_progress_tracking``, where loads and exports start on their tasks.

    Raises:
        AttributeError: as Bridge itself at the first empty slot; the text names the parameters.
    """
    if isinstance(tasks, (list, tuple)) and any(task is None for task in tasks):
        planned = {task.global_param_name for task in tasks if task is not None}
        own = [name for name in _all_names(self) if name not in planned and not is_quantizer_name(name)]
        names = own or _unmapped  # a caller's tasks were planned by another bridge object
        raise AttributeError(
            f"{len([task for task in tasks if task is None])} parameters have no mapping to Hugging Face names: "
            f"{', '.join(names[:20]) or 'unknown'}. Nothing was converted: a result without them would be incomplete. "
            "Add mappings for them to the model's bridge, or take off what renamed them (such as weight_norm)"
        )
    return original(self, tasks, *args, **kwargs)


def _slot_names(bridge: Any, tasks: list[Any]) -> list[str] | None:
    """The parameter of each slot; tied embeddings have no slot for the output layer."""
    names = _all_names(bridge)
    for candidate in (names, [name for name in names if "output_layer" not in name]):
        if len(candidate) == len(tasks) and all(
            task is None or task.global_param_name == name for task, name in zip(tasks, candidate, strict=True)
        ):
            return candidate
    return None


def _all_names(bridge: Any) -> list[str]:
    return list(getattr(bridge, "_cached_param_names", ()))


def _quantizers_are_mapped() -> bool:
    """As Bridge reads the switch; a text that is no number stops Bridge itself."""
    try:
        return int(os.environ.get("ENABLE_BRIDGE_QUANT_MAPPING", "0")) != 0
    except ValueError:
        return True
