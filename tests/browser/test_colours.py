"""Contrast of the page's colours, as the browser computes them, by WCAG 2: AA for text, 3:1 for what is drawn."""

from __future__ import annotations

import re
from typing import Any

import pytest

TEXT = [
    ("text", "background"), ("text", "panel"), ("muted", "background"), ("muted", "panel"), ("muted", "line"),
    ("accent", "background"), ("accent", "panel"), ("on-accent", "accent"), ("bad", "background"), ("bad", "panel"),
]  # fmt: skip
DRAWN = [(name, "background") for name in ("increment", "initiation", "waiting", "reserved", "used", "bad", "border")]
DRAWN += [("border", "panel"), ("used", "reserved"), ("increment", "line"), ("initiation", "line")]


def luminance(colour: str) -> float:
    found = re.fullmatch(r"#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})", colour)
    assert found, colour
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (int(h, 16) / 255 for h in found.groups())
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_formula() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast(page: Any, theme: str) -> None:
    page.get_by_label("Colours").select_option(theme)
    names = sorted({name for pair in TEXT + DRAWN for name in pair})
    read = "(names) => names.map((n) => getComputedStyle(document.documentElement).getPropertyValue('--' + n).trim())"
    colours = dict(zip(names, page.evaluate(read, names), strict=True))
    too_low = [
        (least, pair, round(contrast(colours[pair[0]], colours[pair[1]]), 2))
        for least, pairs in ((4.5, TEXT), (3.0, DRAWN))
        for pair in pairs
        if contrast(colours[pair[0]], colours[pair[1]]) < least
    ]
    assert too_low == []


def test_the_system_decides_until_somebody_chooses(page: Any) -> None:
    shown = "() => document.documentElement.dataset.theme"
    page.emulate_media(color_scheme="dark")
    page.locator("html[data-theme=dark]").wait_for(state="attached")
    page.get_by_label("Colours").select_option("light")
    assert page.evaluate(shown) == "light"
    page.reload()
    assert page.evaluate(shown) == "light"
