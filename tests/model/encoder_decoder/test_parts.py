"""Parts of a model with two stacks, one after the other and side by side, are the model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from orcaserve.checkpoint.safetensors import SafetensorsFile
from orcaserve.config import ParallelConfig
from orcaserve.core.errors import ConfigError
from orcaserve.model.encoder_decoder.loader import EncoderDecoderFiles
from orcaserve.model.encoder_decoder.part import EncoderDecoderPart
from orcaserve.model.encoder_decoder.spec import EncoderDecoderSpec, StackSpec
from orcaserve.model.reference.encoder_decoder import load_encoder_decoder_part
from orcaserve.worker.plan import split_stacks

sys.path.insert(0, str(Path(__file__).parents[2]))
from encoder_decoders import PAGE, Running, TwoStacks, save
from parted import CPU, Partitioned

CUT = ("t5", "t5 v1.1", "bart scaled, forced", "bart relu, two tables", "marian odd width")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("cut")
    for kind in CUT:
        save(kind, root / kind)
    return {kind: root / kind for kind in CUT}


def spec_of(folder: Path) -> EncoderDecoderSpec:
    with EncoderDecoderFiles(folder) as files:
        return files.spec


class Compared:
    """What a whole model does in company: texts and logits."""

    def __init__(self, folder: Path) -> None:
        self.logits: list[Tensor] = []
        self.texts = Running(folder).in_company(10, self.logits.append)


@pytest.fixture(scope="module")
def wholes(folders: dict[str, Path]) -> dict[str, Compared]:
    return {kind: Compared(folder) for kind, folder in folders.items()}


def run_cut(folder: Path, splits: Sequence[int], n_shards: int) -> tuple[list[list[int]], list[Tensor]]:
    logits: list[Tensor] = []
    cut = Partitioned(folder, splits, n_shards, TwoStacks, PAGE)
    return Running(folder, cut).in_company(10, logits.append), logits


@pytest.mark.parametrize(("p", "t"), [(1, 2), (2, 1), (2, 2), (3, 1), (3, 2), (1, 3)])
@pytest.mark.parametrize("kind", CUT)
def test_texts_are_those_of_one_process(
    kind: str, p: int, t: int, folders: dict[str, Path], wholes: dict[str, Compared]
) -> None:
    """Stages to the bit; sums over shards run in another order, and heads are uneven where BART's encoder has 3."""
    stages = split_stacks(spec_of(folders[kind]), ParallelConfig(p, t))
    texts, logits = run_cut(folders[kind], [stage.start for stage in stages[1:]], t)
    assert texts == wholes[kind].texts
    for got, expected in zip(logits, wholes[kind].logits, strict=True):
        if t == 1:
            assert torch.equal(got, expected)
        else:
            assert torch.allclose(got, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("splits", [(1,), (2,), (3,), (4,), (1, 2), (1, 3, 4), (1, 2, 3, 4)])
@pytest.mark.parametrize("kind", ["t5", "marian odd width"])
def test_a_cut_may_go_anywhere(
    kind: str, splits: Sequence[int], folders: dict[str, Path], wholes: dict[str, Compared]
) -> None:
    texts, logits = run_cut(folders[kind], splits, 1)
    assert texts == wholes[kind].texts
    assert all(map(torch.equal, logits, wholes[kind].logits))


@pytest.mark.parametrize("kind", CUT)
def test_a_part_reads_its_own_tensors_and_no_others(
    kind: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only T5's tables of distances belong to all layers of a stack."""
    spec = spec_of(folders[kind])
    read: list[str] = []
    for way in ("read", "stored"):
        plain = getattr(SafetensorsFile, way)
        noted = lambda self, name, *rest, plain=plain: (read.append(name), plain(self, name, *rest))[1]  # noqa: E731
        monkeypatch.setattr(SafetensorsFile, way, noted)
    seen: list[set[str]] = []
    for start, stop in pairwise([0, 1, spec.encoder.n_layers + 1, spec.n_stacked]):
        read.clear()
        part = EncoderDecoderPart(spec, range(start, stop))
        load_encoder_decoder_part(folders[kind], part, torch.float32, CPU, None)
        seen.append(set(read))
    with closing(SafetensorsFile(folders[kind] / "model.safetensors")) as file:
        layers = {name for name in file.tensors if ".block." in name or ".layers." in name}
    inside = [names & layers for names in seen]
    assert inside[0] | inside[1] | inside[2] == layers
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert all("relative_attention_bias" in name for name in inside[one] & inside[other])
    assert all("encoder." in name for name in inside[0]) and all("decoder." in name for name in inside[2])
    first, middle, last = seen
    assert not any(word in name for name in middle for word in ("shared", "lm_head", "embed", "final_logits_bias"))
    if spec.norm == "rms":
        assert "encoder.final_layer_norm.weight" in middle - first - last
        assert "decoder.final_layer_norm.weight" in last - first - middle


def test_shards_have_their_own_rows(folders: dict[str, Path]) -> None:
    """BART's encoder has 3 heads of 16, its decoder 6 of 8; 72 and 88 columns; 97 tokens."""
    spec = spec_of(folders["bart relu, two tables"])
    for shard, (heads, columns, wide, own) in enumerate([(1, 32, 40, 48), (2, 40, 48, 49)]):
        part = EncoderDecoderPart(spec, range(spec.n_stacked), shard, 2)
        model = load_encoder_decoder_part(folders["bart relu, two tables"], part, torch.float32, CPU, lambda x: None)
        encoder, decoder = model.weights.encoder.layers[0], model.weights.decoder.layers[0]
        assert encoder.qkv.weight.shape == (3 * heads * 16, 48) and encoder.out.weight.shape == (48, heads * 16)
        assert encoder.up.weight.shape == (columns, 48) and decoder.down.weight.shape == (48, wide)
        assert decoder.cross is not None and decoder.cross.kv.weight.shape == (2 * 3 * 8, 48)
        assert model.weights.head is not None and model.weights.head.weight.shape == (own, 48)
        assert (decoder.out.bias is not None) == (shard == 0), "added once, where sums are added up"
        assert decoder.qkv.bias is not None and decoder.cross.q.bias is not None
    own_spec = EncoderDecoderPart(spec, range(2, 4), 1, 2).own_spec
    assert (own_spec.n_layers, own_spec.n_kv_heads, own_spec.head_dim) == (1, 3, 8)


def test_shards_need_sums(folders: dict[str, Path]) -> None:
    spec = spec_of(folders["t5"])
    for shards, reduce, words in ((2, None, "2 shards, and no"), (1, lambda x: None, "1 shards, and an")):
        part = EncoderDecoderPart(spec, range(spec.n_stacked), 0, shards)
        with pytest.raises(ValueError, match=f"{words} all_reduce"):
            load_encoder_decoder_part(folders["t5"], part, torch.float32, CPU, reduce)


def sizes(encoder: StackSpec, decoder: StackSpec, vocabulary: int = 100) -> EncoderDecoderSpec:
    return EncoderDecoderSpec(
        vocabulary, 64, 64, 32, encoder, decoder, "rms", 1e-6, True, False, "relu", False, "relative", True, 0, 8, 16
    )


stacks = st.builds(StackSpec, st.integers(1, 30), st.integers(1, 12), st.integers(1, 16), st.integers(1, 300))


@given(encoder=stacks, decoder=stacks, n_stages=st.integers(1, 12), vocabulary=st.integers(1, 20_000))
def test_every_layer_has_one_stage(encoder: StackSpec, decoder: StackSpec, n_stages: int, vocabulary: int) -> None:
    spec = sizes(encoder, decoder, vocabulary)
    if n_stages > spec.n_stacked:
        with pytest.raises(ConfigError, match=f"^--pipeline-parallel-size: must be at most {spec.n_stacked}: "):
            split_stacks(spec, ParallelConfig(n_stages))
        return
    parts = [EncoderDecoderPart(spec, layers) for layers in split_stacks(spec, ParallelConfig(n_stages))]
    assert len(parts) == n_stages
    assert [layer for part in parts for layer in part.layers] == list(range(spec.n_stacked))
    assert [layer for part in parts for layer in part.encoder_layers] == list(range(encoder.n_layers))
    assert [layer for part in parts for layer in part.decoder_layers] == list(range(decoder.n_layers))
    assert [part.ends_encoder for part in parts].count(True) == 1
    assert all(len(part.encoder_layers) + len(part.decoder_layers) == len(part.layers) > 0 for part in parts)
    assert sum(part.own_spec.n_layers for part in parts) == decoder.n_layers
    holding = [len(part.decoder_layers) for part in parts if part.decoder_layers]
    assert len(holding) == min(n_stages, decoder.n_layers), "nobody idles in increments who need not"
    assert max(holding[:-1], default=0) - min(holding[:-1], default=0) <= 1
    ahead = [len(part.layers) for part in parts if not part.decoder_layers]
    assert max(ahead, default=0) - min(ahead, default=0) <= 1


@given(encoder=stacks, decoder=stacks, n_shards=st.integers(1, 13))
def test_every_head_and_column_has_one_shard(encoder: StackSpec, decoder: StackSpec, n_shards: int) -> None:
    spec = sizes(encoder, decoder)
    most = min(min(stack.n_heads, -(-stack.intermediate_size // 8)) for stack in (encoder, decoder))
    if n_shards > most:
        with pytest.raises(ConfigError, match=f"^--tensor-parallel-size: must be at most {most}: "):
            EncoderDecoderPart(spec, range(1), 0, n_shards)
        return
    parts = [EncoderDecoderPart(spec, range(1), shard, n_shards) for shard in range(n_shards)]
    assert [token for part in parts for token in part.vocabulary] == list(range(spec.vocab_size))
    for stack in (encoder, decoder):
        assert [head for part in parts for head in part.heads(stack)] == list(range(stack.n_heads))
        assert [column for part in parts for column in part.columns(stack)] == list(range(stack.intermediate_size))
        assert all(part.heads(stack) and part.columns(stack) for part in parts)


def test_layers_as_asked_for() -> None:
    spec = sizes(StackSpec(4, 4, 8, 64), StackSpec(3, 4, 8, 64))
    assert split_stacks(spec, ParallelConfig(2, layer_split=(4, 3))) == [range(4), range(4, 7)]
    assert split_stacks(spec, ParallelConfig(3, layer_split=(2, 3, 2))) == [range(2), range(2, 5), range(5, 7)]
    with pytest.raises(ConfigError, match=r"^--layer-split: adds up to 3, .* 4 layers in its encoder and 3 in its dec"):
        split_stacks(spec, ParallelConfig(2, layer_split=(2, 1)))
    for layers, shard in ((range(8), 0), (range(0), 0), (range(2), 1)):
        with pytest.raises(ConfigError):
            EncoderDecoderPart(spec, layers, shard)
