"""Puts ``verl_compat.pth`` beside the package, in wheels and in editable installs.

The rest of the build is in pyproject.toml.
"""

import ast
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

HERE = Path(__file__).parent
PTH = "verl_compat.pth"


def assigned(tree, name):
    """The top-level statement that assigns ``name``."""
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == name:
            return node
    raise LookupError(name)


def pth_line():
    """``compat/_pth.py`` as the one line that ``site`` executes, with the roots of all targets."""
    index = ast.parse((HERE / "adapters" / "__init__.py").read_text(encoding="utf-8"))
    targets = ast.literal_eval(assigned(index, "TARGETS").value)
    source = ast.parse((HERE / "compat" / "_pth.py").read_text(encoding="utf-8"))
    roots = sorted({target.partition(".")[0] for target in targets})
    assigned(source, "ROOTS").value = ast.parse(repr(roots), mode="eval").body
    for node in ast.walk(source):
        if ast.get_docstring(node) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) else None:
            node.body = node.body[1:]
    # a namespace of its own: the line runs inside a function of site.py
    return f"import sys; exec({ast.unparse(source)!r}, {{'__name__': {PTH!r}}})\n"


class BuildWithPth(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            Path(self.build_lib, PTH).write_text(pth_line(), encoding="ascii")

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        outputs = super().get_outputs(include_bytecode)
        return outputs if self.editable_mode else [*outputs, str(Path(self.build_lib, PTH))]


class EditableWithPth(editable_wheel):
    def _select_strategy(self, name, tag, build_lib):
        strategy = super()._select_strategy(name, tag, build_lib)
        original = type(strategy).__call__

        class WithPth(type(strategy)):
            def __call__(self, wheel, files, mapping):
                original(self, wheel, files, mapping)
                wheel.writestr(PTH, pth_line())

        strategy.__class__ = WithPth
        return strategy


setup(cmdclass={"build_py": BuildWithPth, "editable_wheel": EditableWithPth})
