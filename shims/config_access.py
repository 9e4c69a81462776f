"""One way to read a key from whatever verl calls a configuration.

verl hands the same section over as a plain dict (engine path), an OmegaConf
``DictConfig`` (legacy worker path), a dataclass or a namespace.  Reading a dict with
``getattr``, as verl 0.7.0 and 0.7.1 do for ``lora.adapter_path``, finds nothing and says
nothing (https://github.com/verl-project/verl/pull/6335).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

_ABSENT = object()
_NOT_A_CONFIG = (str, bytes, bytearray, int, float, complex, list, tuple, set, frozenset)
# By name, so that omegaconf need not be installed.
_MEANS_ABSENT = {
    "MissingMandatoryValue",
    "InterpolationToMissingValueError",
    "ConfigKeyError",
    "ConfigAttributeError",
}


class ConfigReadError(ValueError):
    """A key is there but cannot be read (a broken interpolation, a property that raises)."""


def config_get(config: Any, key: str, default: Any = None) -> Any:
    """Read ``key`` from a mapping, DictConfig, dataclass, namespace, pydantic model or object.

    Args:
        config: the configuration; None counts as an empty one.  It is never changed
            (reading a ``defaultdict`` inserts nothing).
        key: a single key; no dotted path.
        default: returned where the key is absent.  OmegaConf's ``???`` counts as absent,
            in struct mode and in structured configs too.  A stored None is returned as None.

    Returns:
        The value; interpolations are resolved.  Methods of the object's class are not
        configuration values and count as absent.

    Raises:
        TypeError: ``config`` cannot hold keys (a string, number or list), or ``key`` is no string.
        ConfigReadError: the key is there but its value cannot be read.
    """
    if not isinstance(key, str):
        raise TypeError(f"a configuration key is a string, got {type(key).__name__}: {key!r}")
    if config is None:
        return default
    if isinstance(config, _NOT_A_CONFIG) and not hasattr(config, "_fields"):
        raise TypeError(
            f"cannot read {key!r} from a {type(config).__name__}: expected a dict, DictConfig, dataclass, "
            "namespace, pydantic model or object with attributes"
        )
    value = _from_mapping(config, key) if isinstance(config, Mapping) else _from_object(config, key)
    return default if value is _ABSENT else value


def _from_mapping(config: Mapping[Any, Any], key: str) -> Any:
    """``config.get`` rather than ``config[key]``: a defaultdict must not grow by being read."""
    try:
        return config.get(key, _ABSENT)
    except (KeyError, AttributeError) as error:
        # verl's BaseConfig is a Mapping whose __getitem__ is getattr.
        return _absent_or_raise(key, error, absent=True)
    except Exception as error:
        return _absent_or_raise(key, error)


def _from_object(config: Any, key: str) -> Any:
    if _is_method(config, key):
        return _ABSENT
    try:
        return getattr(config, key, _ABSENT)
    except Exception as error:
        return _absent_or_raise(key, error)


def _is_method(config: Any, key: str) -> bool:
    """``copy`` of a pydantic model or ``to_dict`` of a config class is no value of the user's."""
    own = getattr(config, "__dict__", {})
    if isinstance(own, Mapping) and key in own:
        return False
    return inspect.isroutine(inspect.getattr_static(type(config), key, None))


def _absent_or_raise(key: str, error: Exception, absent: bool = False) -> Any:
    names = {cls.__name__ for cls in type(error).__mro__}
    broken = "InterpolationResolutionError" in names and "InterpolationToMissingValueError" not in names
    if not broken and (absent or names & _MEANS_ABSENT):
        return _ABSENT
    raise ConfigReadError(
        f"configuration key {key!r} is there but cannot be read: {type(error).__name__}: {error}"
    ) from error


class AttributeDict(dict):  # type: ignore[type-arg]
    """A dict whose keys can also be read as attributes; equal to the dict it was made from."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy as a plain dict would, without asking ``__getattr__``."""
        return (type(self), (dict(self),))


def readable_by_attribute(config: Any) -> Any:
    """``config`` itself, or for a plain dict a copy that ``getattr`` can read too."""
    return AttributeDict(config) if type(config) is dict else config


def read_lora_by_attribute(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap verl 0.7's ``make_megatron_module``, which reads ``peft_config.adapter_path`` of a plain dict."""
    try:
        call = inspect.signature(original).bind(*args, **kwargs)
    except TypeError:
        return original(*args, **kwargs)  # upstream's own error for a wrong call
    if "peft_config" in call.arguments:
        call.arguments["peft_config"] = readable_by_attribute(call.arguments["peft_config"])
    return original(*call.args, **call.kwargs)
