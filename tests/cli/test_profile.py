"""`orcaserve profile`: a file that simulations can load, and wrong use in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from orcaserve.cli import profile
from orcaserve.cli.main import main
from orcaserve.cli.profile_file import default_profile
from orcaserve.simulation.machine import this_machine
from orcaserve.simulation.profile import load_profile

TINY = ("--dtype", "float32", "--kv-cache-dtype", "float32", "-t", "1", "--n-slots", "16384", "--max-num-seqs", "4")


def test_a_profile_is_measured_and_stored(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(profile, "QUICK_SECONDS", 0.05)
    path = tmp_path / "new" / "tiny.json"
    assert main(["profile", str(tiny_model), "--quick", "-o", str(path), *TINY]) == 0
    assert f"stored in {path}" in capsys.readouterr().out
    stored = load_profile(path)
    stored.check_machine(this_machine())
    assert stored.engine["max_bs"] == 4 and stored.engine["n_slots"] == 16384 and stored.engine["threads"] == 1
    assert (stored.model["weights"], stored.model["kv_cache_dtype"]) == ("float32", "float32")
    assert len(str(stored.model["fingerprint"])) == 64
    assert stored.fit["n_samples"] > 20 and stored.fit["slowdown"] > 0
    assert stored.cost.knots[0] == 1 and all(cost > 0 for cost in stored.cost.at_knots)


def test_profiles_lie_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORCASERVE_CACHE", str(tmp_path))
    assert default_profile("owner/name") == tmp_path / "profiles" / "owner--name.json"


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (["no/such/file.gguf"], 3, "no such file"),
        (["-pp", "2"], 2, "a profile is of an engine in one process"),
        (["--n-slots", "16"], 2, "--n-slots: 16 slots are too few"),
    ],
)
def test_wrong_use(
    flags: list[str], code: int, says: str, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = [] if flags[0].startswith("no/") else [str(tiny_model)]
    assert main(["profile", *flags, *model, "-o", str(tmp_path / "p.json"), "-t", "1"]) == code
    assert says in capsys.readouterr().err
