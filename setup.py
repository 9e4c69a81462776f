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
# One line of ASCII, the standard library only.  Compiling is what a start pays for, most of it in memory
# that is touched for the first time.  So what need not be compiled is text: RING until the bell rings,
# HANG where the line is executed again (site executes the lines of a virtual environment twice).
LINE = "import os, sys; hasattr(sys, 'verl_compat_bell') or exec({hang!r})\n"
HANG = (
    "sys.verl_compat_bell = type('VerlCompatDoorbell', (), {{'find_spec': "
    "lambda bell, name, path=None, target=None: "
    "exec({ring!r}, here := locals()) or here['spec'] if name.partition('.')[0] in {roots!r} else None}})(); "
    "sys.meta_path.insert(0, sys.verl_compat_bell); "
    # every process reports where reports are asked for, whatever it imports
    "os.environ.get('VERL_COMPAT_REPORT_DIR') and sys.verl_compat_bell.find_spec({first!r})"
)


def targets():
    """The index of ``adapters/__init__.py``, read without importing it."""
    tree = ast.parse((HERE / "adapters" / "__init__.py").read_text(encoding="utf-8"))
    (found,) = [node.value for node in tree.body if isinstance(node, ast.AnnAssign)]
    return ast.literal_eval(found)


def pth_line():
    """What ``site`` executes: the doorbell, with the first words of all targets."""
    roots = tuple(sorted({target.partition(".")[0] for target in targets()}))
    ring = ast.parse((HERE / "compat" / "_ring.py").read_text(encoding="utf-8"))
    del ring.body[0]  # the docstring
    return LINE.format(hang=HANG.format(roots=roots, ring=ast.unparse(ring), first=roots[0]))


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
