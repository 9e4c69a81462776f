"""Adapter checkpoints of the wrong kind are named, in one error."""

import types

import pytest

from verl_compat.shims.adapter_formats import (
    DISTRIBUTED,
    HUGGING_FACE,
    RANK_FILES,
    AdapterFormatError,
    adapter_format,
    check_distributed_adapter,
    load_rank_adapter,
)

FILES = {
    RANK_FILES: ["mp_rank_00_adapter.pt", "mp_rank_01_000_002_adapter.pt"],
    DISTRIBUTED: ["metadata.json", ".metadata", "__0_0.distcp", "common.pt"],
    HUGGING_FACE: ["adapter_config.json", "adapter_model.safetensors"],
    None: ["README.md", "rank_adapter.pt"],
}


@pytest.fixture(params=list(FILES), ids=["ranks", "distributed", "hugging_face", "unknown"])
def kind(request):
    return request.param


@pytest.fixture
def directory(kind, tmp_path):
    for name in FILES[kind]:
        (tmp_path / name).touch()
    return tmp_path


def make_megatron_module(
    wrap_config, tf_config, hf_config, bridge=None, provider=None, peft_cls=None, peft_config=None
):
    return "built"


def test_formats_are_told_apart(kind, directory):
    assert adapter_format(str(directory)) == kind


def test_a_path_that_is_none_or_a_file_or_remote(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "absent", tmp_path / "file", "hdfs://cluster/adapter"):
        assert adapter_format(str(path)) is None


@pytest.mark.parametrize("config", [dict, lambda **items: types.SimpleNamespace(**items)])
def test_newer_verl(kind, directory, config):
    args = (make_megatron_module, 1, 2, 3)
    lora = config(adapter_path=str(directory))
    if kind in (DISTRIBUTED, None):
        assert check_distributed_adapter(*args, provider=1, peft_cls=1, peft_config=lora) == "built"
        return
    with pytest.raises(AdapterFormatError) as caught:
        check_distributed_adapter(*args, provider=1, peft_cls=1, peft_config=lora)
    text = str(caught.value)
    assert str(directory) in text
    assert f"holds {kind}, this verl reads {DISTRIBUTED}" in text
    if kind == RANK_FILES:
        assert "verl_compat.convert_adapter_checkpoint(model, source, target)" in text


def test_what_verl_would_not_load_is_not_looked_at(tmp_path):
    (tmp_path / "mp_rank_00_adapter.pt").touch()
    lora = {"adapter_path": str(tmp_path)}
    for unused in ({"provider": None, "peft_cls": 1}, {"provider": 1, "peft_cls": None}):
        assert check_distributed_adapter(make_megatron_module, 1, 2, 3, peft_config=lora, **unused) == "built"
    for nothing in (None, {}, {"adapter_path": None}, {"adapter_path": ""}):
        given = {"provider": 1, "peft_cls": 1, "peft_config": nothing}
        assert check_distributed_adapter(make_megatron_module, 1, 2, 3, **given) == "built"
    with pytest.raises(TypeError, match=r"make_megatron_module\(\) missing"):
        check_distributed_adapter(make_megatron_module, 1)


def test_verl_0_7(kind, directory):
    calls = []
    given = (lambda *args, **kwargs: calls.append((args, kwargs)), "model", str(directory))
    if kind in (RANK_FILES, None):
        load_rank_adapter(*given, strict=False)
        assert calls == [(("model", str(directory)), {"strict": False})]
        return
    with pytest.raises(AdapterFormatError, match="this verl reads per-rank .pt files"):
        load_rank_adapter(*given)
    assert calls == []
