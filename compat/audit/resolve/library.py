"""What an upstream release defines, read with griffe one module at a time, when it is asked for.

Whole packages take seconds to load and an audit needs a few dozen modules, so modules are
visited on demand; aliases, star imports, lazy ``__getattr__`` modules, conditional and
type-checking-only definitions are followed here.  An answer is ``undecided`` rather than
guessed.
"""

from __future__ import annotations

import ast
import builtins
import re
import warnings
from collections.abc import Sequence
from typing import Any

import griffe

from ..read.scopes import shape as call_shape
from ..read.uses import Shape
from ..trees import SourceTree, UnreadableError, parse, read_text
from . import classes
from .answers import Answer
from .definitions import Definitions, calls_in

MAX_DEPTH = 25
DYNAMIC = re.compile(r"\bglobals\(\)|\bsys\.modules\[|\bexec\(|\bvars\(\)\[|\b__dict__\b")


class Library:
    """One release of one upstream.

    Attributes:
        dist: distribution name.
        roots: import roots that belong to it (``megatron.core``).
        tree: its sources.
    """

    def __init__(self, dist: str, roots: Sequence[str], tree: SourceTree) -> None:
        self.dist = dist
        self.roots = tuple(roots)
        self.tree = tree
        self.world: World | None = None
        self._modules: dict[str, Any] = {}
        self._definitions = Definitions()
        self._extensions = griffe.Extensions(self._definitions)
        self._stored: dict[str, set[str]] = {}
        self._calls: dict[str, dict[str, list[tuple[str, Shape]]]] = {}
        self._all_text: list[str] | None = None

    @property
    def version(self) -> str:
        """Version text of the release."""
        return self.tree.version

    def owns(self, path: str) -> bool:
        """Whether a dotted path lies below one of the roots."""
        return any(path == root or path.startswith(root + ".") for root in self.roots)

    # --- modules -------------------------------------------------------------

    def module(self, name: str) -> Any | None:
        """griffe's module, None when there is no such file or it cannot be read."""
        if name not in self._modules:
            self._modules[name] = self._visit(name)
        return self._modules[name]

    def _visit(self, name: str) -> Any | None:
        file = self.tree.module_file(name)
        if file is None:
            return None
        try:
            text = read_text(file)
        except UnreadableError:
            return None
        head, _, last = name.rpartition(".")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return griffe.visit(last, file, text, extensions=self._extensions, parent=self._parent(head))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    def _parent(self, name: str) -> Any | None:
        """A bare package, so that relative imports and paths come out right."""
        if not name:
            return None
        head, _, last = name.rpartition(".")
        folder = self.tree.root.joinpath(*name.split("."))
        init = folder / "__init__.py"
        return griffe.Module(last, filepath=init if init.is_file() else [folder], parent=self._parent(head))

    def is_module(self, name: str) -> bool:
        """Whether a dotted name is a module, a package or a namespace folder."""
        return self.tree.module_file(name) is not None or self.tree.is_folder(name)

    # --- names ---------------------------------------------------------------

    def resolve(self, path: str, depth: int = 0) -> Answer:
        """Follow a dotted path from an import root."""
        if depth > MAX_DEPTH:
            return Answer("undecided", path=path, reason="aliases form a circle")
        parts = path.split(".")
        here = parts[0]
        for index, part in enumerate(parts[1:], start=1):
            inner = f"{here}.{part}"
            if index < len(parts) - 1 and self.tree.module_file(inner) is not None:
                here = inner  # `from a.b import c` means the module a.b, whatever a calls b
                continue
            if self.tree.module_file(here) is None:  # a namespace folder, or nothing
                if not self.is_module(inner):
                    return self._no_module(here, inner)
                here = inner
                continue
            answer = self.module_member(here, part, depth)
            if answer.state != "found":
                return answer
            if index == len(parts) - 1:
                return answer
            if answer.obj is None:
                return Answer("undecided", path=answer.path, reason=f"{here}.{part} cannot be looked into")
            if answer.obj.kind is griffe.Kind.MODULE and self.owns(answer.path):
                here = answer.path
                continue
            return self.below(answer, parts[index + 1 :], depth)
        if not self.is_module(here):
            return Answer("missing", path=here, missing=here, owner="module")
        return Answer("found", obj=self.module(here), path=here)

    def _no_module(self, here: str, inner: str) -> Answer:
        if self.tree.is_compiled(inner) or self.tree.is_compiled(here):
            return Answer("found", path=inner)
        return Answer("missing", path=inner, missing=inner, owner="module")

    def below(self, start: Answer, parts: Sequence[str], depth: int = 0) -> Answer:
        """Follow the rest of a path below a class or another object."""
        answer = start
        for part in parts:
            answer = self.attribute(answer, part, depth + 1)
            if answer.state != "found":
                return answer
        return answer

    def attribute(self, owner: Answer, name: str, depth: int = 0, instance: bool = False) -> Answer:
        """One attribute of something found."""
        obj = owner.obj
        if obj is None:
            return Answer("undecided", path=f"{owner.path}.{name}", reason=f"{owner.path} cannot be looked into")
        library = self.home_of(owner.path)
        if obj.kind is griffe.Kind.MODULE:
            return library.resolve(f"{owner.path}.{name}", depth + 1)
        if obj.kind is griffe.Kind.CLASS:
            return classes.class_member(library, owner, name, depth + 1, instance)
        if obj.kind is griffe.Kind.FUNCTION:
            return classes.function_attribute(library, owner, name)
        return Answer("undecided", path=f"{owner.path}.{name}", reason=f"{owner.path} is a value, not looked into")

    def owner_of(self, path: str) -> Library | None:
        """The library that a path belongs to, None for another project."""
        if self.world is not None:
            return self.world.owner(path)
        return self if self.owns(path) else None

    def defined_often(self, owner: str, name: str) -> bool:
        """Whether a name is defined more than once in a class or module."""
        return len(self._definitions.seen.get((owner, name), [])) > 1

    def home_of(self, path: str) -> Library:
        """The library of a path that one of them owns."""
        if self.world is not None and not self.owns(path):
            return self.world.owner(path) or self
        return self

    def module_member(self, module: str, name: str, depth: int = 0) -> Answer:
        """One name in a module: defined, imported, star-imported, a submodule, or lazily provided."""
        inner = f"{module}.{name}"
        visited = self.module(module)
        if visited is None:
            file = self.tree.module_file(module)
            if self.is_module(inner) or file is None:
                return self._module_answer(inner)
            return Answer("undecided", path=inner, reason=f"{module} cannot be parsed")
        lazy = "__getattr__" in visited.members
        if name in visited.members:
            answer = self.definition(visited, name, inner, depth)
            if answer.state != "missing" or not lazy:
                return answer
        if self.is_module(inner):
            return self._module_answer(inner)
        if self.tree.is_compiled(inner):
            return Answer("found", path=inner)
        starred = self._starred(visited, name, depth)
        if starred is not None:
            return starred
        return self._unusual(module, visited, name, lazy)

    def _module_answer(self, name: str) -> Answer:
        if not self.is_module(name):
            return self._no_module(name.rpartition(".")[0], name)
        module = self.module(name)
        if module is None and self.tree.module_file(name) is None:
            module = griffe.Module(name.rpartition(".")[2], filepath=[self.tree.root.joinpath(*name.split("."))])
        return Answer("found", obj=module, path=name)

    def definition(self, owner: Any, name: str, path: str, depth: int) -> Answer:
        """A name that griffe saw defined, perhaps several times: the first that leads somewhere."""
        defined = self._definitions.seen.get((owner.path, name)) or [owner.members[name]]
        runtime = [item for item in defined if item.runtime]
        if not runtime:
            if "__getattr__" in owner.members or self.is_module(path):
                runtime = defined  # imported for type checkers, provided at run time in another way
            else:
                return Answer("missing", path=path, missing=path, owner="module", reason="only for type checkers")
        answers = [self._follow(item, path, depth) for item in reversed(runtime)]
        best = min(answers, key=lambda answer: ("found", "undecided", "missing").index(answer.state))
        if best.state == "missing":
            # the re-export itself is broken: a fault of this upstream's own import, not of the consumer's name
            return Answer("undecided", path=path, reason=f"re-exported from {best.missing}, which is missing")
        if len(runtime) > 1:
            return Answer(best.state, best.obj, best.path, best.missing, best.owner, best.reason, ambiguous=True)
        return best

    def _follow(self, item: Any, path: str, depth: int) -> Answer:
        if item.is_alias:
            return self._follow_path(item.target_path, path, depth)
        if item.kind is griffe.Kind.ATTRIBUTE:
            target = self._assigned_path(item)
            if target and target != path:
                answer = self._follow_path(target, path, depth)
                if answer.state == "found" and answer.obj is not None:
                    return answer
            return Answer("found", obj=item, path=path)
        return Answer("found", obj=item, path=item.path)

    def _follow_path(self, target: str, path: str, depth: int) -> Answer:
        if target == path:
            return self._module_answer(path)
        library = self.owner_of(target)
        if library is None:
            return Answer("found", path=target)  # from another project: it exists as far as this audit knows
        return library.resolve(target, depth + 1)

    def _assigned_path(self, attribute: Any) -> str:
        """``X = Y`` and ``X = module.Y``: the path that the value names, else empty."""
        if isinstance(attribute.value, (griffe.ExprName, griffe.ExprAttribute)) and attribute.parent is not None:
            return self.expression_path(attribute.value, attribute.parent)
        return ""

    def expression_path(self, expression: Any, scope: Any) -> str:
        """The dotted path that a name or attribute expression means where it is written."""
        text = str(expression)
        head, _, rest = text.partition(".")
        module = scope.module
        here = scope
        while here is not None and here is not module:
            if head in here.members:
                return f"{here.path}.{text}"
            here = here.parent
        member = module.members.get(head)
        if member is not None and member.is_alias:
            base = str(member.target_path)
        elif member is not None:
            base = f"{module.path}.{head}"
        elif hasattr(builtins, head):
            base = f"builtins.{head}"
        else:
            base = f"{module.path}.{head}"
        return f"{base}.{rest}" if rest else base

    def _starred(self, visited: Any, name: str, depth: int) -> Answer | None:
        """Whether a star import brings the name; None when none does."""
        unknown = ""
        for key, member in visited.members.items():
            if not key.endswith("/*"):
                continue
            target = str(member.target_path)
            library = self.owner_of(target)
            if library is None:
                unknown = target
            elif library.exports(target, name):
                answer = library.resolve(f"{target}.{name}", depth + 1)
                if answer.state != "missing":
                    return answer
        if unknown:
            return Answer("undecided", path=f"{visited.path}.{name}", reason=f"from {unknown} import *")
        return None

    def exports(self, module: str, name: str) -> bool:
        """Whether ``from module import *`` can bring a name."""
        visited = self.module(module)
        if visited is None:
            return True
        if visited.exports is not None:
            listed = {str(item) for item in visited.exports}
            return name in listed or any(not isinstance(item, str) for item in visited.exports)
        return not name.startswith("_")

    def _unusual(self, module: str, visited: Any, name: str, lazy: bool) -> Answer:
        """A name that no statement defines plainly: loops, ``global``, ``globals()``, ``__getattr__``."""
        path = f"{module}.{name}"
        file = self.tree.module_file(module)
        text = self.tree.text(file) if file is not None else ""
        if name in ("__name__", "__file__", "__doc__", "__path__", "__dict__", "__spec__", "__loader__", "__package__"):
            return Answer("found", path=path)
        if name in self._stored_names(module, text):
            return Answer("found", path=path)
        quoted = re.search(rf"""["']{re.escape(name)}["']""", text)
        if lazy:
            if quoted:
                return Answer("found", path=path)
            return Answer("undecided", path=path, reason=f"{module} has a __getattr__")
        if quoted and DYNAMIC.search(text):
            return Answer("undecided", path=path, reason=f"{module} defines names dynamically")
        return Answer("missing", path=path, missing=path, owner="module")

    def _stored_names(self, module: str, text: str) -> set[str]:
        if module not in self._stored:
            try:
                tree = parse(text)
            except UnreadableError:
                return set()
            self._stored[module] = set(classes.module_level_names(tree.body))
        return self._stored[module]

    def own_calls(self, module: str) -> dict[str, list[tuple[str, Shape]]]:
        """Calls of ``self.name(...)`` and ``name(...)`` in a module, by callee text: calling function, shape."""
        if module not in self._calls:
            found: dict[str, list[tuple[str, Shape]]] = {}
            file = self.tree.module_file(module)
            try:
                tree = parse(self.tree.text(file)) if file is not None else ast.Module([], [])
            except UnreadableError:
                tree = ast.Module([], [])
            for caller, node in calls_in(tree, ""):
                func = node.func
                if isinstance(func, ast.Name):
                    found.setdefault(func.id, []).append((caller, call_shape(node)))
                elif isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "self":
                    found.setdefault(f"self.{func.attr}", []).append((caller, call_shape(node)))
            self._calls[module] = found
        return self._calls[module]

    def mentions(self, name: str) -> bool:
        """Whether a word occurs anywhere in the release."""
        pattern = re.compile(rf"\b{re.escape(name)}\b")
        return any(name in text and pattern.search(text) for text in self._texts())

    def _texts(self) -> list[str]:
        if self._all_text is None:
            self._all_text = [self.tree.text(file) for file in self._files()]
        return self._all_text

    def mentions_definition(self, name: str) -> bool:
        """Whether any class of the release may define an attribute of this name (a text search)."""
        pattern = re.compile(rf"\bdef {re.escape(name)}\b|(\.|\n\s+){re.escape(name)}\b\s*(:[^=\n]+)?(=[^=]|\n)|"
                             rf"""["']{re.escape(name)}["']""")  # fmt: skip
        return any(name in text and pattern.search(text) for text in self._texts())

    def _files(self) -> list[Any]:
        from ..trees import source_files

        return [file for root in self.roots for file in source_files(self.tree.root.joinpath(*root.split(".")))]


class World:
    """The libraries of one version set, by import root."""

    def __init__(self, libraries: Sequence[Library]) -> None:
        self.libraries = tuple(libraries)
        for library in libraries:
            library.world = self

    def owner(self, path: str) -> Library | None:
        """The library that a dotted path belongs to, None for other projects."""
        for library in self.libraries:
            if library.owns(path):
                return library
        return None

    def is_prefix(self, path: str) -> bool:
        """Whether a path is a namespace above a root (``megatron``)."""
        return any(root.startswith(path + ".") for library in self.libraries for root in library.roots)
