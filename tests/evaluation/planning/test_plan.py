"""The planner: what fits, what carries the most within a target, and what is said when nothing does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orcaserve.checkpoint.locate import locate_model
from orcaserve.cli.main import main
from orcaserve.core import ConfigError
from orcaserve.evaluation.planning.engine import PlannedEngine, accelerator_engine, file_sizes, smallest_cut
from orcaserve.evaluation.planning.plan import MEMORY, SLOTS, TARGET, make_plan
from orcaserve.evaluation.planning.search import Search, measured
from orcaserve.evaluation.sizes import slot_bytes
from orcaserve.evaluation.targets import parse_target
from orcaserve.simulation.device_memory import DeviceMemory
from orcaserve.simulation.hardware import A100_40GB, HARDWARE
from orcaserve.simulation.machine import this_machine
from orcaserve.simulation.models import PAPER_MODELS, Cut
from orcaserve.simulation.outcome import Life, Outcome
from orcaserve.simulation.profile import Profile, ProfiledCost
from orcaserve.workload import Arrival
from orcaserve.workload.named import Homogeneous, Workload

COST = ProfiledCost((1, 32, 512), (4e-3, 9e-3, 80e-3), 60e-6, 150e-9, 20e-9)
WORKLOAD = Workload("homogeneous:64:16", Homogeneous(64, 16), 80)


def _engine(n_slots: int, largest_batch: int = 16) -> PlannedEngine:
    memory = DeviceMemory(total=1000 + n_slots * 10, kept_back=400, weights=600, slot=10)
    return PlannedEngine("m", "a machine", COST, memory, 1, 2048, 16, largest_batch)


def test_what_the_paper_s_models_take_of_each_device() -> None:
    """Slots as in the paper's table; weights 12 H^2 a layer, and the head."""
    slots = {"13b": 819_200, "101b": 409_600, "175b": 294_912, "341b": 230_400}
    for name, slot in slots.items():
        engine = accelerator_engine(PAPER_MODELS[name][0], A100_40GB, PAPER_MODELS[name][1])
        assert engine.memory.slot == slot
        assert engine.devices == PAPER_MODELS[name][1].devices
        assert engine.n_slots > 2048
    sizes, cut = PAPER_MODELS["175b"]
    assert accelerator_engine(sizes, A100_40GB, cut).memory.weights == pytest.approx(21.9e9, rel=0.01)
    assert accelerator_engine(sizes, A100_40GB, Cut(1, 8)).n_slots == 0, "8 devices cannot hold 175B"


def test_a_target_is_kept_up_to_a_load_and_missed_beyond() -> None:
    target = parse_target("p50_normalized<=12ms")
    plan = make_plan(_engine(20_000), WORKLOAD, [target])
    assert plan.fits and plan.best is not None and plan.best.most is not None
    search = Search(_engine(20_000), WORKLOAD, [target])
    for one in plan.tried:
        again = search.carried(one.max_bs, 20_000)
        assert (again.most, again.breaks, again.capacity) == (one.most, one.breaks, one.capacity)
        assert all(t.of_bound <= 1 for t in one.tries if one.most and t.rate <= one.most.rate)
        assert one.breaks is None or one.breaks.of_bound > 1
        assert one.load <= plan.best.load * 1.02
    assert plan.best.n_slots <= 20_000


def test_few_slots_bind_and_more_would_carry_more() -> None:
    few, many = (make_plan(_engine(n), WORKLOAD, [parse_target("p90_e2e<=2s")]) for n in (160, 20_000))
    assert few.limit == SLOTS and few.best is not None and many.best is not None
    assert few.best.load < many.best.load
    assert many.best.n_slots < 20_000, "slots that nobody needs are not asked for"


def test_a_model_that_does_not_fit() -> None:
    engine = replace(_engine(100), memory=DeviceMemory(500, 400, 600, 10))
    plan = make_plan(engine, WORKLOAD, [parse_target("p50_itl<=1s")])
    assert not plan.fits and plan.limit == MEMORY
    assert "does not fit" in plan.text()


def test_a_target_that_no_load_meets() -> None:
    plan = make_plan(_engine(20_000), WORKLOAD, [parse_target("p99_itl<=1us")])
    assert not plan.fits and plan.limit == TARGET
    assert "cannot be met" in plan.text()


def test_replicas_carry_what_is_wanted() -> None:
    alone = make_plan(_engine(20_000), WORKLOAD, [parse_target("p50_normalized<=12ms")])
    assert alone.replicas == 1 and alone.best is not None
    wanted = make_plan(_engine(20_000), WORKLOAD, [parse_target("p50_normalized<=12ms")], alone.best.load * 2.5)
    assert wanted.replicas == 3


def test_all_targets_must_be_met() -> None:
    loose, tight = parse_target("p50_normalized<=1s"), parse_target("p50_normalized<=12ms")
    both = Search(_engine(20_000), WORKLOAD, [loose, tight]).carried(8, 20_000)
    assert both.most == Search(_engine(20_000), WORKLOAD, [tight]).carried(8, 20_000).most


@pytest.mark.parametrize(
    ("target", "seconds"),
    [("p50_ttft<=1s", 1.0), ("p50_e2e<=1s", 5.0), ("p50_normalized<=1s", 2.5), ("p99_itl<=1s", 4.0)],
)
def test_what_a_target_is_about(target: str, seconds: float) -> None:
    outcome = Outcome([Life(Arrival(2.0, 5, 2), [3.0, 7.0])], 2, 7.0, [5.0])
    assert measured(outcome, parse_target(target)) == seconds


def test_who_is_refused_misses_every_target() -> None:
    outcome = Outcome([Life(Arrival(0.0, 5, 2), [], "too long")], 0, 0.0, [0.0])
    assert measured(outcome, parse_target("p50_e2e<=1s")) == float("inf")


def test_a_file_s_headers_say_what_it_takes() -> None:
    path = locate_model(None)
    sizes = file_sizes(path, "default", 16, 16)
    assert sizes.all_weight_bytes == pytest.approx(2 * 134.5e6, rel=0.01)
    from orcaserve.evaluation.sizes import model_spec

    assert sizes.slot_bytes == slot_bytes(model_spec(path), "bfloat16")
    assert smallest_cut(sizes, HARDWARE["h100"]) == Cut(1, 1)
    assert smallest_cut(PAPER_MODELS["175b"][0], HARDWARE["h200"]).devices == 4


def _profile(path: Path, **model: str) -> Path:
    facts = {"name": "SmolLM2-135M-Instruct", "weights": "int8", "kv_cache_dtype": "int8"} | model
    Profile(this_machine(), facts, {"max_bs": 16}, COST).save(path)
    return path


def test_the_command_with_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = _profile(tmp_path / "profile.json")
    plot = tmp_path / "plan.svg"
    flags = ["--hardware", str(profile), "--workload", "homogeneous:64:16", "--n", "60", "--json"]
    assert main(["plan", "default", *flags, "--target", "p50_normalized<=50ms", "--plot", str(plot)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] and found["max_bs"] <= 16 and found["req_s"] > 0
    assert plot.read_text().startswith("<svg ")
    assert main(["plan", "default", *flags, "--target", "p50_itl<=1us"]) == 1


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["175b", "--target", "soon"], "--target"),
        (["175b", "--target", "p50_speed<=1s"], "--target"),
        (["175b", "--hardware", "abacus"], "--hardware"),
        (["default", "--hardware", "abacus"], "--hardware"),
        (["175b", "-tp", "16"], "-tp"),
        (["175b", "-pp", "200"], "-pp"),
        (["175b", "--workload", "nothing"], "--workload"),
    ],
)
def test_a_wrong_flag_is_named_in_one_line(flags: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *flags]) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1


def test_an_unknown_model_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "12b", "--hardware", "h100"]) == 3
    assert "12b" in capsys.readouterr().err


def test_a_profile_of_another_machine_or_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = tmp_path / "elsewhere.json"
    facts = {"name": "SmolLM2-135M-Instruct", "weights": "int8", "kv_cache_dtype": "int8"}
    Profile({**this_machine(), "cores": 999}, facts, {"max_bs": 16}, COST).save(elsewhere)
    other = _profile(tmp_path / "other.json", name="another")
    coarse = _profile(tmp_path / "coarse.json", weights="int4")
    for path, named in ((elsewhere, "machine.cores"), (other, "model.name"), (coarse, "model.weights")):
        assert main(["plan", "default", "--hardware", str(path)]) == 2
        error = capsys.readouterr().err
        assert named in error and error.count("\n") == 1
    flags = ["--any-machine", "--n", "40", "--workload", "homogeneous:16:4", "--target", "p50_e2e<=9s"]
    assert main(["plan", "default", "--hardware", str(elsewhere), *flags]) == 0


def test_a_target_needs_a_plan() -> None:
    with pytest.raises(ConfigError):
        parse_target("p50_normalized<=0ms")


def test_devices_are_divided_into_the_replicas_that_carry_most(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--devices", "2", "--workload", "homogeneous:64:8", "--n", "24", "--target", "p50_normalized<=1s"]
    assert main(["plan", "13b", *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["devices"] == 2 and found["replicas"] in (1, 2)
    assert found["req_s_of_all"] == pytest.approx(found["replicas"] * found["req_s"])
    assert main(["plan", "13b", *flags, "-tp", "2"]) == 2
    assert main(["plan", "13b", *flags, "--load", "3"]) == 2
