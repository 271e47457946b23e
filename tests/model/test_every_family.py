"""Every family, with its odd options on, against transformers; in company, in stages and in shards."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from family_cases import CASES, PLACES, TEXT, config_of, logits, make
from parted import BATCHES, Partitioned, whole

from orcaserve.core.errors import ConfigError
from orcaserve.model.families import FAMILIES, family_of
from orcaserve.model.families.settings import Settings
from orcaserve.model.loader import ModelFiles
from orcaserve.model.spec import ModelSpec
from orcaserve.native.support import lacking

PROMPTS = (TEXT[:70], TEXT[70:73], TEXT[80:81], TEXT[90:120])
TOKENS = 12


@dataclass(frozen=True)
class Case:
    name: str
    path: Path
    expected: torch.Tensor
    spec: ModelSpec


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("family")
    model = make(request.param)
    model.save_pretrained(folder)
    with ModelFiles(folder) as files:
        spec = files.spec
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "falcon, rw":
            patch.setattr("transformers.models.falcon.modeling_falcon.build_alibi_tensor", unrounded_alibi)
        return Case(request.param, folder, logits(model), spec)


def unrounded_alibi(attention_mask: torch.Tensor, num_heads: int, dtype: torch.dtype) -> torch.Tensor:
    """Falcon's slopes in bfloat16, but their products with positions in float32: transformers rounds these as well, so
    that a score depends on where in the text a pair of tokens is."""
    from transformers.models.bloom.modeling_bloom import _get_alibi_slopes

    slopes = _get_alibi_slopes(num_heads, attention_mask.device).bfloat16().float().reshape(num_heads, 1)
    places = (attention_mask.cumsum(dim=-1) - 1) * attention_mask
    return (slopes * places[:, None, :]).reshape(-1, 1, places.shape[1]).to(dtype)


def assert_parity(runner: Any, expected: torch.Tensor) -> None:
    at = 0
    for place in PLACES:
        got = runner.step([(0, TEXT[at : place + 1])])[0]
        error = (got - expected[place]).abs().max() / expected[place].abs().max()
        assert error < 1e-4, f"position {place}: {error:.2e}"
        at = place + 1


def test_the_same_logits_in_pytorch(case: Case, reference: Any, runner: Any) -> None:
    assert_parity(runner(reference(case.path)), case.expected)


def test_the_same_logits_in_the_kernels(case: Case, native_model: Any, runner: Any) -> None:
    if missing := lacking(case.spec):
        pytest.skip(f"the CPU's kernels lack {missing[0]}")
    assert_parity(runner(native_model(case.path)), case.expected)


def test_company_changes_no_token(case: Case, reference: Any, runner: Any) -> None:
    """Requests come and go: the first goes on alone, the others join one after the other."""
    model = reference(case.path)
    alone = [runner(model).greedy(prompt, TOKENS) for prompt in PROMPTS]
    together, new, out = runner(model), [list(p) for p in PROMPTS], [[] for _ in PROMPTS]
    for step in range(TOKENS + len(PROMPTS)):
        batch = [(r, new[r]) for r in range(len(PROMPTS)) if r <= step and len(out[r]) < TOKENS]
        if batch:
            for (r, _), token in zip(batch, together.step(batch).argmax(-1).tolist(), strict=True):
                new[r] = [token]
                out[r].append(token)
    assert out == alone


def test_stages_are_the_model_and_so_are_shards(case: Case) -> None:
    expected = whole(case.path)
    stages = Partitioned(case.path, (1,), 1)
    for batch, rows in zip(BATCHES, expected, strict=True):
        assert torch.equal(stages.step(batch), rows)
    if case.spec.n_kv_heads == 1 or case.spec.qk_norm == "all":
        with pytest.raises(ConfigError, match="--tensor-parallel-size"):
            Partitioned(case.path, (), 2)
        return
    shards = Partitioned(case.path, (2,), 2)
    for batch, rows in zip(BATCHES, expected, strict=True):
        assert torch.allclose(shards.step(batch), rows, rtol=1e-4, atol=1e-4 * float(rows.abs().max()))


def test_layers_have_the_windows_of_the_config_and_bound_no_text(tmp_path: Path) -> None:
    for name, windows in [
        ("mistral, window", (37,) * 4),
        ("qwen2, windows", (0, 0, 37, 37)),
        ("qwen3, tied, windows", (20, 0, 20, 0)),
        ("gemma2", (37, 0, 37, 0)),
        ("gemma3", (37, 37, 0, 37)),
        ("smollm3, windows", (37, 0, 0, 37)),
        ("llama", ()),
    ]:
        make(name).config.save_pretrained(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        spec = family_of(config["model_type"]).spec(Settings(config))
        assert (spec.windows, spec.context_length) == (windows, 2048), name


def test_windows_that_no_text_outgrows_are_none(tmp_path: Path) -> None:
    make("mistral, window", sliding_window=2048).save_pretrained(tmp_path)
    with ModelFiles(tmp_path) as files:
        assert files.spec.windows == ()


def test_every_registered_family_has_a_case() -> None:
    types = {config_of(kind).model_type for kind, _ in CASES.values()}
    assert types == {t for family in FAMILIES for t in family.model_types}


def test_falcons_slopes_are_those_of_transformers_where_it_rounds_nothing(
    reference: Any, runner: Any, tmp_path: Path
) -> None:
    """With a power of two of heads the products are exact up to position 256."""
    model = make("falcon, rw", num_attention_heads=4, hidden_size=48)
    model.save_pretrained(tmp_path)
    expected, got = logits(model, TEXT[:200]), runner(reference(tmp_path))
    for place, piece in ((0, TEXT[:1]), (199, TEXT[1:200])):
        assert (got.step([(0, piece)])[0] - expected[place]).abs().max() < 1e-4 * expected[place].abs().max()


def test_phi3_in_texts_longer_than_it_was_trained_for(reference: Any, runner: Any, tmp_path: Path) -> None:
    model = make("phi3, long, partial", original_max_position_embeddings=512)
    model.save_pretrained(tmp_path)
    expected = torch.stack([logits(model, TEXT[:n])[-1] for n in (100, 600, 1000)])
    got = runner(reference(tmp_path)).step([(1, TEXT[:100]), (3, TEXT[:1000]), (2, TEXT[:600])])[[0, 2, 1]]
    assert (got - expected).abs().max() < 1e-4 * expected.abs().max()
