"""What counts as a use, a guard and a misfit, on small source trees; nothing is imported."""

# ruff: noqa: E501  (one snippet a line)

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("griffe", reason="needs the extra verl-compat[audit]")

from verl_compat.audit.findings import Result
from verl_compat.audit.judge.check import Checker
from verl_compat.audit.judge.repairs import Repairs
from verl_compat.audit.read.consumer import read_consumer
from verl_compat.audit.resolve.library import Library, World
from verl_compat.audit.trees import MAX_SOURCE, SourceTree
from verl_compat.records import Adapter, Add, Lacks, Provide, Replace


def tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    return folder


UPSTREAM = {
    "up/__init__.py": "from .core import Engine\n__version__ = '1.5'\n",
    "up/core.py": """
        import enum
        from dataclasses import dataclass

        class Kind(enum.Enum):
            one = 1

        @dataclass
        class Config:
            size: int
            name: str = "x"

        class Base:
            def __init__(self, config): self.config = config
            def close(self): ...

        class Engine(Base):
            @classmethod
            def load(cls, path, *, strict=True) -> "Engine": ...
            def run(self, x, mask=None): return self.run(x, mask=mask)
            @property
            def settings(self) -> Config: ...

        def make(a, b, *, c=1): ...
        """,
    "up/lazy.py": """
        _NAMES = {"Known": ".core"}
        def __getattr__(name): ...
        """,
    "up/star.py": "from .core import *\nfrom torch import *\n",
    "up/inner/mod.py": "value = 1\n",
    "up/typing_only.py": """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from .core import Engine
        for extra in ("a",):
            pass
        """,
}


@pytest.fixture
def audit(tmp_path: Path):
    upstream = tree(tmp_path / "up", UPSTREAM)

    def run(source: str, version: str = "1.5", files: dict[str, str] | None = None) -> Result:
        root = tree(tmp_path / "app", {"app/main.py": source, "app/__init__.py": "", **(files or {})})
        consumer = read_consumer("app", "1", root, [root / "app"], {"up": "up"})
        return Checker(consumer, World([Library("up", ["up"], SourceTree(upstream, version))])).run()

    return run


def shown(result: Result) -> list[tuple[int, str, str, str]]:
    return [(f.line, f.problem, f.symbol, f.guard) for f in result.findings]


@pytest.mark.parametrize(
    ("source", "problem", "symbol"),
    [
        ("from up.gone import X", "missing-module", "up.gone.X"),
        ("import up.gone", "missing-module", "up.gone"),
        ("from up.core import Gone", "missing-name", "up.core.Gone"),
        ("from up.core import Engine\nEngine.gone", "missing-attribute", "up.core.Engine.gone"),
        ("from up import Engine\nEngine.gone()", "missing-attribute", "up.core.Engine.gone"),
        ("import up.core as c\nc.Kind.two", "missing-attribute", "up.core.Kind.two"),
        ("import up.core\ndef f():\n    return up.core.gone(1)", "missing-attribute", "up.core.gone"),
        ("from up.core import make\nmake(1, 2, d=3)", "unknown-keyword", "up.core.make"),
        ("from up.core import make\nmake(1)", "missing-argument", "up.core.make"),
        ("from up.core import make\nmake(1, 2, 3)", "too-many-arguments", "up.core.make"),
        ("from up.core import Config\nConfig(colour=1, size=2)", "unknown-keyword", "up.core.Config"),
        ("from up.core import Config\nConfig()", "missing-argument", "up.core.Config"),
        ("from up import Engine\ne = Engine.load('p')\ne.gone()", "missing-attribute", "up.core.Engine.gone"),
        ("from up import Engine\nEngine.load('p', lax=1)", "unknown-keyword", "up.core.Engine.load"),
        ("from up import Engine\nEngine.load('p').settings.gone", "missing-attribute", "up.core.Config.gone"),
        ("from up.core import make\nclass A(make): ...", "became-function", "up.core.make"),
        ("from up.core import make\nisinstance(1, make)", "became-function", "up.core.make"),
        ("from unittest.mock import patch\npatch('up.core.gone')", "missing-patch-target", "up.core.gone"),
        ("from unittest import mock\nimport up.core as c\nmock.patch.object(c, 'gone')", "missing-patch-target", "up.core.gone"),
        ("from unittest.mock import patch\nT = ['up.core.gone.x']\nfor t in T:\n    patch(t)", "missing-patch-target", "up.core.gone.x"),
        ("import importlib\nimportlib.import_module('up.gone')", "missing-module", "up.gone"),
        ("from up import Engine\nclass A(Engine):\n    def run(self, x): ...", "override-signature", "up.core.Engine.run"),
        ("from up import Engine\ndef run(self, x): ...\nEngine.run = run", "override-signature", "up.core.Engine.run"),
        ("from up import Engine\ndef f(self): ...\nEngine.walk = f", "patch-without-effect", "up.core.Engine.walk"),
        ("from up import Engine\nclass A(Engine):\n    def f(self):\n        return self.gone", "missing-attribute", "up.core.Engine.gone"),
        ("from up import Engine\nclass A(Engine):\n    def __init__(self):\n        super().__init__(1, 2)", "too-many-arguments", "up.core.Engine"),
        ("from up.typing_only import Engine", "missing-name", "up.typing_only.Engine"),
        ("import functools\nfrom up.core import make\nfunctools.partial(make, d=1)", "unknown-keyword", "up.core.make"),
    ],
)  # fmt: skip
def test_found(audit, source: str, problem: str, symbol: str) -> None:
    findings = audit(source).findings
    assert [(f.problem, f.symbol, f.guard) for f in findings] == [(problem, symbol, "none")]


@pytest.mark.parametrize(
    "source",
    [
        "from up import Engine, core\ncore.make(1, 2, c=3)\nEngine.load('p').close()",
        "import up.inner.mod\nup.inner.mod.value.anything",
        "from up.inner import mod",
        "from up.star import make, anything_of_torch",
        "from up.lazy import Known, Unknown",
        "from up.typing_only import extra",
        "from up.core import make\nmake(*a)\nmake(**k)\nmake(1, 2, **k)",
        "from up.core import Kind\nKind.one.value\nKind['one']\nKind.__members__",
        "from up import Engine\ngetattr(Engine, 'gone', None)",
        "from up import Engine\nclass A(Engine):\n    def run(self, x, **kwargs): ...",
        "from up import Engine\nclass A(Engine):\n    def __init__(self):\n        self.mine = 1\n    def f(self):\n        return self.mine, self.config",
        "from up import Engine\ndef f(self): ...\nEngine.added = f\nEngine.load('p').added()",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from up.core import Gone",
        "import up\nup = object()\nup.gone",
        "from up.core import Config\nConfig(1)\nConfig(size=1, name='y')",
        "def f(kind):\n    from up.core import Kind\n    assert kind != Kind\n    if kind == Kind:\n        Kind.gone",
        "from up import Engine\ndef f(e):\n    e.gone()\nf(Engine.load('p'))\nf(object())",
    ],
)
def test_fine(audit, source: str) -> None:
    assert shown(audit(source)) == []


@pytest.mark.parametrize(
    ("source", "guard"),
    [
        ("try:\n    from up.core import Gone\nexcept ImportError:\n    Gone = None", "exception"),
        ("try:\n    from up.core import Gone\nexcept ImportError as e:\n    raise RuntimeError from e", "none"),
        ("try:\n    from up.core import Gone\nexcept ModuleNotFoundError:\n    pass", "none"),
        ("try:\n    import up.gone\nexcept ModuleNotFoundError:\n    pass", "exception"),
        ("try:\n    from up.core import Gone\nexcept TypeError:\n    pass", "none"),
        ("import contextlib\nwith contextlib.suppress(ImportError):\n    from up.core import Gone", "exception"),
        ("import up.core as c\nif hasattr(c, 'gone'):\n    c.gone()", "presence"),
        ("import up.core as c\nx = c.gone if hasattr(c, 'gone') else None", "presence"),
        ("import up.core as c\nhasattr(c, 'gone') and c.gone()", "presence"),
        ("import up.core as c\ndef f():\n    if not hasattr(c, 'gone'):\n        return\n    c.gone()", "presence"),
        ("import inspect\nfrom up.core import make\nif 'd' in inspect.signature(make).parameters:\n    make(1, 2, d=1)", "presence"),
        ("import up\nfrom packaging import version\nif version.parse(up.__version__) >= version.parse('2.0'):\n    from up.core import Gone", "version"),
        ("import up\nfrom packaging import version\nif version.parse(up.__version__) < version.parse('2.0'):\n    from up.core import Gone", "none"),
        ("import up\nfrom packaging.version import Version as V\nNEW = V(up.__version__)\ndef f():\n    if NEW < V('2'):\n        return\n    import up.gone", "version"),
        ("from importlib.metadata import version\nfrom packaging.version import parse\nif parse(version('up')) >= parse('2.0'):\n    import up.gone", "version"),
        ("from up import __version__\nif __version__ >= '1.6':\n    import up.gone", "version"),
        ("import up\nfrom packaging import version\ndef ge(minver, pkg='up'):\n    return version.parse(get_version(pkg)) >= version.parse(minver)\nif ge('2.0'):\n    import up.gone", "version"),
        ("import up\nfrom packaging.version import parse\ndef old():\n    import up.gone\ndef pick(v):\n    if v < parse('1.0'):\n        return old\npick(parse(up.__version__))", "version"),
    ],
)  # fmt: skip
def test_guards(audit, source: str, guard: str) -> None:
    assert {f.guard for f in audit(source).findings} == {guard}


def test_fallback_import(audit) -> None:
    good = "try:\n    from up.core import make\nexcept ImportError:\n    from up.gone import make"
    assert shown(audit(good)) == []
    bad = "try:\n    from up.lost import make\nexcept ImportError:\n    from up.gone import make"
    assert [(f.symbol, f.guard) for f in audit(bad).findings] == [
        ("up.lost.make", "exception"),
        ("up.gone.make", "none"),
    ]


def test_what_cannot_be_decided_is_said_and_never_reported(audit) -> None:
    result = audit("from up.lazy import Unknown\nfrom up.star import whatever\n")
    assert shown(result) == []
    assert {u.symbol: u.reason for u in result.undecided} == {
        "up.lazy.Unknown": "up.lazy has a __getattr__",
        "up.star.whatever": "from torch import *",
    }


def test_names_are_followed_through_the_consumer(audit) -> None:
    files = {
        "app/a.py": "from up import Engine as E\nclass Holder:\n    def __init__(self, engine):\n        self.engine = engine\n    def f(self):\n        self.engine.gone()\n",
    }
    result = audit("import up\nfrom app.a import E, Holder\nHolder(engine=E.load('p'))\n", files=files)
    assert [(f.file, f.line, f.symbol) for f in result.findings] == [("app/a.py", 6, "up.core.Engine.gone")]


def test_files_that_cannot_be_read_are_reported_and_the_rest_goes_on(audit, tmp_path: Path) -> None:
    files = {"app/py2.py": "import up\nprint 'x'\n", "app/large.py": "# up\n" + "x = 1\n" * (MAX_SOURCE // 6 + 1)}
    app = tree(tmp_path / "app", {"app/latin.py": ""})
    (app / "app" / "latin.py").write_bytes(
        "# -*- coding: latin-1 -*-\nname = 'é'\nfrom up.core import Lost\n".encode("latin-1")
    )
    (app / "app" / "loop").symlink_to(app / "app", target_is_directory=True)
    result = audit("from up.core import Gone", files=files)
    assert [(f.file, f.symbol) for f in result.findings] == [
        ("app/latin.py", "up.core.Lost"),
        ("app/main.py", "up.core.Gone"),
    ]
    reasons = dict(result.unread)
    assert "syntax error on line 2" in reasons["app/py2.py"]
    assert "more than the limit" in reasons["app/large.py"]


def test_deep_nesting_does_not_stop_the_audit(audit) -> None:
    deep = "up = " + "(" * 150 + "1" + ")" * 150 + "\n"
    result = audit(
        "from up.core import Gone", files={"app/deep.py": deep, "app/deeper.py": "import up\nx = " + "-" * 3000 + "1\n"}
    )
    assert [f.symbol for f in result.findings] == ["up.core.Gone"]


def adapter(**more: object) -> Adapter:
    fields = {
        "id": "up_lt_2_x", "kind": "backport", "summary": "x", "target": "up.core", "applies": {"up": ">=1,<2"},
        "tested": (), "needed": (), "patches": (), "why": "x", "links": (), "retire_when": {"up": ">=2"},
    }  # fmt: skip
    return Adapter(**{**fields, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "record", "repaired"),
    [
        ("from up.core import Gone", {"patches": (Add("Gone", "x:y"),)}, True),
        ("from up.core import Gone", {"patches": (Add("Other", "x:y"),)}, False),
        ("from up.core import Gone", {"patches": (Add("Gone", "x:y"),), "applies": {"up": ">=2"}}, False),
        ("from up.core import Gone", {"patches": (Add("Gone", "x:y"),), "applies": {"up": ">=1", "other": ">=1"}}, False),
        ("from up.core import Gone", {"patches": (Add("Gone", "x:y"),), "default": False}, False),
        ("from up.core import Gone", {"patches": (Add("Gone", "x:y"),), "needed": (Lacks("make"),)}, False),
        ("from up.gone import X", {"target": "up.gone", "patches": (Provide({"X": "a:b"}),)}, True),
        ("from up.gone import X", {"target": "up.gone", "patches": (Provide({"Y": "a:b"}),)}, False),
        ("from up import Engine\nEngine.load('p').extra()", {"patches": (Add("Base.extra", "x:y"),)}, True),
        ("from up.core import make\nmake(1, 2, d=3)", {"patches": (Replace("make", "x:y"),)}, True),
        ("def f():\n    import up.gone", {"target": "app.main", "patches": (Replace("f", "x:y"),)}, True),
        ("def g():\n    import up.gone\ndef f():\n    g()", {"target": "app.main", "patches": (Replace("f", "x:y"),)}, True),
        ("def g():\n    import up.gone\ndef f():\n    g()\ng()", {"target": "app.main", "patches": (Replace("f", "x:y"),)}, False),
    ],
)  # fmt: skip
def test_repairs_are_derived_from_the_records(
    tmp_path: Path, source: str, record: dict[str, object], repaired: bool
) -> None:
    upstream = tree(tmp_path / "up", UPSTREAM)
    root = tree(tmp_path / "app", {"app/main.py": source, "app/__init__.py": ""})
    consumer = read_consumer("app", "1", root, [root / "app"], {"up": "up"})
    world = World([Library("up", ["up"], SourceTree(upstream, "1.5"))])
    result = Repairs([adapter(**record)], consumer, world).mark(Checker(consumer, world).run())
    assert result.unguarded
    assert all(bool(f.repaired_by) is repaired for f in result.findings)
    assert len(result.left) == (0 if repaired else len(result.unguarded))


def test_json_has_the_documented_fields(audit) -> None:
    from verl_compat.audit.show.report import to_json

    data = json.loads(to_json([audit("from up.core import Gone")]))
    assert set(data) == {"format", "problems", "audits"}
    finding = data["audits"][0]["findings"][0]
    assert set(finding) == {
        "file", "line", "symbol", "provider", "problem", "detail", "guard", "condition", "scope", "repaired_by", "since",
    }  # fmt: skip
    assert finding["problem"] in data["problems"]
