"""Puts ``verl_compat.pth`` beside the package, in wheels and in editable installs.

The rest of the build is in pyproject.toml.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

PTH = "verl_compat.pth"
# One line, ASCII, the standard library only; an orphaned file stays silent.
LINE = (
    "import sys; exec('try:\\n    from verl_compat._boot import start\\n    start()\\nexcept Exception:\\n    pass')\n"
)


class BuildWithPth(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            Path(self.build_lib, PTH).write_text(LINE, encoding="ascii")

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
                wheel.writestr(PTH, LINE)

        strategy.__class__ = WithPth
        return strategy


setup(cmdclass={"build_py": BuildWithPth, "editable_wheel": EditableWithPth})
