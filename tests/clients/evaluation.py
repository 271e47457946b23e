"""lm-evaluation-harness: the same tasks through the server and with transformers in process give the same scores."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import Bench
from outcome import Step

HERE = Path(__file__).parent
TASKS = HERE / "evaluation_tasks"
TEXT = TASKS / "harbour.txt"
NAMES = ("harbour_choice", "harbour_perplexity", "harbour_lines")
TOLERANCE = 1e-6  # of a score, relative
N_CHOICES = 4


def make_checkpoint(folder: Path) -> Path:
    """A small Llama with random weights in float32, and a tokenizer made from the tasks' text."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    backend.train_from_iterator([TEXT.read_text()], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, bos_token_id=0, eos_token_id=1, initializer_range=0.2,
        tie_word_embeddings=False, dtype="float32",
    )  # fmt: skip
    LlamaForCausalLM(config).float().save_pretrained(folder)
    return folder


def write_tasks(folder: Path) -> None:
    """The tasks' data: sentences of the text, their beginnings with four ends to choose from, and the whole."""
    sentences = [" ".join(part.split()) for part in re.findall(r"[^.]+\.", TEXT.read_text())]
    halves = [(words[: len(words) // 2], words[len(words) // 2 :]) for words in map(str.split, sentences)]
    choices, lines = [], []
    for i, (begin, end) in enumerate(halves):
        others = [" ".join(halves[(i + 7 * k) % len(halves)][1]) for k in range(1, N_CHOICES)]
        at = i % N_CHOICES
        ends = [*others[:at], " ".join(end), *others[at:]]
        choices.append({"context": " ".join(begin), "ends": ends, "answer": at})
        lines.append({"context": " ".join(begin), "end": " " + " ".join(end)})
    _write_lines(folder / "choice.jsonl", choices)
    _write_lines(folder / "lines.jsonl", lines)
    _write_lines(folder / "texts.jsonl", [{"text": part} for part in TEXT.read_text().split("\n\n")])


def lm_eval(bench: Bench) -> list[Step]:
    write_tasks(bench.work)
    common = ("--tasks", ",".join(NAMES), "--include_path", str(TASKS), "--log_samples")
    ours = bench.call(
        "lm_eval", "--model", "local-completions", "--model_args",
        f"model={bench.model},base_url={bench.base}/v1/completions,num_concurrent=4,max_length=1024",
        *common, "--output_path", "server",
    )  # fmt: skip
    theirs = bench.call(
        "lm_eval", "--model", "hf", "--model_args", f"pretrained={bench.model},dtype=float32,max_length=1024",
        "--device", "cpu", "--batch_size", "1", *common, "--output_path", "process",
    )  # fmt: skip
    for what, finished in (("through the server", ours), ("with transformers in process", theirs)):
        if finished.problem:
            return [Step(f"{len(NAMES)} tasks {what}", finished.problem)]
    return [_compared(task, bench.work / "server", bench.work / "process") for task in NAMES]


def _compared(task: str, ours: Path, theirs: Path) -> Step:
    """Every score of the task within the tolerance, and every sample's answers alike."""
    found, expected = (_scores(folder, task) for folder in (ours, theirs))
    names = ", ".join(sorted(expected))
    what = f"{task}: {names} as with transformers in process"
    if not expected or found.keys() != expected.keys():
        return Step(what, f"scores {sorted(found)}, expected {sorted(expected)}")
    for name, value in expected.items():
        if not math.isclose(found[name], value, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            return Step(what, f"{name} {found[name]!r}, expected {value!r}")
    worst = max(_distances(ours, theirs, task), default=math.inf)
    if not worst < math.inf:
        return Step(what, "the samples' answers differ")
    largest = max(abs(found[name] - value) / max(1, abs(value)) for name, value in expected.items())
    return Step(f"{what} (scores differ by {largest:.0e} at most, a sample's log-likelihood by {worst:.0e})")


def _scores(folder: Path, task: str) -> dict[str, float]:
    (file,) = folder.rglob("results_*.json")
    entry = json.loads(file.read_text())["results"][task]
    return {
        name.partition(",")[0]: float(value)
        for name, value in entry.items()
        if isinstance(value, int | float) and not name.startswith(("alias", "sample")) and "stderr" not in name
    }


def _distances(ours: Path, theirs: Path, task: str) -> Iterator[float]:
    """How far two samples' answers are apart: log-likelihoods by their difference, texts by 0 or infinity."""
    found, expected = (_samples(folder, task) for folder in (ours, theirs))
    if found.keys() != expected.keys():
        yield math.inf
        return
    for key, answers in expected.items():
        for a, b in zip(found[key], answers, strict=True):
            if isinstance(a, str):
                yield 0.0 if a == b else math.inf
            else:
                yield abs(a - b)


def _samples(folder: Path, task: str) -> dict[int, list[Any]]:
    (file,) = folder.rglob(f"samples_{task}_*.jsonl")
    samples = [json.loads(line) for line in file.read_text().splitlines()]
    return {sample["doc_id"]: list(_flat(sample["resps"])) for sample in samples}


def _flat(value: Any) -> Iterator[float | str]:
    """Log-likelihoods and texts in whatever nesting; flags left out."""
    if isinstance(value, list):
        for part in value:
            yield from _flat(part)
    elif isinstance(value, str):
        try:
            yield float(value)
        except ValueError:
            if value not in ("True", "False"):
                yield value
    elif isinstance(value, float):
        yield value


def _write_lines(file: Path, entries: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
