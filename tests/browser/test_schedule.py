"""The schedule's view: as it runs, and from recorded logs; by pointer and by keyboard."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import Serve

pytest.importorskip("playwright.sync_api", reason="playwright is not installed (the extra `dev`)")
from playwright.sync_api import Page, expect

from orcaserve.schedule_log.explain import tell
from orcaserve.schedule_log.format import Arrived, HandedOut, Returned
from orcaserve.schedule_log.reader import read_log

expect.set_options(timeout=60_000)
BASE = {"kind": "orcaserve-schedule", "version": 1, "run": "made up", "part": 1, "start": 1796083200.5}
SETTINGS = {"policy": "iteration-level", "max_bs": 4, "n_slots": 64, "page_size": 1, "n_workers": 1, "longest": 32}
HEADER = json.dumps(BASE | {"settings": SETTINGS})
# Requests 1 and 2 run; 3 waits for slots, is read in two pieces, and its client leaves; 2 ends.
LINES = [
    HEADER,
    '["a",0,1,5,9]', '["a",100,2,7,3]',
    '["b",1000,1,"",[[1,5],[2,7]],26,12]', '["r",5000,1,3900]',
    '["a",5100,3,20,10]',
    '["b",6000,2,"=",[],26,14,"slots",4]', '["r",8000,2,1900]',
    '["b",9000,3,"=",[],26,16,"slots",4]', '["r",11000,3,1900,[[2,"length",3]]]',
    '["b",12000,4,"=",[[3,12,8]],44,20]', '["r",18000,4,5900]',
    '["b",19000,5,"1",[[3,8]],44,29]', '["r",25000,5,5900]',
    '["b",26000,6,"=",[],44,31]', '["c",26500,3]', '["r",28000,6,1900,[[3,"cancelled",2]]]',
]  # fmt: skip


@pytest.fixture
def view(page: Page) -> Page:
    page.get_by_role("tab", name="Schedule").click()
    return page


@pytest.fixture
def load(serve: Serve) -> Iterator[None]:
    """Requests for as long as the test runs."""
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            serve.complete("x" * 50, max_tokens=200)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    yield
    over.set()
    for thread in threads:
        thread.join()


def figure(page: Page, name: str) -> Any:
    return page.locator("#figures div", has_text=name).locator("dd").first


def open_log(page: Page, *files: tuple[str, str]) -> None:
    given = [{"name": name, "mimeType": "text/plain", "buffer": text.encode()} for name, text in files]
    page.get_by_label("Open a log").set_input_files(given)


def opened(page: Page) -> Page:
    open_log(page, ("run.log", "\n".join(LINES) + "\n"))
    expect(page.locator("#source")).to_have_text("run.log: 6 iterations")
    return page


def colours_in(page: Page) -> set[str]:
    """Of those with a name, which are on the canvas now."""
    found = page.evaluate("""() => {
      const canvas = document.getElementById("timeline");
      const style = getComputedStyle(canvas);
      const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
      copy.drawImage(canvas, 0, 0);
      const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
      const there = new Set();
      for (let i = 0; i < data.length; i += 4) there.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
      const names = ["increment", "initiation", "waiting", "reserved", "used", "bad"];
      return names.filter((name) => there.has(parseInt(style.getPropertyValue("--" + name).trim().slice(1), 16)));
    }""")
    return set(found)


def until_drawn(page: Page, names: set[str]) -> None:
    for _ in range(300):
        if names <= colours_in(page):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"not drawn: {names - colours_in(page)}")


def last_iteration(page: Page) -> int:
    text = page.get_by_label("Position in the schedule").get_attribute("aria-valuetext") or ""
    return int((re.search(r"to (\d+)", text) or [0, 0])[1])


@pytest.mark.usefixtures("load")
def test_the_schedule_as_it_runs(view: Page) -> None:
    expect(view.locator("#source")).to_have_text("live")
    until_drawn(view, {"increment", "initiation", "reserved", "used"})
    expect(figure(view, "tokens/s")).to_have_text(re.compile(r"\d"))
    expect(figure(view, "first token")).to_have_text(re.compile(r"/ .* m?s"))
    expect(figure(view, "between tokens")).to_have_text(re.compile(r"/ .* m?s"))
    expect(figure(view, "batch")).to_have_text(re.compile(r"\d of 8"))
    before = last_iteration(view)
    for _ in range(600):
        if last_iteration(view) > before:
            break
        view.wait_for_timeout(50)
    assert last_iteration(view) > before, "it does not move on"


@pytest.mark.usefixtures("load")
def test_a_paused_view_stands_still_and_goes_on(view: Page) -> None:
    until_drawn(view, {"increment"})
    view.get_by_role("button", name="Pause").click()
    expect(view.locator("#source")).to_have_text("paused")
    at = last_iteration(view)
    view.wait_for_timeout(700)
    assert last_iteration(view) == at
    view.get_by_role("button", name="Resume").click()
    expect(view.locator("#source")).to_have_text("live")
    for _ in range(600):
        if last_iteration(view) > at:
            return
        view.wait_for_timeout(50)
    raise AssertionError("it does not go on")


@pytest.mark.usefixtures("load")
def test_a_hidden_tab_closes_its_stream_and_comes_back(view: Page) -> None:
    until_drawn(view, {"increment"})
    opened_again: list[str] = []
    closed: list[str] = []
    view.on("request", lambda request: opened_again.append(request.url) if "/schedule" in request.url else None)
    view.on("requestfailed", lambda request: closed.append(request.url) if "/schedule" in request.url else None)
    view.evaluate("""() => {
      Object.defineProperty(document, "hidden", { value: true, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }""")
    expect(view.locator("#source")).to_have_text("closed while this tab is hidden")
    view.wait_for_timeout(300)
    assert (len(closed), len(opened_again)) == (1, 0)
    view.evaluate("""() => {
      delete document.hidden;
      document.dispatchEvent(new Event("visibilitychange"));
    }""")
    expect(view.locator("#source")).to_have_text("live")
    assert (len(closed), len(opened_again)) == (1, 1)
    at = last_iteration(view)
    for _ in range(600):
        if last_iteration(view) > at:
            return
        view.wait_for_timeout(50)
    raise AssertionError("it does not go on")


@pytest.mark.usefixtures("load")
def test_the_live_requests_as_a_table(page: Page) -> None:
    page.get_by_role("tab", name="Requests").click()
    expect(page.locator("#requests-notice")).to_contain_text("live request")
    row = page.locator("#requests-table tbody tr").first
    expect(row).to_contain_text("/v1/completions")
    expect(row).to_contain_text(re.compile("increment|initiation|waiting|paused"))


def test_a_recorded_log(view: Page) -> None:
    opened(view)
    until_drawn(view, {"increment", "initiation", "waiting", "reserved", "used", "bad"})
    expect(figure(view, "batch")).to_have_text("2 of 4")
    expect(figure(view, "slots reserved")).to_have_text("44 / 31")
    # 2 first tokens after 5.0 and 4.9 ms, that of request 3 after 19.9 ms.
    expect(figure(view, "first token")).to_have_text("5.0 / 16.9 / 19.6 ms")
    view.get_by_role("button", name="Back to live").click()
    expect(view.locator("#source")).to_have_text("live")


def test_pointing_and_clicking(view: Page) -> None:
    opened(view)
    until_drawn(view, {"bad"})
    canvas = view.get_by_role("application", name="Schedule")
    box = canvas.bounding_box()
    assert box is not None
    x = 76 + 8 * 1.5  # the second iteration
    rows = box["height"] - 2 - 6 * 18
    canvas.hover(position={"x": x, "y": rows + 18 * 2.5})  # where it is then: what is above it may still grow
    tip = view.locator("#tip")
    expect(tip).to_contain_text("request 3: waits")
    expect(tip).to_contain_text("iteration 2: 2 requests, 2 tokens, 1.90 ms on the device")
    expect(tip).to_contain_text("nobody else is in it: slots were lacking (4 for the next one)")
    there: Any = {"x": 76 + 8 * 3.5, "y": rows + 18 * 2.5}
    canvas.hover(position=there)
    expect(tip).to_contain_text("request 3: a piece of its initiation, 12 tokens, 8 to come")
    canvas.click(position=there)
    life = view.locator("#life")
    expect(view.get_by_role("heading", name="Request 3")).to_be_visible()
    for words in (
        "with 20 input tokens, for at most 10 output tokens; 2 requests were there, 2 of them had begun",
        "6.90 ms for its first iteration",
        "through 2 iterations because slots were lacking (up to 4 for the next one)",
        "iteration 4, 12 tokens, beside 1 increment; 8 more tokens come in later iterations",
        "iteration 5, 8 tokens, beside 1 increment",
        "19.9 ms after its arrival",
        "because its client left, having made 2 tokens",
    ):
        expect(life).to_contain_text(words)
    expect(view.locator("#iteration-details")).to_contain_text("44 reserved, 20 used, of 64")


def test_the_schedule_by_keyboard(view: Page) -> None:
    opened(view)
    view.get_by_role("application", name="Schedule").focus()
    said = view.locator("#cell-live")
    view.keyboard.press("Home")
    expect(said).to_contain_text("iteration 1: 2 requests, 12 tokens")
    view.keyboard.press("ArrowDown")
    expect(said).to_contain_text("request 1: initiation, 5 input tokens")
    view.keyboard.press("ArrowRight")
    expect(said).to_contain_text("request 1: increment, 1 token")
    view.keyboard.press("ArrowDown")
    view.keyboard.press("ArrowDown")
    expect(said).to_contain_text("request 3: waits")
    view.keyboard.press("ArrowDown")  # there is no further row
    expect(said).to_contain_text("request 3: waits")
    view.keyboard.press("Enter")
    expect(said).to_contain_text("because its client left")
    expect(view.get_by_role("heading", name="Request 3")).to_be_visible()
    view.keyboard.press("End")
    expect(said).to_contain_text("iteration 6")
    view.keyboard.press("+")
    expect(view.locator("#announce")).to_have_text("12 pixels an iteration")
    view.keyboard.press("Escape")
    expect(view.locator("#tip")).to_be_hidden()


def test_a_damaged_log_is_shown_up_to_the_damage(view: Page) -> None:
    open_log(view, ("bad.log", "\n".join([*LINES[:9], '["r",9,3,"x"]', *LINES[9:]])))
    notice = view.locator("#schedule-notice")
    expect(notice).to_have_text("The log cannot be read to its end. bad.log, line 10: took must be a number, 0 or more")
    expect(figure(view, "batch")).to_have_text("2 of 4")
    open_log(view, ("hello.txt", "<b>hello</b>\n"))
    expect(notice).to_contain_text("hello.txt, line 1: is no header: this is no schedule log")
    open_log(view, ("cut.log", "\n".join(LINES)[:-9]))
    expect(notice).to_have_text("cut.log: the last line is incomplete, and left out.")
    open_log(view, ("empty.log", ""))
    expect(notice).to_contain_text("empty.log: is empty or cut short")


def test_the_parts_of_a_run_in_any_order(view: Page) -> None:
    second = BASE | {"settings": SETTINGS, "part": 2, "live": [[1, 5, 9, 0, 0, 3], [3, 20, 10, 0, 0, 0]], "last": [1]}
    parts = ("\n".join(LINES[:10]) + "\n", "\n".join([json.dumps(second), *LINES[10:]]) + "\n")
    open_log(view, ("run.log", parts[1]), ("run.log.1", parts[0]))
    expect(view.locator("#source")).to_have_text("2 files: 6 iterations")


def test_dropping_a_file(view: Page) -> None:
    view.evaluate(
        """(text) => {
          const data = new DataTransfer();
          data.items.add(new File([text], "dropped.log"));
          document.getElementById("drop").dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
        }""",
        "\n".join(LINES) + "\n",
    )
    expect(view.locator("#source")).to_have_text("dropped.log: 6 iterations")


def test_a_long_log(view: Page, tmp_path: Path) -> None:
    """Some 300,000 lines: read in pieces, all of it there, and walked through at once."""
    path = tmp_path / "long.log"
    with path.open("w") as file:
        print(HEADER, file=file)
        for i in range(1, 100_001):
            time = i * 1000
            print(f'["a",{time},{i},5,3]', file=file)
            print(f'["b",{time + 9},{i},"{f"{max(i - 2, 1)}-{i - 1}" if i > 1 else ""}",[[{i},5]],9,9]', file=file)
            ends = f',[[{i - 2},"length",3]]' if i > 2 else ""
            print(f'["r",{time + 900},{i},800{ends}]', file=file)
    view.get_by_label("Open a log").set_input_files(path)
    expect(view.locator("#source")).to_have_text("long.log: 100,000 iterations", timeout=120_000)
    view.get_by_role("button", name="Newest").click()
    until_drawn(view, {"increment", "initiation"})
    for _ in range(300):
        if last_iteration(view) == 100_000:
            break
        view.wait_for_timeout(50)
    assert last_iteration(view) == 100_000
    expect(figure(view, "tokens/s")).to_have_text(re.compile(r"^\d{4}\.\d$"))


def test_lives_are_told_as_explain_tells_them(view: Page, start: Callable[..., Serve], tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    serve = start("--schedule-log", str(path))
    for i in range(5):
        serve.complete("x" * (10 + i), max_tokens=6 + i)
    assert serve.stop() == 0
    log = read_log(path)
    chosen = [event.request for event in log.events if isinstance(event, Arrived)][3]
    place = next(i for i, e in enumerate(e for e in log.events if isinstance(e, HandedOut)) if chosen.id in e.ids)
    view.get_by_label("Open a log").set_input_files(path)
    expect(view.locator("#source")).to_contain_text("iterations")
    view.get_by_role("application", name="Schedule").focus()
    for key in ("Home", *["ArrowRight"] * place, "ArrowDown", "Enter"):
        view.keyboard.press(key)
    expect(view.get_by_role("heading", name=f"Request {chosen.id}")).to_be_visible()
    words = view.locator("#life").inner_text()
    told = tell(log, chosen.id)
    assert f"with {chosen.n_input} input tokens, for at most {chosen.asked} output tokens" in words
    begun = re.search(r"initiation +(iteration \d+, \d+ tokens?.*), beside", told)
    assert begun and begun[1] in words
    n_increments = sum(chosen.id in e.ids for e in log.events if isinstance(e, HandedOut)) - 1
    assert re.search(rf"{n_increments} increments?|increments\s+{n_increments};", words)
    end = next(e for event in log.events if isinstance(event, Returned) for e in event.ends if e.id == chosen.id)
    assert f"with all the tokens it asked for, having made {end.n_output} tokens" in words
