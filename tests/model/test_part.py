"""Parts of a model, one after the other and side by side, are the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_parts import BATCHES, Partitioned, whole
from quantised_folders import awq, compressed

from orcaserve.core.errors import ConfigError, UnsupportedModel
from orcaserve.model.kv_manager import KVManager
from orcaserve.model.loader import ModelFiles
from orcaserve.model.parameter import Floats
from orcaserve.model.part import Part, share
from orcaserve.native._kernels import Team
from orcaserve.native.builder import NativeBuilder
from orcaserve.native.cutting import cut_inputs
from orcaserve.native.exact_inputs import build_part
from orcaserve.native.kv_region import KVRegion
from orcaserve.native.model import NativeModel
from orcaserve.native.packing import unpack
from orcaserve.native.precision import choose_precision

QUANTISED: dict[str, Any] = {
    "awq": lambda source, root: awq(source, root, 32),
    "w4a16": lambda source, root: compressed(source, root, 4, 64, symmetric=False),
    "w8a8": lambda source, root: compressed(source, root, 8, "channel", packed=False),
}


@pytest.fixture(scope="module")
def llama(tiny_llama: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("llama")
    tiny_llama(num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=3, intermediate_size=224,
               attention_bias=True, mlp_bias=True).save_pretrained(folder)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def gpt2(tiny_gpt2: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("gpt2")
    tiny_gpt2().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("splits", [(), (1,), (2, 3), (1, 2, 3)])
def test_stages_are_the_model_to_the_bit(splits: Sequence[int], llama: Path) -> None:
    parts = Partitioned(llama, splits, 1)
    for batch, expected in zip(BATCHES, whole(llama), strict=True):
        assert np.array_equal(parts.step(batch), expected)


@pytest.mark.parametrize("splits", [(), (3,)])
@pytest.mark.parametrize("n_shards", [2, 3])
def test_shards_are_the_model(n_shards: int, splits: Sequence[int], llama: Path) -> None:
    """Sums run in another order: equal but for rounding."""
    parts = Partitioned(llama, splits, n_shards)
    for batch, expected in zip(BATCHES, whole(llama), strict=True):
        actual = parts.step(batch)
        assert np.allclose(actual, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("n_shards", [2, 3])
def test_over_shards_too_a_request_has_the_same_bits_in_any_company(
    n_shards: int, quantization: str, llama: Path
) -> None:
    """Sums over shards run shard by shard, however many rows there are; pieces and whole, first, last and alone."""
    text = [(5 * i + 3) % 131 for i in range(540)]
    alone = Partitioned(llama, (2,), n_shards, quantization).step([(0, text)])[0]
    parts = Partitioned(llama, (2,), n_shards, quantization)
    parts.step([(1, [9] * 30), (0, text[:500]), (2, [4])])
    together = parts.step([(2, [8]), (1, [7]), (0, text[500:]), (3, list(range(77)))])
    assert np.array_equal(together[2], alone)


def test_sums_of_long_batches_are_announced(llama: Path) -> None:
    """Rows go through in pieces and blocks, and each sum but a piece's first has the size that the one before told."""
    batch = [(0, [(7 * i) % 131 for i in range(1300)]), (1, [5, 6, 7])]
    parts = Partitioned(llama, (2,), 2)
    expected = whole(llama, batches=[batch])[0]
    actual = parts.step(batch)
    assert np.allclose(actual, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert all(len(sums.sizes) > 1 for sums in parts.sums)


def test_stacked_and_transposed_matrices(gpt2: Path) -> None:
    parts = Partitioned(gpt2, (1,), 2)
    for batch, expected in zip(BATCHES, whole(gpt2), strict=True):
        assert np.allclose(parts.step(batch), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_shards_of_integers(quantization: str, llama: Path) -> None:
    exact = whole(llama)
    parts = Partitioned(llama, (2,), 3, quantization)
    for batch, expected, rough in zip(BATCHES, exact, whole(llama, quantization), strict=True):
        error = np.sqrt(np.square(parts.step(batch) - expected).mean())
        assert error < 2 * np.sqrt(np.square(rough - expected).mean()) + 1e-3


@pytest.mark.parametrize("form", QUANTISED)
def test_shards_of_quantised_folders(form: str, tiny_llama: Any, tmp_path: Path) -> None:
    """In floats they are the model with the plain weights; in integers, the shards of the same model's integers."""
    sizes = {"hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2}
    tiny_llama(num_hidden_layers=1, **sizes).save_pretrained(tmp_path / "source")
    made = QUANTISED[form](tmp_path / "source", tmp_path)
    parts, expected = Partitioned(made.folder, (), 2), whole(made.plain)[0]
    assert np.allclose(parts.step(BATCHES[0]), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    four_bits = Partitioned(made.folder, (), 2, "int4").step(BATCHES[0])
    rough = whole(made.folder, "int4")[0]
    assert np.abs(four_bits - rough).max() < 0.3 * rough.std()


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_blocks_larger_than_a_shard(kind: str, tiny_llama: Any, save_gguf: Any, tmp_path: Path) -> None:
    """Blocks of 256 are cut through by 2 and 3 shards: integers are packed from whole blocks, floats are refused."""
    sizes = {"hidden_size": 768, "intermediate_size": 768, "num_attention_heads": 12, "num_key_value_heads": 6}
    path = tmp_path / "model.gguf"
    save_gguf(tiny_llama("qwen2", num_hidden_layers=1, tie_word_embeddings=False, **sizes), path, kind)
    for quantization in ("int8", "int4"):
        with ModelFiles(path) as files:
            precision, team = choose_precision("float32", quantization, files.matrix_kinds), Team(2)
            plain = files.load(NativeBuilder(precision, team)).layers[0]
            for n in (2, 3):
                parts = [Part(files.spec, range(1), shard, n) for shard in range(n)]
                shards = [files.load_part(NativeBuilder(precision, team), part).layers[0] for part in parts]
                columns = {"out": lambda p: range(p.heads.start * 64, p.heads.stop * 64), "down": lambda p: p.columns}
                for name, of in columns.items():
                    for part, shard in zip(parts, shards, strict=True):
                        theirs, own = cut_inputs(getattr(plain, name), of(part)), getattr(shard, name)
                        assert (theirs.format, len(of(part))) == (own.format, own.n_in)
                        assert np.array_equal(unpack(theirs), unpack(own))
    with ModelFiles(path) as files, pytest.raises(UnsupportedModel, match="blocks hold 256"):
        build_part(files, choose_precision("float32", "none", {"F32"}), Team(1), Part(files.spec, range(1), 0, 2))
    parts, rough, exact = Partitioned(path, (), 2, "int8"), whole(path, "int8")[0], whole(path)[0]
    error = np.sqrt(np.square(parts.step(BATCHES[0]) - exact).mean())
    assert error < 2 * np.sqrt(np.square(rough - exact).mean()) + 1e-3


@pytest.mark.parametrize("form", QUANTISED)
def test_blocks_of_quantised_folders_are_not_cut_through(form: str, tiny_llama: Any, tmp_path: Path) -> None:
    """Three heads of 16 dimensions in each shard, blocks of 32."""
    tiny_llama(num_hidden_layers=1, intermediate_size=192).save_pretrained(tmp_path / "source")
    made = QUANTISED[form](tmp_path / "source", tmp_path)
    with pytest.raises(UnsupportedModel, match=r"o_proj.*blocks hold 32.*--tensor-parallel-size"):
        Partitioned(made.folder, (), 2)


@pytest.mark.parametrize("n_shards", [2, 3])
def test_the_default_model_in_its_own_blocks(n_shards: int, default_model: Path) -> None:
    """Its file's blocks are cut at their edges, its queries and keys are turned: the same best tokens."""
    batch = BATCHES[0]
    parts = Partitioned(default_model, (10,), n_shards)
    expected = whole(default_model)[0]
    actual = parts.step(batch)
    assert np.allclose(actual, expected, rtol=1e-3, atol=2e-3 * np.abs(expected).max())
    assert np.array_equal(actual.argmax(1), expected.argmax(1))


def test_impossible_parts(llama: Path, tiny_llama: Any, tmp_path: Path) -> None:
    with ModelFiles(llama) as files:
        spec = files.spec
        for layers in (range(0), range(3, 2), range(2, 5), range(-1, 2), range(0, 4, 2)):
            with pytest.raises(ConfigError, match="layers"):
                Part(spec, layers)
        with pytest.raises(ConfigError, match="shard"):
            Part(spec, range(4), 2, 2)
        with pytest.raises(ConfigError, match=r"at most 3.*3 key/value heads"):
            Part(spec, range(4), 0, 4)
        team = Team(1)
        part = Part(spec, range(4), 0, 2)
        weights = build_part(files, choose_precision("float32", "none", {"F32"}), team, part)
        with pytest.raises(ValueError, match="all_reduce"):
            NativeModel(spec, weights, team, part)
        with pytest.raises(ValueError, match="must be"):
            NativeModel(spec, weights, team, Part(spec, range(4), 1, 2), lambda x: None)


def test_an_error_of_the_sum_is_raised(llama: Path) -> None:
    def fail(x: Floats, _: int) -> None:
        raise RuntimeError("the other shard is gone")

    with ModelFiles(llama) as files:
        team, part = Team(1), Part(files.spec, range(4), 0, 2)
        weights = build_part(files, choose_precision("float32", "none", {"F32"}), team, part)
        model = NativeModel(files.spec, weights, team, part, fail)
    pages = KVManager(64, 16)
    region = KVRegion(part.own_spec, pages.n_pages, 16, "float32")
    with pytest.raises(RuntimeError, match="the other shard is gone"):
        model.forward(np.array([1, 2], np.int32), pages.lay_out([(0, 2)]), region)


def test_blocks_are_not_cut_through(tmp_path: Path) -> None:
    """Heads of 16 dimensions and blocks of 32 numbers: the columns of `out` cannot be divided by heads."""
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "odd.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    rng = np.random.default_rng(0)
    sizes = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": 32,
        "feed_forward_length": 128,
        "head_count": 2,
    }
    for name, value in sizes.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(64)])
    shapes = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (32, 32))
    shapes |= {"ffn_gate": (128, 32), "ffn_up": (128, 32), "ffn_down": (32, 128)}
    q8 = gguf.GGMLQuantizationType.Q8_0
    for name, shape in shapes.items():
        blocks = gguf.quants.quantize(rng.standard_normal(shape).astype(np.float32), q8)
        writer.add_tensor(f"blk.0.{name}.weight", blocks, raw_dtype=q8)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(32, np.float32))
    writer.add_tensor("token_embd.weight", rng.standard_normal((64, 32)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with ModelFiles(path) as files, pytest.raises(UnsupportedModel, match=r"attn_output.*blocks hold 32"):
        build_part(files, choose_precision("float32", "none", {"Q8_0"}), Team(1), Part(files.spec, range(1), 0, 2))


@given(n=st.integers(1, 500), n_parts=st.integers(1, 9), unit=st.sampled_from([1, 3, 64]))
def test_shares_cover_everything_evenly(n: int, n_parts: int, unit: int) -> None:
    shares = [share(n, i, n_parts, unit) for i in range(n_parts)]
    assert [i for run in shares for i in run] == list(range(n))
    units = [-(-len(run) // unit) for run in shares]
    assert max(units) - min(units) <= 1
