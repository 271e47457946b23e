"""The playground, typed into and clicked at."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from server_process import Serve

pytest.importorskip("playwright.sync_api", reason="playwright is not installed (the extra `dev`)")
from playwright.sync_api import Page, Route, expect

CHAT, COMPLETIONS = "**/v1/chat/completions", "**/v1/completions"
expect.set_options(timeout=60_000)


def pane(page: Page, number: int) -> Any:
    return page.get_by_role("region", name=f"Pane {number}", exact=True)


def send(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")


def asking_for(page: Page, path: str = CHAT, **fields: Any) -> list[dict[str, Any]]:
    """What the page asks for from now on, which also gets these fields on its way."""
    asked: list[dict[str, Any]] = []

    def pass_on(route: Route) -> None:
        asked.append(json.loads(route.request.post_data or "{}"))
        route.continue_(post_data=json.dumps(asked[-1] | fields))

    page.route(path, pass_on)
    return asked


def answering(*texts: str) -> str:
    """The events of an answer."""
    events = [{"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]} for text in texts]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    events.append({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}})
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


def fulfil(page: Page, body: str, path: str = CHAT, **answer: Any) -> None:
    page.route(path, lambda route: route.fulfill(body=body, **{"content_type": "text/event-stream", **answer}))


def test_two_panes_stream_at_once_and_one_is_stopped(page: Page, serve: Serve) -> None:
    asking_for(page, ignore_eos=True, max_tokens=15_000)
    send(page, "hello")
    answers = [pane(page, number).locator(".message.assistant") for number in (1, 2)]
    for answer in answers:
        expect(answer.locator(".figures-line")).to_contain_text("first text after")
    expect(page.locator(".message.writing")).to_have_count(2)
    for answer in answers:  # both grow, at the same time
        expect(answer.locator(".text")).not_to_have_text(answer.locator(".text").inner_text())
    assert page.locator(".message.writing").count() == 2, "one has waited for the other"
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    pane(page, 1).get_by_role("button", name="Stop").click()
    expect(answers[0].locator(".figures-line")).to_contain_text("stopped")
    expect(page.locator(".message.writing")).to_have_count(1)
    page.get_by_role("button", name="Stop all").click()
    expect(page.locator(".message.writing")).to_have_count(0)
    expect(answers[1].locator(".figures-line")).to_contain_text("tokens/s")
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    within_slots_free(serve)


def within_slots_free(serve: Serve) -> None:
    for _ in range(200):
        if serve.metric("orcaserve_kv_slots_reserved") == 0:
            return
        serve.http.get("/live")
    raise AssertionError("a stopped answer still has slots")


def test_one_pane_alone_with_settings(page: Page) -> None:
    asked = asking_for(page)
    two = pane(page, 2)
    two.get_by_text("Settings").click()
    two.get_by_label("System prompt").fill("Be brief.")
    for label, value in (("Temperature", "0"), ("top_p", "0.5"), ("max_tokens", "7"), ("Seed", "3")):
        two.get_by_label(label).fill(value)
    two.get_by_label("Stop (one a line").fill("\\n\\n\n###")
    page.get_by_label("Send to").select_option("Pane 2")
    send(page, "hello")
    figures = two.locator(".message.assistant .figures-line")
    expect(figures).to_contain_text("+ 7 tokens · ended at max_tokens")
    expect(pane(page, 1).locator(".message")).to_have_count(0)
    (body,) = asked
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    wanted = {"temperature": 0, "top_p": 0.5, "max_tokens": 7, "seed": 3, "stop": ["\n\n", "###"]}
    assert {name: body[name] for name in wanted} == wanted
    assert body["stream"] and body["stream_options"]["include_usage"]


def test_retry_edit_and_clear(page: Page) -> None:
    asked = asking_for(page, max_tokens=5)
    pane(page, 2).get_by_role("button", name="Close").click()
    expect(page.locator(".pane")).to_have_count(1)
    send(page, "first")
    send_button = page.get_by_role("button", name="Send")
    expect(send_button).to_be_enabled()
    send(page, "second")
    expect(send_button).to_be_enabled()
    one = pane(page, 1)
    expect(one.get_by_role("button", name="Edit")).to_have_count(1)
    one.get_by_role("button", name="Retry").click()
    expect(send_button).to_be_enabled()
    assert asked[2]["messages"] == asked[1]["messages"]
    one.get_by_role("button", name="Edit").click()
    one.get_by_label("Edit the message").fill("third")
    one.get_by_label("Edit the message").press("Enter")
    expect(send_button).to_be_enabled()
    assert [m["content"] for m in asked[3]["messages"] if m["role"] == "user"] == ["first", "third"]
    expect(one.locator(".message")).to_have_count(4)
    one.get_by_role("button", name="Clear").click()
    expect(one.locator(".message")).to_have_count(0)


def test_copy(new_page: Callable[..., Page], serve: Serve) -> None:
    page = new_page(serve.base, permissions=["clipboard-read", "clipboard-write"])
    page.locator("#model", has_text=serve.model).wait_for()
    fulfil(page, answering("a  b\n\n", "c"))
    send(page, "hello")
    pane(page, 1).locator(".assistant").get_by_role("button", name="Copy").click()
    expect(page.locator("#announce")).to_have_text("Copied.")
    assert page.evaluate("() => navigator.clipboard.readText()") == "a  b\n\nc"


def test_what_a_model_writes_stays_text(page: Page) -> None:
    hostile = '<img src=x onerror="window.taken = 1"><script>window.taken = 2</script>\n\n```html\n<b>&amp;</b>\n```\n'
    fulfil(page, answering(hostile[:20], hostile[20:], "<iframe srcdoc=x></iframe>"))
    send(page, "<svg onload=window.taken=3>")
    answer = pane(page, 1).locator(".message.assistant")
    expect(answer.locator(".figures-line")).to_contain_text("5 + 7 tokens")
    expect(answer.locator(".text")).to_contain_text('<img src=x onerror="window.taken = 1">')
    expect(answer.locator("pre code")).to_have_text("<b>&amp;</b>")
    expect(pane(page, 1).locator(".message.user .text")).to_have_text("<svg onload=window.taken=3>")
    assert page.locator("#panes").locator("img, script, iframe, svg, b").count() == 0
    assert page.evaluate("() => window.taken") is None


def test_too_busy_counts_down_and_tries_again(page: Page) -> None:
    error = {"error": {"message": "too many requests wait", "type": "rate_limit_error", "code": "busy", "param": None}}
    answer = {"status": 429, "content_type": "application/json", "headers": {"retry-after": "2"}}
    page.get_by_label("Send to").select_option("Pane 1")
    fulfil(page, json.dumps(error), **answer)
    send(page, "hello")
    problem = pane(page, 1).locator(".problem:visible")
    expect(problem).to_contain_text("The server has too much to do now: too many requests wait")
    again = pane(page, 1).locator("button.again")
    expect(again).to_be_disabled()
    expect(again).to_contain_text("Try again in")
    page.unroute(CHAT)
    expect(again).to_be_enabled()
    again.click()
    expect(pane(page, 1).locator(".message.assistant .figures-line")).to_contain_text("tokens")
    expect(pane(page, 1).locator(".problem:visible")).to_have_count(0)
    expect(pane(page, 1).locator(".message")).to_have_count(2)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('data: {"choices":[{"delta":{"content":"half"}}]}\n\n', "The answer broke off: the connection has ended."),
        ('data: {"choices":[{"delta":{"content":"half"}}]}\n\ndata: {"error":{"message":"the worker was lost"}}\n\n',
         "The answer broke off: the worker was lost"),
    ],
)  # fmt: skip
def test_an_answer_that_breaks_off(page: Page, body: str, said: str) -> None:
    fulfil(page, body)
    send(page, "hello")
    expect(pane(page, 1).locator(".problem:visible")).to_have_text(said)
    expect(pane(page, 1).locator(".message.assistant .text")).to_have_text("half")
    expect(pane(page, 1).get_by_role("button", name="Retry")).to_be_visible()


def test_a_field_that_the_server_refuses(page: Page) -> None:
    pane(page, 1).get_by_text("Settings").click()
    pane(page, 1).get_by_label("Temperature").fill("9")
    send(page, "hello")
    expect(pane(page, 1).locator(".problem:visible")).to_contain_text("temperature")
    expect(pane(page, 2).locator(".message.assistant .figures-line")).to_contain_text("tokens")


def test_a_model_without_a_chat_template_continues_text(page: Page) -> None:
    asked = asking_for(page, COMPLETIONS, max_tokens=5)
    error = {"error": {"message": "this model has no chat template", "code": "no_chat_template", "param": "messages"}}
    fulfil(page, json.dumps(error), status=400, content_type="application/json")
    page.get_by_label("Send to").select_option("Pane 1")
    send(page, "The sea")
    line = pane(page, 1).locator(".message.assistant .figures-line")
    expect(line).to_contain_text("no chat template: plain continuation")
    expect(line).to_contain_text("+ 5 tokens")
    assert [body["prompt"] for body in asked] == ["The sea"]


def test_a_key_is_asked_for_and_stays_in_the_tab(new_page: Callable[..., Page], start: Callable[..., Serve]) -> None:
    serve = start("--api-key", "s3cret", key="s3cret")
    page = new_page(serve.base)
    dialog = page.get_by_role("dialog", name="API key")
    field = dialog.get_by_label("Key", exact=True)
    expect(dialog).to_contain_text("This server asks for a key.")
    expect(field).to_be_focused()
    for value, said in (("", "Enter a key."), ("a ключ", "visible ASCII"), ("wrong", "does not know this key")):
        field.fill(value)
        field.press("Enter")
        expect(dialog.locator("#key-why")).to_contain_text(said)
    field.fill("s3cret")
    dialog.get_by_role("button", name="Use it").click()
    expect(dialog).to_be_hidden()
    expect(page.locator("#model")).to_contain_text(serve.model)
    assert page.evaluate("() => [Object.values(sessionStorage), Object.values(localStorage)]") == [["s3cret"], []]
    asking_for(page, max_tokens=3)
    send(page, "hello")
    expect(page.locator(".message.assistant .figures-line").first).to_contain_text("3 tokens")
    other = new_page(serve.base)
    other.get_by_role("button", name="Cancel").click()
    expect(other.locator("#model")).to_have_text("an API key is needed")
    other.get_by_role("button", name="API key").click()
    expect(other.get_by_role("dialog", name="API key")).to_be_visible()


def test_the_keyboard_alone(page: Page) -> None:
    """From the top of the page to an answer, and to the other views."""
    asking_for(page, max_tokens=3)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement.id") == "prompt":
            break
    page.keyboard.type("hello")
    page.keyboard.press("Enter")
    expect(page.locator(".message.assistant .figures-line").first).to_contain_text("3 tokens")
    page.get_by_role("tab", name="Chat").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Schedule")).to_be_focused()
    expect(page.get_by_role("application", name="Schedule")).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tabpanel", name="Requests")).to_be_visible()


def test_panes_come_and_go(page: Page) -> None:
    add = page.get_by_role("button", name="Add a pane")
    add.click()
    add.click()
    expect(page.locator(".pane")).to_have_count(4)
    expect(add).to_be_disabled()
    pane(page, 2).get_by_role("button", name="Close").click()
    expect(page.locator(".pane h2")).to_have_text(["Pane 1", "Pane 2", "Pane 3"])


def test_narrow_screens(new_page: Callable[..., Page], serve: Serve) -> None:
    page = new_page(serve.base, viewport={"width": 380, "height": 700})
    for view in ("Chat", "Schedule", "Requests"):
        page.get_by_role("tab", name=view).click()
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 380, view
