"""Whether a call fits a signature, as far as the sources tell."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any

import griffe

from ..read.uses import Accepts, Shape
from .answers import Answer
from .classes import mro as mro_of
from .library import Library

TRANSPARENT = re.compile(
    r"staticmethod|classmethod|property|(typing\.|typing_extensions\.)?(override|final|deprecated)|"
    r"(abc\.)?abstractmethod|(contextlib\.)?(async)?contextmanager|(functools\.)?(lru_cache|cache|wraps)|"
    r"torch\.(no_grad|inference_mode|enable_grad)|torch\.compiler\.(disable|allow_in_graph)|torch\.jit\.(unused|ignore)|"
    r"(warnings\.)?deprecated|no_type_check"
)
DATACLASS = re.compile(r"(dataclasses\.)?dataclass")
FIELD = re.compile(r"(dataclasses\.)?field\(")


@dataclass(frozen=True)
class Parameter:
    """One parameter: how it may be given, and whether it must be."""

    name: str
    required: bool
    positional: bool = True
    keyword: bool = True


@dataclass(frozen=True)
class Signature:
    """Parameters without ``self``; ``star`` and ``double_star`` accept more."""

    parameters: tuple[Parameter, ...]
    star: bool = False
    double_star: bool = False


class UndecidedError(Exception):
    """The sources do not tell; the text says why."""


def of_function(function: Any, bound: bool, ambiguous: bool = False) -> Signature:
    """Signature of a function; with ``bound`` its first parameter is given already."""
    if ambiguous:
        raise UndecidedError(f"{function.path} is defined more than once")
    for decorator in function.decorators:
        if not TRANSPARENT.fullmatch(str(decorator.callable_path)):
            raise UndecidedError(f"{function.path} is decorated with {decorator.callable_path}")
    found, star, double_star = [], False, False
    for parameter in function.parameters:
        kind = parameter.kind
        if kind is griffe.ParameterKind.var_positional:
            star = True
        elif kind is griffe.ParameterKind.var_keyword:
            double_star = True
        else:
            found.append(
                Parameter(
                    parameter.name,
                    parameter.default is None,
                    positional=kind is not griffe.ParameterKind.keyword_only,
                    keyword=kind is not griffe.ParameterKind.positional_only,
                )
            )
    if bound and found and found[0].positional:
        found = found[1:]
    return Signature(tuple(found), star, double_star)


def of_class(library: Library, answer: Answer) -> Signature:
    """Signature of a class's construction: ``__init__``, or a dataclass's fields."""
    cls = answer.obj
    if answer.ambiguous:
        raise UndecidedError(f"{cls.path} is defined more than once")
    mro = mro_of(library, cls)
    for home, base in mro:
        if isinstance(base, str):
            if base.rpartition(".")[2] in ("object", "Generic", "Protocol", "ABC"):
                continue
            raise UndecidedError(f"{cls.path} inherits from {base}")
        if "metaclass" in base.keywords and "ABCMeta" not in str(base.keywords["metaclass"]):
            raise UndecidedError(f"{base.path} has a metaclass")
        if "__new__" in base.members:
            raise UndecidedError(f"{base.path} has a __new__")
        if "__init__" in base.members:
            init = base.members["__init__"]
            if init.is_alias or init.kind is not griffe.Kind.FUNCTION:
                raise UndecidedError(f"{base.path}.__init__ is assigned")
            many = home.defined_often(base.path, "__init__")
            return of_function(init, bound=True, ambiguous=many)
        if decorated_as_dataclass(base):
            return dataclass_signature(library, base)
        if base.decorators:
            raise UndecidedError(f"{base.path} is decorated with {base.decorators[0].callable_path}")
    return Signature(())


def decorated_as_dataclass(cls: Any) -> bool:
    """Whether only ``dataclass`` decorates a class."""
    return bool(cls.decorators) and all(DATACLASS.fullmatch(str(d.callable_path)) for d in cls.decorators)


def dataclass_signature(library: Library, cls: Any) -> Signature:
    """Fields in order, base classes first, later ones replacing earlier ones of the same name."""
    fields: dict[str, Parameter] = {}
    for _, base in reversed(mro_of(library, cls)):
        if isinstance(base, str):
            continue
        if base.decorators and not decorated_as_dataclass(base):
            raise UndecidedError(f"{base.path} is decorated with {base.decorators[0].callable_path}")
        if not base.decorators:
            continue
        if re.search(r"\binit\s*=\s*False|kw_only", str(base.decorators[0].value)):
            raise UndecidedError(f"{base.path} is a dataclass with options")
        for name, member in base.members.items():
            if member.is_alias or member.kind is not griffe.Kind.ATTRIBUTE or member.annotation is None:
                continue
            if "property" in member.labels or ("class-attribute" not in member.labels and member.value is not None):
                continue
            annotation, value = str(member.annotation), "" if member.value is None else str(member.value)
            if "ClassVar" in annotation or "KW_ONLY" in annotation:
                continue
            if FIELD.match(value):
                if re.search(r"\binit\s*=\s*False", value):
                    fields.pop(name, None)
                    continue
                required = not re.search(r"\bdefault(_factory)?\s*=", value)
                if "kw_only" in value:
                    raise UndecidedError(f"{base.path}.{name} is keyword-only")
            else:
                required = member.value is None
            fields[name] = Parameter(name, required)
    return Signature(tuple(fields.values()))


@dataclass(frozen=True)
class Misfit:
    """One thing wrong with a call: ``problem`` and its words."""

    problem: str
    name: str
    detail: str


def _listed(keyword: str, names: list[str]) -> str:
    """The parameters there are; of many only those that look alike."""
    if len(names) <= 8:
        return ", ".join(names) or "none"
    close = difflib.get_close_matches(keyword, names, n=3, cutoff=0.5)
    return f"{len(names)}" + (f", such as {', '.join(close)}" if close else "")


def misfits(signature: Signature, shape: Shape) -> list[Misfit]:
    """What is wrong with a call; nothing where ``*`` or ``**`` hide what is passed."""
    found = []
    names = {p.name: p for p in signature.parameters if p.keyword}
    positional = [p for p in signature.parameters if p.positional]
    for keyword in shape.keywords:
        if keyword not in names and not signature.double_star:
            found.append(
                Misfit("unknown-keyword", keyword, f"no parameter {keyword}; it has {_listed(keyword, list(names))}")
            )
    if shape.positional > len(positional) and not signature.star:
        words = f"{shape.positional} positional arguments given, at most {len(positional)} taken"
        found.append(Misfit("too-many-arguments", "", words))
    if not shape.star and not shape.double_star:
        given = {p.name for p in positional[: shape.positional]} | set(shape.keywords)
        for parameter in signature.parameters:
            if parameter.required and parameter.name not in given:
                words = f"required parameter {parameter.name} is not given"
                found.append(Misfit("missing-argument", parameter.name, words))
    return found


def replacement_misfits(signature: Signature, accepts: Accepts, calls: list[Shape]) -> list[Misfit]:
    """Why a consumer function cannot stand in for an upstream one.

    ``signature`` is the upstream function's, without ``self``.  Parameters that upstream requires
    must be accepted; optional ones only matter where upstream's own module passes them (``calls``).
    """
    own = list(accepts.positional[1:] if accepts.bound else accepts.positional)
    keyword_only = [name for name, _ in accepts.keyword_only]
    found = []
    positional = [p for p in signature.parameters if p.positional]
    needed = [p for p in signature.parameters if p.required]
    for parameter in needed:
        if parameter.name in own or parameter.name in keyword_only or accepts.double_star or accepts.star:
            continue
        if parameter.positional and positional.index(parameter) < len(own):
            continue  # passed by position under another name
        words = f"upstream requires parameter {parameter.name}, the replacement does not take it"
        found.append(Misfit("override-signature", parameter.name, words))
    for call in calls:
        for keyword in call.keywords:
            if keyword not in own and keyword not in keyword_only and not accepts.double_star:
                words = f"upstream's own module passes {keyword}=, the replacement does not take it"
                found.append(Misfit("override-signature", keyword, words))
        if call.positional > len(own) and not accepts.star:
            words = f"upstream's own module passes {call.positional} arguments, the replacement takes {len(own)}"
            found.append(Misfit("override-signature", "", words))
    known = {p.name for p in signature.parameters}
    required_own = accepts.required - (1 if accepts.bound else 0)
    if not signature.star and required_own > len(positional) and not (set(own[:required_own]) <= known):
        words = f"the replacement requires {required_own} arguments, upstream's takes {len(positional)}"
        found.append(Misfit("override-demands", "", words))
    return list(dict.fromkeys(found))
