"""Which backend a device gets, and what each of them refuses."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orcaserve.checkpoint.converted import WEIGHTS
from orcaserve.config import EngineConfig, KVConfig, ModelConfig
from orcaserve.core import Batch, BatchEntry, CheckpointError, ConfigError, Phase, SamplingParams, UnsupportedModel
from orcaserve.native.convert import convert
from orcaserve.worker.backend import load_backend, settle_device
from orcaserve.worker.native_backend import NativeBackend
from orcaserve.worker.reference_backend import ReferenceBackend
from orcaserve.worker.worker import Worker

sys.path.insert(0, str(Path(__file__).parents[1]))
from family_cases import make


def config(path: Path, kv: str = "auto", page_size: int = 16, **model: Any) -> EngineConfig:
    return EngineConfig(ModelConfig(path, "tiny", **model), KVConfig(n_slots=64, dtype=kv, page_size=page_size))


def test_the_device_chooses(tiny_model: Path) -> None:
    assert isinstance(load_backend(config(tiny_model), 1), NativeBackend)
    assert isinstance(load_backend(config(tiny_model, device="reference"), 1), ReferenceBackend)


@pytest.mark.parametrize("device", ["tpu", "cuda:", "cuda:x", "", "CPU", "gpu"])
def test_unknown_devices(device: str, tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match="--device: must be cpu, cuda, cuda:N or reference"):
        config(tiny_model, device=device)


def test_a_device_that_is_not_there(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match="--device: PyTorch finds no cuda:0 here"):
        load_backend(config(tiny_model, device="cuda:0"), 1)


def test_where_the_kernels_are_not_built(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr("orcaserve.native")
    monkeypatch.setitem(sys.modules, "orcaserve.native", None)  # makes its import raise ImportError
    assert isinstance(load_backend(config(tiny_model), 1), ReferenceBackend)
    assert "in PyTorch, slowly" in caplog.text
    with pytest.raises(ConfigError, match="--quantization: int8 weights need the CPU's kernels"):
        load_backend(config(tiny_model, quantization="int8"), 1)


def test_the_reference_has_no_integers(tiny_model: Path) -> None:
    for setting, says in (({"quantization": "int4"}, "--quantization"), ({"kv": "int8"}, "--kv-cache-dtype")):
        with pytest.raises(ConfigError, match=says):
            load_backend(config(tiny_model, device="reference", **setting), 1)


@pytest.mark.parametrize(
    ("settings", "bytes_of_a_slot"),
    [
        ({}, 2 * 2 * 2 * 8 * 4),
        ({"kv": "bfloat16"}, 2 * 2 * 2 * 8 * 2),
        ({"dtype": "bfloat16"}, 2 * 2 * 2 * 8 * 2),
        ({"kv": "int8"}, 2 * 2 * 2 * (8 + 4)),
        ({"quantization": "int8"}, 2 * 2 * 2 * (8 + 4)),
        ({"quantization": "int4", "kv": "float32"}, 2 * 2 * 2 * 8 * 4),
    ],
)
def test_keys_and_values_go_with_the_weights_unless_told(
    settings: dict[str, Any], bytes_of_a_slot: int, tiny_model: Path
) -> None:
    assert load_backend(config(tiny_model, **settings), 1).slot_bytes == bytes_of_a_slot


def test_pages_that_the_kernels_cannot_read(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match="multiple of 16"):
        load_backend(config(tiny_model, page_size=8), 1)


def test_heads_that_the_kernels_cannot_read(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 6 dimensions, and with LayerNorms of their own, which zeros would change."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.7}
    make("phi, norms", hidden_size=36, rope_parameters=rope).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=r"heads of 6 dimensions.*--device reference"):
        load_backend(config(tmp_path), 1)
    with caplog.at_level("WARNING", "orcaserve"):
        settled = settle_device(config(tmp_path))
    assert settled == config(tmp_path, device="reference") and "heads of 6 dimensions" in caplog.text
    assert isinstance(load_backend(settled, 1), ReferenceBackend)
    assert settle_device(config(tiny_model)) == config(tiny_model)
    for flag, wants in (
        ("--deterministic", replace(config(tmp_path), deterministic=True)),
        ("--quantization", config(tmp_path, quantization="int8")),
        ("--kv-cache-dtype", config(tmp_path, kv="int8")),
    ):
        with pytest.raises(ConfigError, match=f"{flag}: this model runs in PyTorch.*lack norms of heads of 6"):
            settle_device(wants)
    monkeypatch.setattr("orcaserve.worker.backend.find_spec", lambda name: None)
    with pytest.raises(UnsupportedModel, match=r"runs in PyTorch, which is not here \(.*heads of 6.*pip install"):
        settle_device(config(tmp_path))


@pytest.fixture
def converted(tiny_model: Path, tmp_path: Path) -> Callable[..., Path]:
    def make(dtype: str = "auto", quantization: str = "auto") -> Path:
        convert(tiny_model, tmp_path / "converted", dtype, quantization, n_threads=1)
        return tmp_path / "converted"

    return make


def test_a_converted_model_has_the_weights_it_was_given(converted: Callable[..., Path]) -> None:
    folder = converted(quantization="int8")
    for settings in ({}, {"quantization": "int8"}):
        assert load_backend(config(folder, **settings), 1).slot_bytes == 2 * 2 * 2 * (8 + 4)
    assert load_backend(config(folder, kv="float32"), 1).slot_bytes == 2 * 2 * 2 * 8 * 4
    for settings in ({"quantization": "none"}, {"quantization": "int4"}, {"dtype": "bfloat16"}):
        with pytest.raises(ConfigError, match="this model was converted with"):
            load_backend(config(folder, **settings), 1)


def test_sizes_that_do_not_belong_together(converted: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A description that is whole and wrong: its own checksums cannot show that."""
    from dataclasses import replace

    from orcaserve.native import packed_model

    folder, load = converted(), packed_model.load_packed
    for change in ({"hidden_size": 48}, {"vocab_size": 300}, {"n_heads": 2}, {"intermediate_size": 100}):

        def wrong(path: Path, n_threads: int, change: Any = change) -> Any:
            spec, precision, weights = load(path, n_threads)
            return replace(spec, **change), precision, weights

        monkeypatch.setattr("orcaserve.worker.native_backend.load_packed", wrong)
        with pytest.raises(CheckpointError):
            load_backend(config(folder), 1)
    assert (folder / WEIGHTS).exists()


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_an_iteration_shows_progress_and_nothing_else_does(device: str, tiny_model: Path) -> None:
    worker = Worker.load(config(tiny_model, device=device))
    idle = worker.progress
    assert worker.progress == idle
    worker.run(Batch(1, (BatchEntry(1, Phase.INITIATION, [1, 2, 3], 0, SamplingParams(max_tokens=4)),)))
    first = worker.progress
    assert first != idle and worker.progress == first
    worker.run(Batch(2, (BatchEntry(1, Phase.INCREMENT, [4], 3),)))
    assert worker.progress not in (idle, first)
