"""LOAD: GGUF files say what the safetensors say that they were made of, and so do their tokenizers.

Tied heads (B50), files of other kinds and architectures (B53) and damaged tokenizers (B54) are the loader's tests.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from case_server import FLOAT32, Server
from reciting import Recited
from safetensors.torch import load_file, save_file

TEXTS = ["Hello", " Hello", "\n\n", "<|user|>hi", "1234567890 12 3", "Grüße, ça va, naïve, Å", "👩‍🚀 🦙 汉 Ď", "",
         "a  b", "▁Once ▁ upon", "  ", "don't we'll", "<s>hi</s>", "<unk>"]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_b54_ids_are_those_of_transformers(server: Server, text: str) -> None:
    assert server.ids(text) == server.recited.encode(text)
    ids = server.recited.tokenizer.encode(text, add_special_tokens=False)
    answer = server.http.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()
    assert answer["tokens"] == ids
    back = server.http.post("/detokenize", json={"tokens": ids, "skip_special_tokens": True}).json()["prompt"]
    assert back == server.recited.decode(ids)


def test_b53_a_gguf_file_gives_the_text_of_the_safetensors(
    llama_server: Server, gguf_server: Server, within: Any
) -> None:
    """6 heads over 2: where rows of queries and keys are turned back by the wrong number, every text differs."""
    for seed in range(6):
        fields = {"prompt": "the fox", "max_tokens": 60, "temperature": 1.5, "seed": seed}
        assert gguf_server.both(**fields) == llama_server.both(**fields)
    prompt = llama_server.recited.encode("the fox hi")
    assert gguf_server.both(prompt=prompt, max_tokens=40)[0] == llama_server.recited.greedy_text(prompt, 40)
    for server in (llama_server, gguf_server):
        server.check(within)


def changed(model: Recited, folder: Path, tied: bool | None, head: str) -> Path:
    """The model with another word about its head, and another head: `none`, `equal` to the embedding, or its own."""
    shutil.copytree(model.path, folder)
    settings = json.loads((folder / "config.json").read_text())
    settings.pop("tie_word_embeddings", None)
    if tied is not None:
        settings["tie_word_embeddings"] = tied
    (folder / "config.json").write_text(json.dumps(settings))
    tensors = load_file(folder / "model.safetensors")
    embedding = "model.embed_tokens.weight" if "model.embed_tokens.weight" in tensors else "transformer.wte.weight"
    if head == "none":
        del tensors["lm_head.weight"]
    elif head == "equal":
        tensors["lm_head.weight"] = tensors[embedding].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def generated(path: Path) -> tuple[int, str, str]:
    """Exit code, text and what was said beside it, of twelve greedy tokens."""
    command = [sys.executable, "-m", "orcaserve", "generate", "--model", str(path), "--prompt", "the fox", "-t", "1"]
    flags = ["--max-tokens", "12", "--temperature", "0", "--ignore-eos", "--n-slots", "256", *FLOAT32]
    done = subprocess.run([*command, *flags], capture_output=True, timeout=120, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def greedy_of(folder: Path, model: Recited) -> str:
    """What transformers says of the same files."""
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    return Recited(folder, loaded, model.tokenizer, model.script).greedy_text(model.encode("the fox"), 12)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize(
    ("tied", "head"), [(True, "none"), (True, "equal"), (False, "own"), (None, "own"), (None, "equal")]
)
def test_b50_heads_that_are_tied_or_not(
    kind: str, tied: bool | None, head: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Not said: tied for GPT-2, its own for Llama; as transformers has it, to the text."""
    model: Recited = request.getfixturevalue(f"{kind}_model")
    if kind == "gpt2" and tied is None and head == "own":
        head = "none"
    folder = changed(model, tmp_path / "changed", tied, head)
    code, text, said = generated(folder)
    assert code == 0, said
    assert text == greedy_of(folder, model)
    assert "differ" not in said


def test_b50_a_tied_model_with_another_head_says_so(llama_model: Recited, tmp_path: Path) -> None:
    _, shared, _ = generated(changed(llama_model, tmp_path / "none", True, "none"))
    code, text, said = generated(changed(llama_model, tmp_path / "own", True, "own"))
    assert (code, text) == (0, shared)
    assert "lm_head" in said


@pytest.mark.parametrize("tied", [False, None])
def test_b50_no_head_at_all_is_refused(tied: bool | None, llama_model: Recited, tmp_path: Path) -> None:
    code, text, said = generated(changed(llama_model, tmp_path / "none", tied, "none"))
    assert (code, text) == (3, "") and "lm_head" in said and "Traceback" not in said
