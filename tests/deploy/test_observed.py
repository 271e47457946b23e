"""Dashboard, alerts and scrapes: that they are such, and ask for nothing that there is not.

tests/multiprocess/test_observing.py holds them to what a real server exports.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))
from observed import ALERTS, BY_PROMETHEUS, SCRAPES, dashboard, expressions, grouped, rules, selectors

from orcaserve.serving.observing.table import FAMILIES

BY_NAME = {name: family for family in FAMILIES for name in family.names}


def labels_of(name: str) -> set[str]:
    """Of a series, by the table of metrics."""
    if name == "up":
        return set()
    family = BY_NAME.get(name)
    if family is None or family.kind == "histogram":
        base = re.sub(r"_(bucket|count|sum)$", "", name)
        family = BY_NAME[base]
        assert family.kind == "histogram" and base != name, f"{name} is no series"
    return {"model_name", *family.labels, *(["le"] if name.endswith("_bucket") else [])}


def test_every_expression_asks_for_what_there_is() -> None:
    seen = set()
    for where, expression, shown in expressions():
        named = list(selectors(expression))
        assert named, f"{where}: {expression} names no metric"
        known = set().union(*(labels_of(name) for name, _ in named)) | BY_PROMETHEUS
        for name, matched in named:
            assert set(matched) <= labels_of(name) | BY_PROMETHEUS, (where, name, matched)
            seen.add(name)
        assert grouped(expression) <= known, where
        kept = grouped(expression) if re.search(r"\b(sum|max|topk)\b.*\(", expression) else known
        assert shown <= kept | BY_PROMETHEUS, (where, shown, kept)
        assert expression.count("(") == expression.count(")") and expression.count("{") == expression.count("}")
    assert len(seen) > 30


def test_rates_are_of_counters_and_nothing_else_is_a_rate() -> None:
    for where, expression, _ in expressions():
        for match in re.finditer(r"\b(rate|increase)\((orcaserve_\w+|vllm:\w+)", expression):
            name = match[2]
            base = re.sub(r"_(bucket|count|sum)$", "", name)
            assert name.endswith("_total") or BY_NAME[base].kind == "histogram", (where, name)
        for name, _ in selectors(expression):
            if name.endswith("_total"):
                assert re.search(rf"(rate|increase)\({re.escape(name)}", expression), (where, name)


def test_the_dashboard_is_one() -> None:
    board = dashboard()
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 30
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] >= 0 and place["x"] + place["w"] <= 24 and place["w"] > 0 and place["h"] > 0
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"], "two panels lie over each other"
        if panel["type"] != "row":
            assert panel["description"] and panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
            assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])
    titles = [panel["title"] for panel in panels]
    assert len(set(titles)) == len(titles)
    variables: dict[str, Any] = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert set(variables) == {"datasource", "model", "instance"}
    used = set(re.findall(r"\$(\w+)|\$\{(\w+)\}", json.dumps(board)))
    assert {name for pair in used for name in pair if name} <= {*variables, "__rate_interval", "__all"}
    assert board["uid"] == "orcaserve" and "id" not in board, "an import makes a new one"


def test_the_file_is_what_the_script_writes() -> None:
    script = Path(__file__).parents[2] / "scripts" / "gen-dashboard"
    assert subprocess.run([sys.executable, str(script), "--check"]).returncode == 0


def test_alerts_are_rules_and_the_scrape_finds_them() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("info", "warning", "critical") and rule["annotations"]["summary"]
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
    config = yaml.safe_load(SCRAPES.read_text())
    assert config["rule_files"] == [ALERTS.name]
    jobs = {job["job_name"] for job in config["scrape_configs"]}
    asked = {found["job"] for rule in rules() for name, found in selectors(rule["expr"]) if name == "up"}
    assert asked == jobs


def test_values_of_labels_are_such_as_there_are() -> None:
    """A matcher that can match nothing would be silent for ever."""
    reasons = {"stop", "length", "abort", "error"}
    root = Path(__file__).parents[2] / "orcaserve"
    codes = "".join(path.read_text() for path in root.rglob("*.py"))
    for where, expression, _ in expressions():
        for _, matched in selectors(expression):
            if "finished_reason" in matched:
                assert set(matched["finished_reason"].split("|")) <= reasons, where
            for code in filter(None, matched.get("code", "").split("|")):
                assert f'"{code}"' in codes or code in ("overloaded", "deadline_unreachable"), (where, code)
