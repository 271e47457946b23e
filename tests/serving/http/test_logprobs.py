"""B24, B26, B28: log-probabilities, echoes and the best of several, in both shapes, streamed and whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

TOKENS, CHAT = "/v1/completions", "/v1/chat/completions"
ARRAYS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
HI = [{"role": "user", "content": "hi"}]


def refused(answer: Any, param: str) -> dict[str, Any]:
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["param"] == param and param in error["message"]
    return error


def finite(text: str) -> Any:
    """JSON as the standard has it: no NaN, no infinity."""

    def fail(word: str) -> None:
        raise AssertionError(word)

    return json.loads(text, parse_constant=fail)


def choices(server: Any, path: str = TOKENS, **fields: Any) -> list[dict[str, Any]]:
    call = server.complete if path == TOKENS else server.chat
    answer = call(**fields)
    assert answer.status_code == 200, answer.text
    return list(finite(answer.text)["choices"])


def joined(server: Any, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices of a stream, put together as a client would."""
    found: dict[int, dict[str, Any]] = {}
    for event in server.events(path, body):
        for part in event["choices"]:
            own = found.setdefault(part["index"], {"index": part["index"], "text": "", "logprobs": None})
            own["text"] += part["text"] if path == TOKENS else part["delta"].get("content", "")
            if part["logprobs"] is not None:
                own["logprobs"] = own["logprobs"] or {name: [] for name in part["logprobs"]}
                for name, values in part["logprobs"].items():
                    own["logprobs"][name] = None if values is None else own["logprobs"][name] + values
            if part["finish_reason"]:
                own["finish_reason"] = part["finish_reason"]
            for name in ("token_ids", "prompt_token_ids"):
                if name in part:
                    own[name] = own.get(name, []) + part[name]
    return [found[index] for index in sorted(found)]


def as_joined(choice: dict[str, Any]) -> dict[str, Any]:
    if "message" not in choice:
        return choice
    return {**{k: v for k, v in choice.items() if k != "message"}, "text": choice["message"]["content"]}


PROMPTS: list[Any] = ["the 汉 fox", ["the", "a fox 🦙"], [5, 300, 7], [[5], [300, 7, 8, 9]], "", "the 汉"[:5]]


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("max_tokens", [0, 1, 9])
@pytest.mark.parametrize(
    "fields", [{"logprobs": 3, "echo": True}, {"logprobs": 0}, {"echo": True}, {"n": 2, "logprobs": 5}]
)
def test_b26_the_arrays(server: Any, prompt: Any, max_tokens: int, fields: dict[str, Any]) -> None:
    """Over prompt and completion, as long as there are tokens; the same streamed."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "return_token_ids": True, "seed": 5, **fields}
    whole = choices(server, **body)
    vocabulary = server.tokenizer
    for choice in whole:
        ids = [*(choice["prompt_token_ids"] if "echo" in fields else ()), *choice["token_ids"]]
        echoed = vocabulary.detokenizer(() if "echo" in fields else choice["prompt_token_ids"])
        assert choice["text"] == "".join(map(echoed.push, ids)) + echoed.flush()
        assert choice["finish_reason"] == "length" and len(choice["token_ids"]) == max_tokens
        told = choice["logprobs"]
        if "logprobs" not in fields:
            assert told is None
            continue
        if not ids:
            assert told is None
            continue
        assert tuple(told) == ARRAYS and all(len(told[name]) == len(ids) for name in ARRAYS)
        n = fields["logprobs"]
        for i, (own, top) in enumerate(zip(told["token_logprobs"], told["top_logprobs"], strict=True)):
            if "echo" in fields and i == 0:
                assert own is None and top is None
                continue
            assert own == top[told["tokens"][i]] and n <= len(top) <= n + 1
            assert list(top.values())[:n] == sorted(top.values(), reverse=True)[:n]
        offsets = vocabulary.detokenizer(() if "echo" in fields else choice["prompt_token_ids"])
        at = 0
        for token, offset in zip(ids, told["text_offset"], strict=True):
            assert offset == at
            at += len(offsets.push(token))
    del body["return_token_ids"]
    again = choices(server, **body)
    assert [{k: v for k, v in choice.items() if not k.endswith("token_ids")} for choice in whole] == again
    assert joined(server, TOKENS, {"temperature": 0, **body, "return_token_ids": True}) == whole


def test_b26_what_the_model_thought(server: Any, told_of: Any) -> None:
    (choice,) = choices(server, prompt="the fox", max_tokens=3, logprobs=2, echo=True, return_token_ids=True, seed=0)
    ids = [*choice["prompt_token_ids"], *choice["token_ids"]]
    expected = [None, *(told_of(i, token, 2, 420).logprob for i, token in enumerate(ids) if i)]
    assert choice["logprobs"]["token_logprobs"] == expected
    n_tops = [len(top) for top in choice["logprobs"]["top_logprobs"][1:]]
    assert 2 in n_tops and 3 in n_tops  # with the chosen one, if it is not among the best


def test_tokens_that_are_a_part_of_a_character_are_named_by_their_bytes(server: Any) -> None:
    ids = server.tokenizer.encode("汉")
    assert len(ids) > 1
    (choice,) = choices(server, prompt=ids, max_tokens=0, echo=True, logprobs=0)
    assert choice["text"] == "汉" and choice["logprobs"]["text_offset"] == [0] * len(ids)
    assert all(name.startswith("bytes:\\x") for name in choice["logprobs"]["tokens"])
    names = "".join(name.removeprefix("bytes:") for name in choice["logprobs"]["tokens"])
    assert names == "".join(f"\\x{byte:02x}" for byte in "汉".encode())


@pytest.mark.parametrize("n_top", [0, 1, 20])
@pytest.mark.parametrize("n", [1, 3])
def test_chat_entries(server: Any, n_top: int, n: int) -> None:
    body = {
        "messages": HI,
        "max_tokens": 12,
        "logprobs": True,
        "top_logprobs": n_top,
        "n": n,
        "seed": 5,
        "temperature": 0,
    }
    whole = choices(server, CHAT, **{k: v for k, v in body.items() if k != "messages"}, messages=HI)
    for choice in whole:
        entries = choice["logprobs"]["content"]
        assert choice["logprobs"]["refusal"] is None and len(entries) == 12
        raw = b""
        for entry in entries:
            assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"} and len(entry["top_logprobs"]) == n_top
            assert all(set(each) == {"token", "logprob", "bytes"} for each in entry["top_logprobs"])
            raw += bytes(entry["bytes"])
        assert raw.decode(errors="replace") == choice["message"]["content"]
    assert joined(server, CHAT, body) == [as_joined(choice) for choice in whole]
    plain = choices(
        server, CHAT, **{k: v for k, v in body.items() if k not in ("logprobs", "top_logprobs", "messages")}
    )
    assert [choice["logprobs"] for choice in plain] == [None] * n


@pytest.mark.parametrize("stop", [["e q"], [" the"], [" "], ["汉"], ["fox 汉 d", "zz"]])
@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_cut_both_alike(server: Any, stop: list[str], include: bool) -> None:
    """The script says " the quick fox 汉 dog": entries are of tokens that begin in what is shown."""
    body = {"max_tokens": 40, "stop": stop, "include_stop_str_in_output": include, "temperature": 0, "seed": 5}
    (whole,) = choices(server, prompt="a", logprobs=1, **body)
    assert [whole] == joined(server, TOKENS, {"prompt": "a", "logprobs": 1, **body})
    assert whole["finish_reason"] == "stop"
    told = whole["logprobs"]
    if not whole["text"]:
        assert told is None
    else:
        assert told["text_offset"][-1] < len(whole["text"])
        assert "".join(told["tokens"]).replace("bytes:", "").startswith(whole["text"].split("汉")[0])
    (chat,) = choices(server, CHAT, logprobs=True, **body)
    assert [as_joined(chat)] == joined(server, CHAT, {"messages": HI, "logprobs": True, **body})
    assert len(chat["logprobs"]["content"] if chat["logprobs"] else ()) == len(told["tokens"] if told else ())
    server.wait_until(lambda: server.engine.n_open == 0)


def test_minus_infinity_is_a_number(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """B28, whatever comes of the engine."""
    from orcaserve.core import TokenLogprobs

    def worst(position: int, token: int, n_top: int, vocab_size: int) -> TokenLogprobs:
        values = [float("-inf"), float("nan"), -3e38, -9999.5, -0.0]
        return TokenLogprobs(
            values[position % 5], 9, list(range(n_top)), [values[(position + i) % 5] for i in range(n_top)]
        )

    monkeypatch.setitem(server.told, "of", worst)
    (choice,) = choices(server, prompt=[5] * 20, max_tokens=10, logprobs=5, echo=True)
    assert set(choice["logprobs"]["token_logprobs"][1:]) == {-9999.0, 0.0}
    (chat,) = choices(server, CHAT, max_tokens=10, logprobs=True, top_logprobs=20)
    assert {entry["logprob"] for entry in chat["logprobs"]["content"]} == {-9999.0, 0.0}


@pytest.mark.parametrize("value", [6, -1, 421, 10**30, True, False, "1", 1.0, [], {}])
def test_b28_logprobs_out_of_bounds(server: Any, value: Any) -> None:
    refused(server.complete(logprobs=value), "logprobs")
    refused(server.complete(logprobs=value, echo=True, max_tokens=0), "logprobs")


@pytest.mark.parametrize("value", [21, -1, 10**30, True, "1", 1.0, [], {}])
def test_b28_top_logprobs_out_of_bounds(server: Any, value: Any) -> None:
    refused(server.chat(logprobs=True, top_logprobs=value), "top_logprobs")


def test_b28_chat(server: Any) -> None:
    refused(server.chat(top_logprobs=3), "top_logprobs")
    refused(server.chat(top_logprobs=3, logprobs=False), "top_logprobs")
    for value in (1, 0, "true", [], {}):
        refused(server.chat(logprobs=value), "logprobs")
    refused(server.chat(max_tokens=0), "max_tokens")
    refused(server.chat(max_completion_tokens=0), "max_completion_tokens")


def test_b24_the_best_of_several(server: Any) -> None:
    """Those with the highest mean, best first; all are counted. The engine's numbers differ from seed to seed."""
    body = {"prompt": ["a", "the fox"], "max_tokens": 3, "n": 2, "best_of": 5, "seed": 11, "temperature": 1}
    answer = server.complete(**body).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert all(choice["logprobs"] is None for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == 2 * 5 * 3
    assert answer["usage"]["prompt_tokens"] == sum(len(server.tokenizer.encode(text)) for text in body["prompt"])
    all_of = choices(server, **{**body, "n": 5, "logprobs": 1})
    best = choices(server, **{**body, "logprobs": 1})
    means = [sum(choice["logprobs"]["token_logprobs"]) / 3 for choice in all_of]
    assert len(set(means)) > 2
    for prompt in range(2):
        own = sorted(means[5 * prompt : 5 * prompt + 5], reverse=True)
        kept = best[2 * prompt : 2 * prompt + 2]
        assert [sum(choice["logprobs"]["token_logprobs"]) / 3 for choice in kept] == own[:2]
    assert [c["text"] for c in best] == [c["text"] for c in answer["choices"]]


def test_b24_the_best_of_none(server: Any) -> None:
    """Without a token there is nothing to compare; n of best_of all the same."""
    assert len(choices(server, n=2, best_of=4, max_tokens=0)) == 2
    assert len(choices(server, n=2, best_of=2, stream=False)) == 2


def test_b24_indices_of_prompts_and_choices(server: Any) -> None:
    found = choices(server, prompt=["a", "the", "fox"], n=2, echo=True, max_tokens=0)
    assert [choice["index"] for choice in found] == list(range(6))
    assert [choice["text"] for choice in found] == ["a", "a", "the", "the", "fox", "fox"]


def test_what_may_be_told_is_bounded(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Choices x tokens x best ones: checked before anything runs, and named with the limit."""
    monkeypatch.setattr("orcaserve.serving.service.MAX_LOGPROBS", 1000)
    prompts = [[5] * 25] * 4
    limits = [
        (server.complete, {"prompt": prompts, "max_tokens": 50, "logprobs": 4}, "logprobs"),  # 4 x 50 x 5
        (server.complete, {"prompt": prompts, "max_tokens": 25, "logprobs": 4, "echo": True}, "logprobs"),
        (server.complete, {"prompt": prompts, "max_tokens": 0, "logprobs": 4, "n": 2, "echo": True}, "logprobs"),
        (server.complete, {"prompt": prompts, "max_tokens": 25, "best_of": 10}, "best_of"),
        (server.chat, {"n": 5, "max_tokens": 10, "logprobs": True, "top_logprobs": 19}, "logprobs"),
        (server.complete, {"prompt": prompts, "max_tokens": 0, "prompt_logprobs": 9}, "prompt_logprobs"),
    ]
    for call, fields, param in limits:
        assert call(**fields).status_code == 200
        n_seen = len(server.engine.seen)
        more = "max_tokens" if fields["max_tokens"] else param
        error = refused(call(**{**fields, more: fields[more] + 1}), param)
        assert "1000" in error["message"] and len(server.engine.seen) == n_seen


def test_token_ids(server: Any) -> None:
    """As vLLM has them: with prompts in every choice of completions, beside the choices of a chat."""
    (choice,) = choices(server, prompt=[5, 300, 7], max_tokens=4, return_token_ids=True)
    assert choice["prompt_token_ids"] == [5, 300, 7] and choice["token_ids"] == server.script_ids[:4]
    events = server.events(TOKENS, {"prompt": [5, 300, 7], "max_tokens": 4, "return_token_ids": True})
    parts = [part for event in events for part in event["choices"]]
    assert [i for part in parts for i in part["token_ids"]] == server.script_ids[:4]
    assert parts[0]["prompt_token_ids"] == [5, 300, 7] and not any("prompt_token_ids" in part for part in parts[1:])
    chat = server.chat(max_tokens=4, return_token_ids=True).json()
    assert chat["choices"][0]["token_ids"] == server.script_ids[:4]
    assert len(chat["prompt_token_ids"]) == chat["usage"]["prompt_tokens"]
    events = server.events(CHAT, {"messages": HI, "max_tokens": 4, "return_token_ids": True})
    assert events[0]["prompt_token_ids"] == chat["prompt_token_ids"]
    assert not any("prompt_token_ids" in event for event in events[1:])
    found = [i for event in events for part in event["choices"] for i in part.get("token_ids", ())]
    assert found == server.script_ids[:4]
    assert "token_ids" not in server.complete().json()["choices"][0]


@pytest.mark.parametrize("n_top", [0, 3, 20])
def test_prompt_logprobs(server: Any, told_of: Any, n_top: int) -> None:
    """As vLLM has them: by id, the token's own first; in every choice of completions, beside the choices of a chat."""
    ids = [5, 300, 7, 7]
    for choice in choices(server, prompt=[ids, ids[:1]], n=2, max_tokens=2, prompt_logprobs=n_top):
        own = ids if choice["index"] < 2 else ids[:1]
        assert len(choice["prompt_logprobs"]) == len(own) and choice["logprobs"] is None
        check_prompt(server, choice["prompt_logprobs"], own, told_of, n_top)
        assert choice["text"] == server.complete(prompt=own, max_tokens=2).json()["choices"][0]["text"]
    chat = server.chat(max_tokens=2, prompt_logprobs=n_top, return_token_ids=True).json()
    check_prompt(server, chat["prompt_logprobs"], chat["prompt_token_ids"], told_of, n_top)
    assert "prompt_logprobs" not in chat["choices"][0]
    assert "prompt_logprobs" not in server.complete(echo=True, logprobs=1).json()["choices"][0]


def check_prompt(server: Any, told: list[Any], ids: list[int], told_of: Any, n_top: int) -> None:
    assert told[0] is None and len(told) == len(ids)
    for i, (token, entries) in enumerate(zip(ids[1:], told[1:], strict=True), 1):
        expected = told_of(i, token, n_top, 420)
        best = list(zip(expected.top_ids, expected.top_logprobs, strict=True))
        assert list(entries) == [str(token), *(str(i) for i, _ in best if i != token)]
        own = entries.pop(str(token))
        assert own["logprob"] == expected.logprob and own["rank"] == expected.rank
        assert own["decoded_token"].encode() == server.tokenizer.token_bytes(token)
        ranks = {str(i): (rank, x) for rank, (i, x) in enumerate(best, 1)}
        assert all((each["rank"], each["logprob"]) == ranks[i] for i, each in entries.items())


def test_an_echo_and_prompt_logprobs_each_tell_what_was_asked_of_them(server: Any, told_of: Any) -> None:
    body = {"prompt": [5, 300, 7], "max_tokens": 2, "echo": True, "seed": 5}
    for n_echoed, n_top in ((1, 4), (4, 1)):
        (choice,) = choices(server, **body, logprobs=n_echoed, prompt_logprobs=n_top)
        check_prompt(server, choice.pop("prompt_logprobs"), [5, 300, 7], told_of, n_top)
        assert [choice] == choices(server, **body, logprobs=n_echoed)
    (choice,) = choices(server, **body, prompt_logprobs=1)
    assert choice["logprobs"] is None and choice["text"].startswith(server.tokenizer.decode([5, 300, 7]))
    (choice,) = choices(server, **{**body, "max_tokens": 0}, prompt_logprobs=1)
    check_prompt(server, choice["prompt_logprobs"], [5, 300, 7], told_of, 1)


@pytest.mark.parametrize("value", [21, -1, 10**30, True, "1", 1.0, [], {}])
def test_prompt_logprobs_out_of_bounds(server: Any, value: Any) -> None:
    for call in (server.complete, server.chat):
        refused(call(prompt_logprobs=value), "prompt_logprobs")


def test_prompt_logprobs_are_not_for_streams(server: Any) -> None:
    for call in (server.complete, server.chat):
        refused(call(prompt_logprobs=0, stream=True), "prompt_logprobs")


def test_the_end_token_is_among_the_ids_and_not_in_the_text(server: Any) -> None:
    server.engine.script = lambda request, n: 0 if n == 3 else server.script_ids[n % len(server.script_ids)]
    (choice,) = choices(server, max_tokens=9, logprobs=1, return_token_ids=True, seed=5)
    assert choice["token_ids"] == [*server.script_ids[:3], 0] and choice["finish_reason"] == "stop"
    assert len(choice["logprobs"]["tokens"]) == 3
    assert (
        joined(server, TOKENS, {"prompt": "the", "max_tokens": 9, "logprobs": 1, "seed": 5})[0]["logprobs"]
        == choice["logprobs"]
    )
    (shown,) = choices(server, max_tokens=9, logprobs=1, include_stop_str_in_output=True, skip_special_tokens=False)
    assert shown["text"].endswith("<|endoftext|>") and shown["logprobs"]["tokens"][-1] == "<|endoftext|>"


def test_usage_in_every_event(server: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    for path, own in ((TOKENS, {"prompt": "the fox"}), (CHAT, {"messages": HI})):
        events = server.events(path, {**own, "max_tokens": 5, "stream_options": options})
        counts = [event["usage"]["completion_tokens"] for event in events]
        assert counts == sorted(counts) and counts[-1] == 5 and events[-1]["choices"] == []
        assert all(event["usage"]["total_tokens"] == events[0]["usage"]["prompt_tokens"] + n
                   for event, n in zip(events, counts, strict=True))  # fmt: skip
        alone = server.events(path, {**own, "max_tokens": 5, "stream_options": {"continuous_usage_stats": True}})
        assert not any("usage" in event for event in alone)


def test_the_schemas_say_what_is_answered(server: Any) -> None:
    import jsonschema

    document = server.http.get("/openapi.json").json()

    def validate(name: str, value: Any) -> None:
        jsonschema.validate(value, {"$ref": f"#/components/schemas/{name}", "components": document["components"]})

    for fields in (
        {},
        {"logprobs": 2, "echo": True, "return_token_ids": True, "n": 2},
        {"max_tokens": 0, "echo": True},
        {"prompt_logprobs": 2},
    ):
        validate("Completion", server.complete(**fields).json())
    for fields in ({}, {"logprobs": True, "top_logprobs": 3, "return_token_ids": True}, {"prompt_logprobs": 2}):
        validate("ChatCompletion", server.chat(**fields).json())
    properties = document["paths"][TOKENS]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert {"logprobs", "prompt_logprobs", "echo", "best_of", "return_token_ids"} <= set(properties)
