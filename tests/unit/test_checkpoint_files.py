"""Writing beside and moving into place, without torch: one process, real files."""

import sys
import types

import pytest

from verl_compat.shims import checkpoint_files
from verl_compat.shims.checkpoint_files import CheckpointSaveError, beside


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    """No process group: what torch says without one."""
    distributed = types.ModuleType("torch.distributed")
    distributed.is_available = lambda: False
    torch = types.ModuleType("torch")
    torch.distributed = distributed
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_dot_", ".")).write_text(text)


def content(folder):
    return {file.name: file.read_text() for file in folder.iterdir()}


def fail_while_saving(path):
    with beside(str(path)) as staging:
        assert list(type(path)(staging).iterdir()) == []
        write(type(path)(staging), x_dot_distcp="half")
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_or_empty_directory(tmp_path, exists):
    path = tmp_path / "a" / "b"
    if exists:
        path.mkdir(parents=True)
    with beside(str(path)) as staging:
        write(type(path)(staging), x_dot_distcp="new")
        assert not path.exists() or not list(path.iterdir())
    assert content(path) == {"x.distcp": "new"}
    assert [file.name for file in path.parent.iterdir()] == ["b"]


def test_old_shards_go_and_foreign_files_stay(tmp_path):
    path = tmp_path / "b"
    write(path, x_dot_distcp="old", y_dot_distcp="old", notes="mine", _dot_metadata="old")
    with beside(str(path)) as staging:
        write(type(path)(staging), x_dot_distcp="new", _dot_metadata="new")
    assert content(path) == {"x.distcp": "new", ".metadata": "new", "notes": "mine"}


def test_a_failed_write_leaves_all_as_it_was(tmp_path):
    path = tmp_path / "b"
    write(path, x_dot_distcp="old")
    with pytest.raises(CheckpointSaveError, match=r"was not saved to .*No space left.*before is untouched"):
        fail_while_saving(path)
    assert content(path) == {"x.distcp": "old"}
    assert [file.name for file in tmp_path.iterdir()] == ["b"]


def test_an_interrupt_is_not_renamed(tmp_path):
    with pytest.raises(KeyboardInterrupt), beside(str(tmp_path / "b")):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_the_ranks_that_failed_are_named(tmp_path):
    class CheckpointException(BaseException):
        failures = {3: (OSError(28, "No space left on device"), None)}  # noqa: RUF012

    with pytest.raises(CheckpointSaveError, match=r"rank 3: \[Errno 28\] No space"), beside(str(tmp_path / "b")):
        raise CheckpointException


def test_a_failed_move_puts_the_old_one_back(tmp_path, monkeypatch):
    path = tmp_path / "b"
    write(path, x_dot_distcp="old")
    real, calls = checkpoint_files.os.replace, []

    def replace(source, target):
        calls.append(source)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        real(source, target)

    monkeypatch.setattr(checkpoint_files.os, "replace", replace)
    with pytest.raises(CheckpointSaveError, match="Input/output error"), beside(str(path)) as staging:
        write(type(path)(staging), x_dot_distcp="new")
    assert content(path) == {"x.distcp": "old"}


def test_what_a_killed_save_left_is_recovered(tmp_path):
    path = tmp_path / "b"
    write(tmp_path / ".b.saving", x_dot_distcp="half")
    write(tmp_path / ".b.saving.old", x_dot_distcp="old", notes="mine")
    with pytest.raises(CheckpointSaveError):
        fail_while_saving(path)
    assert content(path) == {"x.distcp": "old", "notes": "mine"}


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointSaveError, match="was not saved to"), beside(str(tmp_path / "file" / "b")):
        pytest.fail("there is nowhere to write")
