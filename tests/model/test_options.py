"""The options of the skeleton that some families have, each alone and many together: the kernels against PyTorch, and
the same bits for a request whatever runs beside it, in stages, and out of packed files; shards are the model."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from orcaserve import native
from orcaserve.model.kv_manager import KVManager
from orcaserve.model.part import Part
from orcaserve.model.reference.builder import TorchBuilder
from orcaserve.model.reference.kv_region import KVRegion as ReferenceRegion
from orcaserve.model.reference.transformer import Transformer
from orcaserve.model.spec import ModelSpec, RopeSpec
from orcaserve.native._kernels import Team
from orcaserve.native.exact_inputs import build_part, build_weights
from orcaserve.native.kv_region import KVRegion
from orcaserve.native.model import NativeModel
from orcaserve.native.packed_model import PackedFile, save_packed
from orcaserve.native.precision import choose_precision

sys.path.insert(0, str(Path(__file__).parents[1]))
from skeletons import files_of

ROPE = RopeSpec(16, 16, 2048)
PLAIN = ModelSpec(131, 2048, 96, 3, 6, 2, 16, 160, "rms", 1e-5, "silu", True, False, ROPE)
GPT = replace(PLAIN, norm="layer", activation="gelu_new", gated=False, qkv_bias=True, out_bias=True, mlp_bias=True)
LOCAL = RopeSpec(8, 16, 2048, theta=100.0, kind="linear", factor=2.0)
SLOPES = tuple(2.0**-i for i in range(1, 7))

OPTIONS: dict[str, ModelSpec] = {
    "plain": PLAIN,
    "norms of heads": replace(PLAIN, qk_norm="head"),
    "norms of all heads": replace(PLAIN, qk_norm="all"),
    "layer norms of heads": replace(GPT, qk_norm="head"),
    "norms before and behind": replace(PLAIN, post_norm=True),
    "norms behind": replace(PLAIN, pre_norm=False, post_norm=True),
    "scaled embedding": replace(PLAIN, embedding_scale=9.8, tied=True),
    "scaled layers": replace(PLAIN, residual_scale=0.22),
    "scaled logits": replace(PLAIN, logit_scale=0.0625),
    "capped logits": replace(PLAIN, logit_softcap=3.0, tied=True),
    "windows": replace(PLAIN, windows=(5, 40, 600)),
    "windows of some layers": replace(PLAIN, windows=(16, 0, 513)),
    "two ropes": replace(PLAIN, windows=(33, 0, 33), local_rope=LOCAL),
    "unturned layers": replace(PLAIN, unturned=(1,)),
    "parallel": replace(GPT, parallel=True),
    "parallel, one norm": replace(GPT, parallel=True, shared_norm=True, head_bias=True),
    "capped scores": replace(PLAIN, attention_softcap=1.5),
    "alibi": replace(GPT, rope=None, alibi=SLOPES),
    "normed embedding": replace(GPT, embedding_norm=True),
    "no biases in norms": replace(GPT, norm_bias=False, tied=True, head_bias=True),
    "learned positions behind a norm": replace(GPT, rope=None, embedding_norm=True, embedding_scale=2.0),
    "sandwich": replace(
        PLAIN, activation="gelu_new", tied=True, post_norm=True, qk_norm="head", windows=(48, 48, 0), local_rope=LOCAL,
        embedding_scale=9.8, attention_scale=0.2, attention_softcap=2.0, logit_softcap=5.0,
    ),
    "side by side": replace(
        GPT, parallel=True, shared_norm=True, qk_norm="head", alibi=SLOPES, embedding_norm=True, unturned=(0, 2),
        residual_scale=0.5, windows=(20, 300, 20), attention_softcap=4.0, logit_scale=0.5,
    ),
}  # fmt: skip
TEXTS = [[(i * 37 + j * j + 7 * j) % 131 for j in range(700)] for i in range(3)]
FORMS = {"float32": ("none", "auto"), "int8": ("int8", "float32"), "int4": ("int4", "float32"),
         "int8 K/V": ("none", "int8"), "bfloat16 K/V": ("none", "bfloat16")}  # fmt: skip


@pytest.fixture(autouse=True)
def restore_isa() -> Iterator[None]:
    before = native.isa()
    yield
    native.set_isa(before)


class Subject:
    """A model as `Runner` takes it."""

    page_size = 16

    def __init__(self, spec: ModelSpec, form: str = "float32", threads: int = 2, weights: Any = None) -> None:
        self.spec, team = spec, Team(threads)
        quantization, kv = FORMS[form]
        files = files_of(spec)
        self.precision = choose_precision("float32", quantization, files.matrix_kinds).with_kv(kv)
        self.weights = build_weights(files, self.precision, team) if weights is None else weights
        self.model = NativeModel(spec, self.weights, team)

    def region(self, n_pages: int) -> Any:
        return KVRegion(self.spec, n_pages, self.page_size, self.precision.kv)

    def forward(self, tokens: Any, layout: Any, kv: Any) -> Any:
        return torch.from_numpy(self.model.forward(np.array(tokens, np.int32), layout, kv).copy())


class TorchSubject:
    page_size = 16

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.model = Transformer(spec, files_of(spec).load(TorchBuilder(spec.norm_eps, torch.float32, "cpu")))

    def region(self, n_pages: int) -> Any:
        return ReferenceRegion(self.spec, n_pages, self.page_size)

    def forward(self, tokens: Any, layout: Any, kv: Any) -> Any:
        return self.model.forward(torch.tensor(tokens), layout, kv)


Iterations = list[list[tuple[int, list[int]]]]
HISTORY: Iterations = [
    [(0, TEXTS[0][:640]), (1, TEXTS[1][:7])],
    [(0, TEXTS[0][640:641]), (1, TEXTS[1][7:90]), (2, TEXTS[2][:1])],
    [(2, TEXTS[2][1:50]), (0, TEXTS[0][641:642]), (1, TEXTS[1][90:91])],
]


@pytest.fixture(scope="module")
def expected(runner: Any) -> dict[str, list[Any]]:
    """Logits of HISTORY in PyTorch."""
    return {
        name: [run.step(pieces) for pieces in HISTORY]
        for name, spec in OPTIONS.items()
        for run in [runner(TorchSubject(spec))]
    }


@pytest.mark.parametrize("isa", native.available_isas())
@pytest.mark.parametrize("option", OPTIONS)
def test_kernels_compute_what_pytorch_computes(isa: str, option: str, expected: Any, runner: Any) -> None:
    native.set_isa(isa)
    run = runner(Subject(OPTIONS[option]))
    for pieces, wanted in zip(HISTORY, expected[option], strict=True):
        error = (run.step(pieces) - wanted).abs().max() / wanted.abs().max()
        assert error < 1e-4, float(error)


@pytest.mark.parametrize(("form", "most"), [("int8", 0.1), ("int4", 0.9), ("int8 K/V", 0.1), ("bfloat16 K/V", 0.05)])
@pytest.mark.parametrize("option", OPTIONS)
def test_coarser_forms_are_close(option: str, form: str, most: float, expected: Any, runner: Any) -> None:
    run = runner(Subject(OPTIONS[option], form))
    for pieces, wanted in zip(HISTORY, expected[option], strict=True):
        got = run.step(pieces)
        assert 0 < (got - wanted).norm() / wanted.norm() < most


@pytest.mark.parametrize("isa", [native.available_isas()[0], native.available_isas()[-1]])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("option", ["sandwich", "side by side", "windows", "norms of all heads", "norms behind"])
def test_a_request_has_the_same_bits_in_any_company(isa: str, form: str, option: str, runner: Any) -> None:
    """Whole and in pieces, alone and together, on one thread and on several."""
    native.set_isa(isa)
    one = Subject(OPTIONS[option], form, threads=1)
    alone = [runner(one).step([(0, text[:end])])[0] for text, end in zip(TEXTS, (642, 91, 50), strict=True)]
    for threads in (1, 3):
        run = runner(Subject(OPTIONS[option], form, threads, one.weights))
        steps = [run.step(pieces) for pieces in HISTORY]
        for row, text in zip(steps[2], (2, 0, 1), strict=True):
            assert torch.equal(row, alone[text]), text


def test_pages_before_all_windows_are_not_read(runner: Any) -> None:
    """Their numbers may be none, and what others have written there is never seen."""
    spec = replace(PLAIN, windows=(5, 40, 33))
    for form in FORMS:
        subject = Subject(spec, form)
        whole = runner(subject).step([(0, TEXTS[0][:641])])
        kv = KVManager(4096, subject.page_size)
        region = subject.region(kv.n_pages)
        subject.forward(TEXTS[0][:640], kv.lay_out([(0, 640)]), region)
        layout = kv.lay_out([(0, 1)])
        tables = layout.page_tables.copy()
        first = (640 + 1 - 40) // subject.page_size
        for array in (region.keys, region.values, region.key_scales, region.value_scales):
            if array is not None:
                for page in tables[0, :first]:
                    array[:, page].view(np.uint8)[...] = 0xFF
        tables[0, :first] = -1
        assert torch.equal(subject.forward(TEXTS[0][640:641], replace(layout, page_tables=tables), region), whole)
        tables[0, first] = -1
        with pytest.raises(ValueError, match="outside the region"):
            subject.forward(TEXTS[0][640:641], replace(layout, page_tables=tables), region)


def test_pages_are_read_where_some_layer_has_no_window(runner: Any) -> None:
    subject = Subject(replace(PLAIN, windows=(5, 0, 33)))
    kv = KVManager(4096, subject.page_size)
    region = subject.region(kv.n_pages)
    subject.forward(TEXTS[0][:640], kv.lay_out([(0, 640)]), region)
    layout = kv.lay_out([(0, 1)])
    tables = layout.page_tables.copy()
    tables[0, 0] = -1
    with pytest.raises(ValueError, match="outside the region"):
        subject.forward(TEXTS[0][640:641], replace(layout, page_tables=tables), region)


@pytest.mark.parametrize("option", OPTIONS)
def test_stages_are_the_model_to_the_bit(option: str, runner: Any) -> None:
    """Layers keep their own windows and ropes wherever they are."""
    spec = OPTIONS[option]
    whole, team = runner(Subject(spec)), Team(2)
    kv = KVManager(4096, 16)
    stages = []
    for layers in (range(1), range(1, 3)):
        part = Part(spec, layers)
        model = NativeModel(spec, build_part(files_of(spec), choose_precision("float32", "none", {"F32"}), team, part),
                            team, part)  # fmt: skip
        stages.append((model, KVRegion(part.own_spec, kv.n_pages, 16, "float32")))
    for pieces in HISTORY:
        layout = kv.lay_out([(request, len(tokens)) for request, tokens in pieces])
        x: Any = np.array([t for _, tokens in pieces for t in tokens], np.int32)
        for model, region in stages:
            x = model.forward(x, layout, region).copy()
        assert np.array_equal(x, whole.step(pieces).numpy())


@pytest.mark.parametrize("option", [name for name, spec in OPTIONS.items() if spec.qk_norm != "all"])
def test_shards_are_the_model(option: str, runner: Any, tmp_path: Path) -> None:
    """Norms behind sums over shards, and each shard's own heads; cut from tensors and from a packed file alike."""
    spec = OPTIONS[option]
    whole, kv = runner(Subject(spec)), KVManager(4096, 16)
    save_packed(tmp_path / "packed", spec, choose_precision("float32", "none", {"F32"}), Subject(spec).weights)
    barrier, halves = threading.Barrier(2), [np.empty(0, np.float32)] * 2

    def add(shard: int, x: Any) -> None:
        halves[shard] = x
        barrier.wait(20)
        total = halves[0] + halves[1]
        barrier.wait(20)
        x[:] = total

    shards = []
    for shard in range(2):
        part, team = Part(spec, range(3), shard, 2), Team(1)
        weights = build_part(files_of(spec), choose_precision("float32", "none", {"F32"}), team, part)
        packed = PackedFile(tmp_path / "packed").load_part(part, 1)
        regions = [KVRegion(part.own_spec, kv.n_pages, 16, "float32") for _ in range(2)]
        reduce = lambda x, _, shard=shard: add(shard, x)  # noqa: E731
        shards.append([(NativeModel(spec, w, team, part, reduce), r) for w, r in zip((weights, packed), regions)])  # noqa: B905
    for pieces in HISTORY:
        layout = kv.lay_out([(request, len(tokens)) for request, tokens in pieces])
        x: Any = np.array([t for _, tokens in pieces for t in tokens], np.int32)
        logits = []
        for way in range(2):
            with ThreadPoolExecutor(2) as pool:
                runs = [pool.submit(shard[way][0].forward, x, layout, shard[way][1]) for shard in shards]
            logits.append(np.concatenate([run.result().copy() for run in runs], axis=1))
        wanted = whole.step(pieces).numpy()
        assert np.abs(logits[0] - wanted).max() < 1e-4 * np.abs(wanted).max()
        assert np.array_equal(*logits)


@pytest.mark.parametrize("form", ["float32", "int8"])
@pytest.mark.parametrize("option", OPTIONS)
def test_packed_is_direct_to_the_bit(option: str, form: str, runner: Any, tmp_path: Path) -> None:
    direct = Subject(OPTIONS[option], form)
    save_packed(tmp_path / "packed", direct.spec, direct.precision, direct.weights)
    file = PackedFile(tmp_path / "packed")
    assert file.spec == direct.spec
    mapped = Subject(file.spec, form, weights=file.load_part(Part.whole(file.spec), 2))
    ours, theirs = runner(mapped), runner(direct)
    for pieces in HISTORY[:2]:
        assert torch.equal(ours.step(pieces), theirs.step(pieces))
