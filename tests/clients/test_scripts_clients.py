"""scripts/clients itself: a client that fails, dies, hangs or cannot be installed is said so, by its own words."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import main
import pytest
from bench import Bench
from catalogue import CLIENTS, Client
from document import document
from environment import CannotInstall, PythonEnvironment
from evaluation import NAMES, TEXT, _compared, write_tasks
from fuzzing import _statuses
from load_tools import _judged
from outcome import Outcome, Step, table
from server_process import Serve
from spoken import PROGRAMS, spoken

HERE = PythonEnvironment(Path(sys.prefix), "openai", ())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench("http://127.0.0.1:1", "tiny", tmp_path, HERE)


def program(folder: Path, lines: str) -> str:
    text = f"import sys\nsys.path.insert(0, {str(PROGRAMS)!r})\nfrom steps import run, same\n{lines}"
    (folder / "program.py").write_text(text)
    return str(folder / "program.py")


def test_steps_fail_by_their_own_words_and_the_others_run(bench: Bench) -> None:
    script = program(
        bench.work,
        "def good(): 'good'\n"
        "def bad():\n    'bad'\n    assert 1 == 2\n"
        "async def other():\n    'other'\n    same('x', 'y')\n"
        "sys.exit(run([good, bad, other]))\n",
    )
    bad, other = "AssertionError: assert 1 == 2", "AssertionError: 'x', expected 'y'"
    assert spoken(script)(bench) == [Step("good"), Step("bad", bad), Step("other", other)]


def test_a_program_that_dies(bench: Bench) -> None:
    script = program(bench.work, "def good(): 'good'\nrun([good])\nraise SystemExit('gone')\n")
    assert spoken(script)(bench) == [Step("good"), Step("the program ends", "exit code 1: gone")]


def test_a_command_that_takes_too_long_ends_with_what_it_started(bench: Bench) -> None:
    finished = bench.call("sh", "-c", "echo waiting; sleep 60 & wait", seconds=0.5)
    assert finished.code is None and finished.problem == "took too long: waiting"
    assert bench.commands == ["sh -c 'echo waiting; sleep 60 & wait'"]


def test_commands_are_shown_with_the_address_that_people_type(bench: Bench) -> None:
    bench.call("echo", bench.base)
    assert bench.commands == ["echo http://127.0.0.1:8000"]


def test_a_report_that_says_less_than_was_asked_for(bench: Bench) -> None:
    finished = bench.call("true")
    assert _judged("all", finished, {"done": "8"}, {"done": 8}) == Step("all")
    assert _judged("all", finished, {"done": "7"}, {"done": 8}) == Step("all", "done 7, expected 8")
    assert _judged("all", finished, {}, {"done": 8}) == Step("all", "done None, expected 8")
    assert _judged("all", bench.call("false"), {"done": "8"}, {"done": 8}).error == "exit code 1: no output"


def test_scores_apart_by_more_than_the_tolerance(tmp_path: Path) -> None:
    task = NAMES[1]

    def write(name: str, score: float, likelihood: float) -> Path:
        folder = tmp_path / name / "model"
        folder.mkdir(parents=True)
        results = {task: {"alias": task, "bits_per_byte,none": score, "bits_per_byte_stderr,none": "N/A"}}
        (folder / "results_1.json").write_text(json.dumps({"results": results}))
        (folder / f"samples_{task}_1.jsonl").write_text(json.dumps({"doc_id": 0, "resps": [[str(likelihood)]]}) + "\n")
        return tmp_path / name

    ours = write("ours", 8.0, -100.0)
    assert _compared(task, ours, write("near", 8.000004, -100.00001)).error is None
    assert _compared(task, ours, write("far", 8.00002, -100.0)).error == "bits_per_byte 8.0, expected 8.00002"
    with pytest.raises(ValueError, match="unpack"):
        _compared(task, ours, tmp_path / "nothing")


def test_tasks_are_made_of_the_text(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    choices = [json.loads(line) for line in (tmp_path / "choice.jsonl").read_text().splitlines()]
    text = " ".join(TEXT.read_text().split())
    assert len(choices) == 30
    for entry in choices:
        assert f"{entry['context']} {entry['ends'][entry['answer']]}" in text and len(set(entry["ends"])) == 4


def test_statuses_are_counted(tmp_path: Path) -> None:
    lines = [{"Scenario": {"responses": {"a": {"status_code": 200}, "b": {"status_code": 400}}}}, {"End": 1}]
    (tmp_path / "events.ndjson").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert _statuses(tmp_path / "events.ndjson") == {200: 1, 400: 1}
    assert not _statuses(tmp_path / "none")


def test_outcomes_are_kept_and_told(tmp_path: Path) -> None:
    steps = (Step("one"), Step("two", "no such thing"))
    outcome = Outcome("openai", "3.1", "2026-01-02", ("openai_python.py http://127.0.0.1:8000 M",), steps)
    outcome.save(tmp_path)
    assert Outcome.load(tmp_path) == outcome and Outcome.load(tmp_path / "other") is None
    assert outcome.failed and Outcome("a", "1", "d", (), ()).failed
    assert not Outcome("a", "1", "d", (), (Step("one"),)).failed
    assert table([outcome]) == [
        ("openai", "3.1", "one", "pass"),
        ("openai", "3.1", "two", "FAIL: no such thing"),
    ]
    page = document([(CLIENTS[0], outcome), (CLIENTS[1], None)])
    assert "| openai for Python | 3.1 | 1 of 2 pass | 2026-01-02 |" in page
    assert "| openai for Node | - | not run | - |" in page
    assert "- two: **failed** (no such thing)" in page and "openai_python.py http://127.0.0.1:8000 M" in page


def test_what_cannot_be_installed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client("missing", "Missing", "missing", (str(tmp_path / "missing-1-py3-none-any.whl"),), lambda bench: [])
    with pytest.raises(CannotInstall, match="missing-1"):
        client.environment(tmp_path / "environment").install(upgrade=False)
    monkeypatch.setattr(main, "CLIENTS", (client,))
    monkeypatch.setattr(main, "NAMES", ["missing"])
    assert main.main(["--home", str(tmp_path / "home")]) == 1
    kept = Outcome.load(tmp_path / "home" / "missing")
    assert kept is not None and kept.steps[0].what == "not run"


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main.main(["openia"])
    assert end.value.code == 2 and "no such client: openia; there are openai, " in capsys.readouterr().err


def test_the_openai_client_as_the_script_runs_it(default_model: Path, tmp_path: Path) -> None:
    """The one client that tests have at hand anyway."""
    serve = Serve("--port", "0", "--n-slots", "16384", "-t", "1")
    try:
        steps = spoken("openai_python.py")(Bench(serve.base, serve.model, tmp_path, HERE))
        assert len(steps) >= 15 and [step for step in steps if step.error] == []
    finally:
        serve.stop()
