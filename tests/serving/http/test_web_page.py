"""The web page's files: what they weigh, that they need nothing from elsewhere, and the headers they come with."""

from __future__ import annotations

import re
from typing import Any

import pytest

from orcaserve.serving.web_page import INDEX, MOST_BYTES, web_files

FILES = web_files()
TEXTS = {name: file.body.decode() for name, file in FILES.items()}


def test_all_files_together_are_small() -> None:
    assert INDEX in FILES and "main.js" in FILES
    assert 10_000 < sum(len(file.body) for file in FILES.values()) <= MOST_BYTES


@pytest.mark.parametrize("name", sorted(FILES))
def test_nothing_comes_from_elsewhere(name: str) -> None:
    text = TEXTS[name].replace("http://www.w3.org/2000/svg", "")  # the name of SVG, which nobody fetches
    assert not re.search(r"(https?|wss?|ftp):|[\"'(]//|@import|data:text", text)


@pytest.mark.parametrize("name", sorted(name for name in FILES if name.endswith(".js")))
def test_no_text_becomes_markup_or_code(name: str) -> None:
    assert not re.search(
        r"\b(inner|outer)HTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser", TEXTS[name]
    )


def test_nothing_is_inline() -> None:
    """The policy would not run it."""
    html = TEXTS[INDEX]
    assert re.findall(r"<script[^>]*>", html) == re.findall(r"<script[^>]* src=\"web/[^>]*>", html)
    assert not re.search(r"<style|\sstyle=|\son\w+=", html)


def test_every_file_that_is_named_is_there() -> None:
    named = {m for text in TEXTS.values() for m in re.findall(r"(?:\"web/|from \"\./)([\w.]+)\"", text)}
    assert named | {INDEX} == set(FILES)


@pytest.mark.parametrize("path", ["/", *(f"/web/{name}" for name in sorted(FILES))])
def test_headers(server: Any, path: str) -> None:
    answer = server.http.get(path)
    file = FILES[path.removeprefix("/web/") if path != "/" else INDEX]
    assert answer.status_code == 200 and answer.content == file.body
    assert answer.headers["content-type"].encode() == file.content_type
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert all("'self'" in part or "'none'" in part for part in policy.split(";"))
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("known", ["{}", "W/{}", '"x", {}', "*"])
def test_a_browser_that_has_a_file_is_told_so(server: Any, known: str) -> None:
    etag = server.http.get("/web/main.js").headers["etag"]
    answer = server.http.get("/web/main.js", headers={"if-none-match": known.format(etag)})
    assert answer.status_code == 304 and answer.content == b"" and "content-length" not in answer.headers
    assert answer.headers["etag"] == etag and "content-security-policy" in answer.headers
    assert server.http.get("/web/main.js", headers={"if-none-match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "name", ["x.js", "../web_page.py", "..%2fweb_page.py", "%2e%2e/app.py", "main.js/", "", "MAIN.JS"]
)
def test_no_other_file_is_given(server: Any, name: str) -> None:
    answer = server.http.get(f"/web/{name}")
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"
