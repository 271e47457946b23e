"""The curl commands of README.md and docs/: each is one that the API takes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest

import orcaserve
from orcaserve.serving.openapi import document
from orcaserve.serving.route import OTHER_PROTOCOLS
from orcaserve.serving.routes import ROUTER

ROOT = Path(orcaserve.__file__).parent.parent
HOST = re.compile(r"(http://)?(127\.0\.0\.1|localhost):8000")


def commands() -> Iterator[tuple[str, list[str]]]:
    """The words of each command, and its page. A command goes on while a quote is open or its line ends with \\."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        command = ""
        for line in page.read_text(encoding="utf-8").splitlines():
            bare = line.strip()
            if command or bare.startswith("curl "):
                command += line + "\n"
                if command.count("'") % 2 == 0 and not bare.endswith("\\"):
                    words = shlex.split(command, comments=True)
                    yield page.name, words[: words.index("|")] if "|" in words else words
                    command = ""


EXAMPLES = [pytest.param(words, id=f"{page}-{i}") for i, (page, words) in enumerate(commands())]


def test_they_are_found() -> None:
    assert len(EXAMPLES) > 12


@pytest.mark.parametrize("words", EXAMPLES)
def test_the_api_takes_it(words: list[str]) -> None:
    (url,) = filter(HOST.match, words)
    path = urlsplit("http://" + url.removeprefix("http://")).path
    headers = [words[i + 1].lower() for i, word in enumerate(words) if word == "-H"]
    bodies = [words[i + 1] for i, word in enumerate(words) if word == "-d"]
    found = ROUTER.find(path)
    assert found is not None, path
    route = found.of("POST" if bodies else "GET")
    assert route is not None, words
    if bodies:
        assert "content-type: application/json" in headers or path.startswith(OTHER_PROTOCOLS)
        api: dict[str, Any] = document()
        said = api["paths"][route.path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        schema = {**said, "additionalProperties": False, "components": api["components"]}
        jsonschema.validate(json.loads(bodies[0]), schema)
