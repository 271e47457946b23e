"""Adapters without a server: the offline API, cut models included, and a file of requests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from orcaserve import LLM, SamplingParams
from orcaserve.config import Quantization
from orcaserve.core import ConfigError, InvalidRequest, ModelNotFound

sys.path.insert(0, str(Path(__file__).parents[1]))
from lora_files import linears, write_adapter

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="its engines are processes, as test_adapters.py has them"
)

PROMPTS = [f"line {i}" for i in range(9)]
NAMES = [(None, "sql", "poet")[i % 3] for i in range(9)]
GREEDY = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def modules(served_odd_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, shapes = tmp_path_factory.mktemp("adapters"), linears(served_odd_model)
    ranks = {"sql": 4, "poet": 19}
    return {name: write_adapter(folder / name, shapes, r, rank=r, size=0.3) for name, r in ranks.items()}


def open_llm(model: Path, modules: dict[str, Path], p: int = 1, t: int = 1, quantization: Quantization = "none") -> LLM:
    return LLM(
        model,
        quantization=quantization,
        n_slots=4096,
        threads=1,
        pipeline_parallel_size=p,
        tensor_parallel_size=t,
        lora_modules=modules,
    )


def ids_of(llm: LLM, names: str | Sequence[str | None] | None) -> list[list[int]]:
    return [result.completions[0].token_ids for result in llm.generate(PROMPTS, GREEDY, lora_request=names)]


@pytest.fixture(scope="module")
def alone(served_odd_model: Path, modules: dict[str, Path]) -> list[list[int]]:
    """The tokens of each request by itself, in one process."""
    with open_llm(served_odd_model, modules) as llm:
        pairs = zip(PROMPTS, NAMES, strict=True)
        return [llm.generate(p, GREEDY, lora_request=name)[0].completions[0].token_ids for p, name in pairs]


@pytest.mark.parametrize(("p", "t"), [(1, 1), (2, 1), (1, 2)])
def test_a_name_for_each_prompt(
    served_odd_model: Path, modules: dict[str, Path], alone: list[list[int]], p: int, t: int
) -> None:
    with open_llm(served_odd_model, modules, p, t) as llm:
        assert ids_of(llm, NAMES) == alone
        for name in (None, "sql", "poet"):
            first = NAMES.index(name)
            assert ids_of(llm, name)[first::3] == alone[first::3]
    assert len({tuple(ids) for ids in alone}) > 3


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_cut_by_layers_in_integers(
    served_odd_model: Path, modules: dict[str, Path], quantization: Quantization
) -> None:
    with open_llm(served_odd_model, modules, quantization=quantization) as llm:
        whole = ids_of(llm, NAMES)
        assert whole[1::3] != ids_of(llm, None)[1::3]
    with open_llm(served_odd_model, modules, 2, quantization=quantization) as llm:
        assert ids_of(llm, NAMES) == whole


def test_chats_and_streams_have_a_name_too(served_odd_model: Path, modules: dict[str, Path]) -> None:
    messages = [{"role": "user", "content": "hello"}]
    with open_llm(served_odd_model, modules) as llm:
        texts = {name: llm.chat(messages, GREEDY, lora_request=name).text for name in (None, "sql", "poet")}
        assert len(set(texts.values())) == 3
        for name, text in texts.items():
            assert "".join(llm.stream_chat(messages, GREEDY, lora_request=name)) == text
        whole = llm.generate("ab", GREEDY, lora_request="sql")[0].completions[0].text
        assert "".join(llm.stream("ab", GREEDY, lora_request="sql")) == whole


def test_what_makes_no_sense_is_said(served_odd_model: Path, modules: dict[str, Path], tmp_path: Path) -> None:
    with open_llm(served_odd_model, modules) as llm:
        with pytest.raises(InvalidRequest, match=r"'prose' is none of the adapters that are loaded \(sql, poet\)"):
            llm.generate("ab", GREEDY, lora_request="prose")
        with pytest.raises(InvalidRequest, match="got 2 names for 1 prompts"):
            llm.generate(["ab"], GREEDY, lora_request=["sql", "poet"])
    with pytest.raises(ModelNotFound, match="adapter nowhere"):
        LLM(served_odd_model, lora_modules={"nowhere": tmp_path})
    with pytest.raises(ConfigError, match="--max-loras is 1"):
        LLM(served_odd_model, lora_modules=modules, max_loras=1)
    with pytest.raises(ConfigError, match="1 to 256 letters"):
        LLM(served_odd_model, lora_modules={"a b": modules["sql"]})


def test_a_file_of_requests_names_adapters(served_odd_model: Path, modules: dict[str, Path], tmp_path: Path) -> None:
    body = {"max_tokens": 10, "temperature": 0, "ignore_eos": True}
    lines = [
        {"custom_id": str(i), "method": "POST", "url": "/v1/completions",
         "body": {"model": name or "odd", "prompt": prompt, **body}}
        for i, (prompt, name) in enumerate(zip(PROMPTS, NAMES, strict=True))
    ]  # fmt: skip
    lines.append({**lines[0], "custom_id": "unknown", "body": {"model": "prose", "prompt": "ab"}})
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ("run-batch", "-i", str(source), "-o", str(target), str(served_odd_model), "--n-slots", "4096", "-t", "1")
    flags += ("--lora-modules", *(f"{name}={path}" for name, path in modules.items()))
    done = subprocess.run(
        [sys.executable, "-m", "orcaserve", *flags], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1, done.stderr
    results = {line["custom_id"]: line["response"] for line in map(json.loads, target.read_text().splitlines())}
    assert results.pop("unknown")["status_code"] == 404
    with open_llm(served_odd_model, modules) as llm:
        expected = [result.completions[0].text for result in llm.generate(PROMPTS, GREEDY, lora_request=NAMES)]
    assert [results[str(i)]["body"]["choices"][0]["text"] for i in range(9)] == expected
