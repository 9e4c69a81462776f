"""What an adapter is: frozen records, readable without importing any upstream.

An adapter module (one per upstream change, in ``adapters/``) holds one
:class:`Adapter` named ``ADAPTER`` and nothing else.  Code is named by
*references*, ``"package.module:attribute"``, and is imported only when the
adapter is applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KINDS = ("backport", "return-shape", "guard", "cache", "rename", "default", "diagnose")


@dataclass(frozen=True)
class Upstream:
    """A distribution that adapters are written for.

    Attributes:
        dist: distribution name, as pip spells it.
        package: import name of the package that it provides (``megatron.core``).
        version_files: files in the package folder that state the version, in
            order of preference: ``*.py`` (read by AST) or plain text.
        known: the releases that the project knows, for validation of ranges.
    """

    dist: str
    package: str
    version_files: tuple[str, ...]
    known: tuple[str, ...]


@dataclass(frozen=True)
class Audited:
    """A distribution as ``verl-compat audit`` sees it.

    Attributes:
        option: its name on the command line (``--bridge``).
        dist: distribution name.
        roots: import roots that its wheel owns.
        uses: distributions whose names it uses, on which it is audited.
        partner: for a provider that is only complete with another, release series to the
            release of ``partner_dist`` that it is paired with.
        partner_dist: that other distribution.
    """

    option: str
    dist: str
    roots: tuple[str, ...]
    uses: tuple[str, ...] = ()
    partner_dist: str = ""
    partner: Mapping[str, str] = field(default_factory=dict)


# --- feature tests -----------------------------------------------------------


@dataclass(frozen=True)
class Lacks:
    """True when the target lacks at least one of these dotted paths."""

    paths: tuple[str, ...]

    def __init__(self, *paths: str) -> None:
        object.__setattr__(self, "paths", paths)


@dataclass(frozen=True)
class Has:
    """True when the target has all of these dotted paths."""

    paths: tuple[str, ...]

    def __init__(self, *paths: str) -> None:
        object.__setattr__(self, "paths", paths)


@dataclass(frozen=True)
class Test:
    """True when ``reference(module)`` is true (a pure predicate kept in ``shims``)."""

    __test__ = False  # not a pytest class

    reference: str


Feature = Lacks | Has | Test


# --- patches -----------------------------------------------------------------


@dataclass(frozen=True)
class Add:
    """Add a name that the target lacks; left alone where the name exists.

    Attributes:
        path: dotted path below the target module (``Class.method`` too).
        value: reference to the value (in ``shims``, or another upstream module).
        make: call the referenced object with the target module and use its result.
    """

    path: str
    value: str
    make: bool = False


@dataclass(frozen=True)
class Replace:
    """Replace an object that is recognised as the upstream's own.

    Attributes:
        path, value, make: as in :class:`Add`; with ``make`` the referenced object is
            called with the target module (read the original from it).
        params: parameter names that the original must begin with; a mismatch means
            that upstream changed, and the adapter fails instead of guessing.
        home: module that defines the object, where it is not the target.
        data: the object is a plain value (a module, a table), not code: it has no
            recognisable source, so only its presence is checked.
        later: as ``make``, called with the target module and a
            :class:`~verl_compat.later.Later`, with which the shim changes further modules
            when upstream calls it.
    """

    path: str
    value: str
    make: bool = False
    params: tuple[str, ...] = ()
    home: str | None = None
    data: bool = False
    later: bool = False


@dataclass(frozen=True)
class Wrap:
    """Call ``wrapper(original, *args, **kwargs)`` in place of a function or method.

    The wrapper is installed as a plain function (``functools.wraps``), so pickling by
    name, ``inspect.signature`` and ``torch.compile`` see what they saw before.
    ``decorated`` says that upstream itself decorates the original, so that its
    outermost code lies in another file.
    """

    path: str
    wrapper: str
    params: tuple[str, ...] = ()
    home: str | None = None
    decorated: bool = False


@dataclass(frozen=True)
class Register:
    """Add members to a class-level table of sets (``table[key] |= members``)."""

    path: str
    key: str
    members: tuple[str, ...]


@dataclass(frozen=True)
class Provide:
    """Provide a whole module that upstream no longer has (the target), by alias.

    ``names`` maps each name to the reference of the living object, resolved when the
    module is imported; nothing is loaded twice, so ``new.X is old.X``.
    """

    names: Mapping[str, str]


@dataclass(frozen=True)
class Check:
    """Call ``reference(module, versions)`` once; a text that it returns is one warning.

    ``versions`` maps distribution names to version texts (absent when not installed).
    """

    reference: str


@dataclass(frozen=True)
class OnImportError:
    """Call ``reference(error, versions)`` when the target's own import raises.

    A text that it returns is one warning; the error goes on to the importer unchanged.
    """

    reference: str


@dataclass(frozen=True)
class Untouched:
    """A collision where the value at ``path`` is true: upstream's own code has done its work already.

    Attributes:
        path: dotted path below the target module, of a flag or list that upstream's own code fills.
        why: what that means, for the outcome's reason.
    """

    path: str
    why: str


Patch = Add | Replace | Wrap | Register | Provide | Check | OnImportError | Untouched


@dataclass(frozen=True)
class Adapter:
    """One upstream change and what repairs it.

    Attributes:
        id: equals the file name, the test name and the CHANGELOG key.
        kind: one of :data:`KINDS`.
        summary: one line for tables.
        target: leaf module whose import triggers it.
        applies: specifier per distribution (all must hold), compared on base versions;
            half-open ranges (``>=0.3.0,<0.5``).
        tested: exact version sets that the test matrix ran, each a mapping
            distribution -> version.
        needed: feature tests on the imported module, all must hold; the last word over
            versions.  Beyond the range an adapter is applied only where a :class:`Lacks` or
            :class:`Test` asks for it; with none of them the version decides alone.
        patches: applied together or not at all.
        consumers: modules that bind the patched module-level names early; they are
            back-filled where they still hold the original.
        why: what breaks without it, and for whom.
        links: upstream PRs, issues or releases.
        retire_when: specifier per distribution from which upstream needs no adapter
            (any one is enough); empty only with ``keep`` set.
        keep: why no release retires it yet.
        default: False when it must be asked for by ``VERL_COMPAT_ENABLE``.
        reports: public report numbers that lead here (``verl#6936``).
    """

    id: str
    kind: str
    summary: str
    target: str
    applies: Mapping[str, str]
    tested: tuple[Mapping[str, str], ...]
    needed: tuple[Feature, ...]
    patches: tuple[Patch, ...]
    why: str
    links: tuple[str, ...]
    retire_when: Mapping[str, str] = field(default_factory=dict)
    keep: str = ""
    consumers: tuple[str, ...] = ()
    default: bool = True
    reports: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """The upstream that the adapter is about: the first word of its id."""
        return self.id.partition("_")[0]


def describe(feature: Feature) -> str:
    """A feature test in words, for ``explain``."""
    match feature:
        case Lacks(paths=paths):
            return "target lacks " + " or ".join(paths)
        case Has(paths=paths):
            return "target has " + " and ".join(paths)
        case Test(reference=reference):
            return reference + " says so"


def dotted_get(root: Any, path: str) -> Any:
    """Follow a dotted path below ``root``; AttributeError names the missing part.

    Only what is already there is read: a module's lazy ``__getattr__`` (PEP 562) is not
    asked, since it may import the world.
    """
    here = root
    done = getattr(root, "__name__", repr(root))
    for part in path.split("."):
        here = raw_attribute(here, part, done)
        done = f"{done}.{part}"
    return here


def raw_attribute(owner: Any, name: str, label: str) -> Any:
    """One attribute: from a module's own ``__dict__``, else by ``getattr`` (inherited too)."""
    if type(owner).__name__ == "module" or hasattr(owner, "__spec__"):
        try:
            return vars(owner)[name]
        except KeyError:
            raise AttributeError(f"{label} has no attribute {name!r}") from None
    try:
        return getattr(owner, name)
    except AttributeError:
        raise AttributeError(f"{label} has no attribute {name!r}") from None
