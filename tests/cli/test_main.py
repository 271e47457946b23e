"""The command line's outer shape: verbs, help, exit codes, and what it does not import."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from orcaserve.cli.main import VERBS, main
from orcaserve.cli.options import size_in_bytes


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "orcaserve", *args], capture_output=True, text=True, timeout=60, check=False
    )


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(verb in text for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([verb, "--help"])
    assert end.value.code == 0
    assert f"orcaserve {verb}" in capsys.readouterr().out


@pytest.mark.parametrize("args", [["--help"], *[[verb, "--help"] for verb in VERBS]])
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    """What keeps `--help` fast: a timed assert would be flaky, this is the cause itself."""
    program = (
        "import sys\nfrom orcaserve.cli.main import main\n"
        f"try: main({args!r})\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'grpc', 'starlette', 'uvicorn', 'pydantic', 'tokenizers', 'jinja2'}\n"
        "heavy |= {'huggingface_hub', 'gguf', 'safetensors'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["fly"], 2, "there is no verb 'fly'"),
        (["serve", "--port", "x"], 2, "--port"),
        (["serve", "--port", "70000"], 2, "--port"),
        (["serve", "--n-slots", "-3"], 2, "--n-slots"),
        (["serve", "--n-slots", "64", "--kv-cache-memory-bytes", "1GiB"], 2, "not both"),
        (["serve", "--max-num-seqs", "0"], 2, "--max-num-seqs"),
        (["serve", "--api-key", ""], 2, "--api-key: is empty"),
        (["serve", "--uds", "x" * 128], 2, "path too long"),
        (["serve", "a.gguf", "-m", "b.gguf"], 2, "given twice"),
        (["serve", "no/such/file.gguf"], 3, "no such file"),
        (["models", "path", "nothing-here"], 3, "no such file"),
        (["generate"], 2, "--prompt"),
        (["generate", "--prompt", "a", "--max-tokens", "0"], 2, "max_tokens must be an integer from 1"),
        (["generate", "--prompt", "a", "--temperature", "nan"], 2, "temperature must be a finite number"),
    ],
)
def test_wrong_use_is_one_line_that_names_it(args: list[str], code: int, says: str) -> None:
    done = run(*args)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("1k", 1000), ("2KiB", 2048), ("1.5G", 1_500_000_000), ("4GiB", 2**32)]
)
def test_sizes(text: str, size: int) -> None:
    assert size_in_bytes(text) == size


@pytest.mark.parametrize("text", ["", "-1", "0", "x", "1.5.5", "nan", "inf", "1ki2", "1gg", "1e30"])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        size_in_bytes(text)
