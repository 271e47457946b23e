"""The example of docs/adding-a-model.md is a family that runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from family_cases import PLACES, TEXT, VOCABULARY, logits, randomise

from orcaserve.core.errors import UnsupportedModel
from orcaserve.model import families
from orcaserve.model.loader import ModelFiles

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-model.md"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    from transformers import Starcoder2Config, Starcoder2ForCausalLM

    config = Starcoder2Config(
        vocab_size=VOCABULARY, hidden_size=72, intermediate_size=96, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, sliding_window=37, bos_token_id=2, eos_token_id=3, max_position_embeddings=2048,
    )  # fmt: skip
    model = randomise(Starcoder2ForCausalLM._from_config(config, attn_implementation="eager"))
    folder = tmp_path_factory.mktemp("starcoder2")
    model.save_pretrained(folder)
    return folder, logits(model)


def test_the_example_is_a_family(
    checkpoint: tuple[Path, Any], reference: Any, runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, expected = checkpoint
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(code.splitlines()) <= 60
    page: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, str(PAGE), "exec"), page)
    with pytest.raises(UnsupportedModel, match=r"'starcoder2' are not supported; llama, mistral, .*falcon"):
        ModelFiles(folder)
    monkeypatch.setattr(families, "FAMILIES", (*families.FAMILIES, page["FAMILY"]))
    got, at = runner(reference(folder)), 0
    for place in PLACES:
        error = (got.step([(0, TEXT[at : place + 1])])[0] - expected[place]).abs().max() / expected[place].abs().max()
        assert error < 1e-4, f"position {place}: {error:.2e}"
        at = place + 1


def test_families_of_llamas_kind_are_small() -> None:
    folder = Path(families.__file__).parent
    for name in ("qwen3", "phi3", "smollm3", "granite", "olmo2", "stablelm"):
        assert len((folder / f"{name}.py").read_text().splitlines()) <= 60, name
