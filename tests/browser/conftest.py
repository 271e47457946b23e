"""A real browser, headless, before a real server. Skipped where there is no Chromium, or no playwright to drive it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "multiprocess"))
from byte_tokenizer import add_tokenizer
from server_process import Serve

LONGEST = 16_384  # tokens of a text
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if CHROMIUM is None:
                item.add_marker(pytest.mark.skip(reason="there is no Chromium (Debian: apt install chromium)"))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """For one module at a time: while it is open no other event loop can run on this thread."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (the extra `dev`)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def served_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some thousand tokens a second: texts must be long if somebody is to click while they are written."""
    folder = add_tokenizer(tiny_model, tmp_path_factory.mktemp("served") / "tiny", 256)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": LONGEST}))
    return folder


@pytest.fixture(scope="session")
def start(served_model: Path) -> Iterator[Callable[..., Serve]]:
    """Start servers; all of them are stopped at the end."""
    servers: list[Serve] = []

    def run(*flags: str, key: str | None = None) -> Serve:
        common = ("--port", "0", "-t", "1", "--n-slots", "131072", "--max-model-len", str(LONGEST), "-np", "8")
        servers.append(Serve(str(served_model), *common, *flags, key=key))
        return servers[-1]

    yield run
    for server in servers:
        try:
            server.stop()
        finally:
            server.process.kill()


@pytest.fixture(scope="session")
def serve(start: Callable[..., Serve]) -> Serve:
    return start()


@pytest.fixture
def new_page(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Open pages, each in a browser profile of its own. What a page's code or its policy complains of is a failure."""
    contexts, wrong = [], []

    def open_page(base: str, **options: Any) -> Any:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
        page.goto(base + "/")
        return page

    yield open_page
    for context in contexts:
        context.close()
    # Chromium writes a line of its own for every answer that is an error; what became of it the tests look at.
    assert [text for text in wrong if "Failed to load resource" not in text] == []


@pytest.fixture
def page(new_page: Callable[..., Any], serve: Serve) -> Any:
    """The page, once it knows the model."""
    page = new_page(serve.base)
    page.locator("#model", has_text=serve.model).wait_for()
    return page
