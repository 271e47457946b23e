"""The verbs as a person uses them: real processes, the default model."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orcaserve.checkpoint.locate import DEFAULT_MODEL
from orcaserve.model.families import FAMILIES

pytestmark = pytest.mark.usefixtures("default_model")
SMALL = ("-t", "1", "--n-slots", "2048")  # one thread: the tests' machine may be busy


def orcaserve(*args: str, text: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "orcaserve", *args],
        input=text, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environment},
    )  # fmt: skip


def test_generate_prints_the_text_alone() -> None:
    done = orcaserve("generate", *SMALL, "--prompt", "1, 2, 3, 4,", "--max-tokens", "6", "--temperature", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout == " 5, 6,"
    piped = orcaserve(
        "generate", *SMALL, "--prompt", "-", "--max-tokens", "6", "--temperature", "0", text="1, 2, 3, 4,"
    )
    assert piped.stdout == done.stdout


def test_generate_stops_and_repeats_by_seed() -> None:
    stopped = orcaserve("generate", *SMALL, "--prompt", "1, 2, 3, 4,", "--temperature", "0", "--stop", "6")
    assert stopped.stdout == " 5, "
    drawn = [orcaserve("generate", *SMALL, "--prompt", "One day", "--max-tokens", "8", "--seed", "3") for _ in range(2)]
    assert drawn[0].stdout == drawn[1].stdout != ""


def test_generate_keeps_to_a_grammar(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["north", "south"]}')
    lark = tmp_path / "grammar.lark"
    lark.write_text('start: "go " ("left" | "right")')
    ask = ("generate", *SMALL, "--prompt", "Where to? ", "--max-tokens", "20", "--seed", "1")
    assert orcaserve(*ask, "--json-schema", str(schema)).stdout in ('"north"', '"south"')
    assert orcaserve(*ask, "--grammar", str(lark)).stdout in ("go left", "go right")
    assert orcaserve(*ask, "--choice", "up", "--choice", "down").stdout in ("up", "down")
    assert re.fullmatch("[a-d]{3}", orcaserve(*ask, "--regex", "[a-d]{3}").stdout)
    for flags, says in (
        (("--regex", "("), "the regular expression is not valid"),
        (("--json-schema", str(lark)), "is not JSON"),
        (("--grammar", str(tmp_path / "none")), "cannot be read"),
        (("--regex", "a", "--choice", "b"), "not allowed with"),
    ):
        done = orcaserve(*ask, *flags)
        assert done.returncode == 2 and says in done.stderr.strip().splitlines()[-1] and not done.stdout, done.stderr


def test_generate_refuses_what_cannot_fit() -> None:
    done = orcaserve("generate", *SMALL, "--prompt", "a", "--max-tokens", "5000")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.strip().splitlines()[-1].endswith("but the K/V region holds 2048")


def test_chat_answers_resets_and_leaves() -> None:
    question = "What is the capital of Japan?\n"
    questions = f"{question}/reset\n\n{question}Say it again, louder.\n/quit\nnever read\n"
    done = orcaserve("chat", *SMALL, "--max-tokens", "16", "--temperature", "0", text=questions)
    assert done.returncode == 0, done.stderr
    first, after_reset, third = done.stdout.splitlines()
    assert "Tokyo" in first
    assert after_reset == first, "nothing was remembered"
    assert third
    assert "/reset" in done.stderr, "help goes to standard error"


def test_chat_ends_with_its_input() -> None:
    done = orcaserve("chat", *SMALL, text="")
    assert done.returncode == 0, done.stderr


def test_a_refused_turn_is_not_part_of_the_conversation() -> None:
    question = "What is the capital of Japan?\n"
    done = orcaserve("chat", *SMALL, "--max-tokens", "16", "--temperature", "0", text=f"{'word ' * 3000}\n{question}")
    assert done.returncode == 0, done.stderr
    assert "but the K/V region holds 2048" in done.stderr
    assert "Tokyo" in done.stdout


def test_the_worlds_errors_are_one_line(tmp_path: Path) -> None:
    tail = ("--prompt", "1, 2, 3,", "--max-tokens", "4", "--temperature", "0")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "orcaserve", "generate", *SMALL, *tail]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 1 and done.stderr.strip().splitlines()[-1] == "orcaserve: No space left on device"
    (tmp_path / "file").touch()
    done = orcaserve("generate", *tail, ORCASERVE_CACHE=str(tmp_path / "file" / "cache"))
    assert done.returncode == 1 and "Traceback" not in done.stderr and "Not a directory" in done.stderr
    ascii_only = orcaserve("generate", *SMALL, *tail, "--stop", "é", PYTHONIOENCODING="ascii")
    assert ascii_only.returncode == 0


def test_ctrl_c_stops_an_answer_and_not_the_chat() -> None:
    command = [sys.executable, "-m", "orcaserve", "chat", *SMALL, "--max-tokens", "1500", "--temperature", "0"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as chat:
        assert chat.stdin is not None and chat.stdout is not None
        chat.stdin.write("Count from 1 to 1000.\n")
        chat.stdin.flush()
        assert chat.stdout.read(1), "the answer has begun"
        time.sleep(0.2)
        chat.send_signal(signal.SIGINT)
        rest, _ = chat.communicate("/quit\n", timeout=60)
        assert chat.returncode == 0
        assert len(rest) < 1500


def test_models_list_and_path(default_model: Path) -> None:
    assert orcaserve("models", "path").stdout.strip() == str(default_model)
    assert orcaserve("models", "pull").stdout.strip() == str(default_model)
    listed = orcaserve("models", "list").stdout
    assert DEFAULT_MODEL in listed
    assert str(default_model) in listed


def test_supported_families_are_listed() -> None:
    lines = orcaserve("models", "list", "--supported").stdout.splitlines()
    assert lines[0].split()[:3] == ["family", "config.json", "GGUF"]
    assert len(lines) == 1 + len(FAMILIES)
    for family, line in zip(FAMILIES, lines[1:], strict=True):
        assert line.startswith(family.title) and family.example in line
        assert all(name in line for name in (*family.model_types, *family.architectures))


def test_a_converted_model_gives_the_same_text(default_model: Path, tmp_path: Path) -> None:
    folder, tail = tmp_path / "converted", ("--prompt", "Once upon a time", "--max-tokens", "24", "--temperature", "0")
    done = orcaserve("models", "convert", str(default_model), str(folder), "-t", "1")
    assert done.returncode == 0, done.stderr
    assert "weights in int8" in done.stdout
    direct = orcaserve("generate", *SMALL, *tail)
    converted = orcaserve("generate", *SMALL, *tail, "-m", str(folder))
    assert converted.stdout == direct.stdout != ""
    assert orcaserve("models", "convert", str(default_model), str(folder)).returncode == 2
    wrong = orcaserve("generate", *SMALL, *tail, "-m", str(folder), "--quantization", "int4")
    assert wrong.returncode == 2 and "--quantization: this model was converted with int8" in wrong.stderr
    other = orcaserve("generate", *SMALL, *tail, "-m", str(folder), "--device", "reference")
    assert other.returncode == 3 and "was converted for the CPU's kernels" in other.stderr
    weights = next(folder.glob("*.safetensors"))
    with weights.open("r+b") as file:
        file.seek(-1000, 2)
        byte = file.read(1)
        file.seek(-1000, 2)
        file.write(bytes([byte[0] ^ 4]))
    damaged = orcaserve("generate", *SMALL, *tail, "-m", str(folder))
    assert damaged.returncode == 3 and "layers.29" in damaged.stderr and "is damaged" in damaged.stderr
    assert "Traceback" not in damaged.stderr


def test_how_weights_are_held_is_said_and_can_be_chosen() -> None:
    tail = ("--prompt", "1, 2, 3, 4,", "--max-tokens", "6", "--temperature", "0")
    chosen = orcaserve("generate", *SMALL, *tail)
    assert "weights in int8, the file is quantised (Q4_1, Q8_0); keys and values in int8" in chosen.stderr
    for flags, says in (
        (("--quantization", "none"), "weights in float32, as asked for; keys and values in float32"),
        (
            ("--quantization", "int4", "--kv-cache-dtype", "bfloat16"),
            "weights in int4, as asked for; keys and values in b",
        ),
        (("--device", "reference"), ""),
    ):
        done = orcaserve("generate", *SMALL, *tail, *flags)
        assert done.stdout == " 5, 6,", done.stderr
        assert says in done.stderr
    for flags in (("--device", "tpu"), ("--device", "reference", "--quantization", "int8")):
        assert orcaserve("generate", *SMALL, *tail, *flags).returncode == 2


def test_doctor_names_facts_and_troubles() -> None:
    done = orcaserve("doctor")
    assert done.returncode == 0, done.stdout
    for fact in ("orcaserve", "torch", "instruction set", "cores usable", "GiB available", "int4", "threads"):
        assert fact in done.stdout
    wrong = orcaserve("doctor", ORCASERVE_ISA="z80")
    assert wrong.returncode == 1
    assert "TROUBLE  ORCASERVE_ISA" in wrong.stdout
