"""A tiny T5 behind a real server: texts, streams, refusals, and processes that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from disturbed import Alive, Stream, Within, replaced, run_all, serving
from server_process import Serve, workers

sys.path.insert(0, str(Path(__file__).parents[1]))
from encoder_decoders import add_tokenizer, save

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

PROMPTS = [f"translate number {n}: " + "ab" * n for n in range(6)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("served") / "tiny-t5"
    model = save("t5 v1.1", folder)
    add_tokenizer(folder)
    return model, folder


@pytest.fixture
def serve(made: tuple[Any, Path], folder: Path, alive: Alive, within: Within) -> Iterator[Serve]:
    with serving(made[1], ("--max-num-batched-tokens", "64"), folder, alive, within) as serve:
        yield serve


def expected(model: Any, ids: list[int], n: int) -> list[int]:
    with torch.no_grad():
        made = model.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=n, do_sample=False, num_beams=1,
            eos_token_id=None, use_cache=False,
        )  # fmt: skip
    return list(map(int, made[0, 1:]))


def test_completions_of_a_source_text(serve: Serve, made: tuple[Any, Path]) -> None:
    assert any("lack an encoder" in line for line in serve.log)
    for prompt in PROMPTS[:3]:
        answer = serve.complete(prompt, max_tokens=12, return_token_ids=True, logprobs=2)
        ids = serve.post("/tokenize", prompt=prompt).json()["tokens"]
        choice = answer["choices"][0]
        assert choice["token_ids"] == expected(made[0], ids, 12)
        assert answer["usage"]["prompt_tokens"] == len(ids) and answer["usage"]["completion_tokens"] == 12
        assert len(choice["logprobs"]["token_logprobs"]) == 12
        assert "".join(serve.stream(prompt, max_tokens=12)) == serve.text(prompt, max_tokens=12) == choice["text"]
        by_ids = serve.text(ids, max_tokens=12)
        assert by_ids == choice["text"]


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("completions", {"prompt": "a", "echo": True}, "echo", "nothing to echo"),
    ("completions", {"prompt": "a", "prompt_logprobs": 1}, "prompt_logprobs", "no log-probabilities of its tokens"),
    ("completions", {"prompt": "a", "use_beam_search": True}, "use_beam_search", "not supported"),
    ("completions", {"prompt": [5] * 600}, "prompt", "600 prompt tokens, but the encoder reads 512 at most"),
    ("completions", {"prompt": "a", "max_tokens": 600}, "max_tokens", "the decoder gives 512 at most"),
    ("chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "messages", "no chat template"),
    ("embeddings", {"input": "a"}, "model", "makes no embeddings"),
]


def test_refusals_name_the_field(serve: Serve) -> None:
    for path, body, field, words in REFUSED:
        answer = serve.post(f"/v1/{path}", **body)
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["param"] == field and words in error["message"], error


def disturb(serve: Serve, within: Within, victim: Callable[[], int], n: int) -> None:
    """No text of n tokens changes: the encoder reads every prompt again, and the decoder goes on behind what it has put
    out."""
    wanted = [{"prompt": prompt, "max_tokens": n, "temperature": 0.8, "seed": i} for i, prompt in enumerate(PROMPTS)]
    started = time.monotonic()
    undisturbed = [(stream.text, stream.n_tokens) for stream in run_all(serve, wanted, lambda: None)]
    took, engine = time.monotonic() - started, serve.engine_pid

    def kill() -> None:
        time.sleep(min(0.5 * took, 2.0))
        os.kill(victim(), signal.SIGKILL)

    streams: list[Stream] = run_all(serve, wanted, kill)
    assert [stream.error for stream in streams] == [None] * len(wanted)
    assert [(stream.text, stream.n_tokens) for stream in streams] == undisturbed
    assert within(60, lambda: replaced(serve, engine))
    assert serve.metric("orcaserve_engine_restarts_total") == 1
    assert sum(stream.comments for stream in streams) > 0, "it was killed while they ran"


def test_an_engine_is_killed_and_no_text_changes(serve: Serve, within: Within) -> None:
    disturb(serve, within, lambda: serve.engine_pid, 300)


def test_a_worker_is_killed_and_no_text_changes(
    made: tuple[Any, Path], folder: Path, alive: Alive, within: Within
) -> None:
    """A shard of the second stage: all four are replaced."""
    with serving(made[1], ("-pp", "2", "-tp", "2"), folder, alive, within) as serve:
        pids = workers(serve.engine_pid)
        assert sorted(pids) == ["s0r0", "s0r1", "s1r0", "s1r1"]
        disturb(serve, within, lambda: pids["s1r1"], 100)
        assert any("s1r1" in line and "SIGKILL" in line for line in serve.log), "".join(serve.log)
        assert not set(pids.values()) & set(workers(serve.engine_pid).values())


def test_generate_on_the_command_line_whole_and_cut(made: tuple[Any, Path]) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "orcaserve",
            "generate",
            "--model",
            str(made[1]),
            "--prompt",
            PROMPTS[0],
            *words,
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    plain = run("--max-tokens", "8", "--temperature", "0", "--ignore-eos")
    assert plain.returncode == 0 and plain.stdout, plain.stderr
    cut = run("--max-tokens", "8", "--temperature", "0", "--ignore-eos", "-tp", "2", "--layer-split", "1,2,2")
    assert cut.returncode == 0 and cut.stdout == plain.stdout, cut.stderr
    refused = run("-pp", "6")
    words = "--pipeline-parallel-size: must be at most 5: the model has 2 layers in its encoder and 3 in its decoder"
    assert refused.returncode == 2 and refused.stderr.splitlines()[-1] == f"orcaserve: {words}"
