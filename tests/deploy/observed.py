"""What the expressions in deploy/ ask for: metrics, and labels of each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "orcaserve.json"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
SCRAPES = DEPLOY / "prometheus" / "prometheus.yml"
BY_PROMETHEUS = {"instance", "job"}  # labels that it adds to what it reads
_SELECTOR = re.compile(r"\b((?:orcaserve_|vllm:)\w+|up\b)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_LEGEND = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def selectors(expression: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Each metric it names, with the labels that are compared and with what."""
    for name, inside in _SELECTOR.findall(expression):
        yield name, dict(_MATCHER.findall(inside))


def grouped(expression: str) -> set[str]:
    """Labels by which it adds up or compares."""
    return {word for inside in _GROUPING.findall(expression) for word in re.findall(r"\w+", inside)}


def legends(text: str) -> set[str]:
    return set(_LEGEND.findall(text))


def expressions() -> Iterator[tuple[str, str, set[str]]]:
    """(where, expression, labels that are shown beside it)."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            shown = {} if panel["type"] == "heatmap" else legends(target["legendFormat"])
            yield panel["title"], target["expr"], set(shown)
    for rule in rules():
        shown = set().union(*(legends(text) for text in rule["annotations"].values()))
        yield rule["alert"], rule["expr"], shown
