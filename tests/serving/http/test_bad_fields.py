"""Groups INPUT, SAMP and STOP at the door: refused by name, in OpenAI's form, before the engine sees anything."""

from __future__ import annotations

from typing import Any

import pytest

V = 420  # no id of the tiny vocabulary
SECRET = "sesame-open"


def refused(answer: Any, param: str | None, status: int = 400) -> dict[str, Any]:
    """The answer is an error in OpenAI's form that names the field and tells nothing else."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param and error["message"] and error["code"], error
    assert SECRET not in answer.text and "Traceback" not in answer.text and "orcaserve/" not in answer.text
    return error


@pytest.fixture(autouse=True)
def nothing_reaches_the_engine(request: pytest.FixtureRequest, server: Any) -> Any:
    yield
    if "refuse" in request.node.name:
        assert server.engine.seen == []


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], None])
def test_b11_empty_prompt_starts_a_document(server: Any, prompt: Any) -> None:
    answer = server.complete(prompt=prompt, max_tokens=2)
    assert answer.status_code == 200 and answer.json()["usage"]["prompt_tokens"] == 1
    assert list(server.engine.seen[-1].input_ids) == [server.tokenizer.bos_id]


def test_b11_no_prompt_key_and_one_empty_of_two(server: Any) -> None:
    assert server.post("/v1/completions", {"model": "tiny", "max_tokens": 2}).status_code == 200
    assert server.complete(prompt=["ok", ""], max_tokens=2).status_code == 200
    assert [len(r.input_ids) > 0 for r in server.engine.seen] == [True] * 3


def test_b11_without_a_start_token_it_is_refused(other_server: Any, byte_level_metadata: Any) -> None:
    from orcaserve.text.gguf_tokenizer import tokenizer_from_metadata

    metadata = {k: v for k, v in byte_level_metadata.items() if k != "tokenizer.ggml.bos_token_id"}
    server = other_server()
    server.service.tokenizer = tokenizer_from_metadata(metadata)
    for prompt in ("", [""], [], [[]], ["ok", ""], None):
        refused(server.complete(prompt=prompt), "prompt")
    assert server.engine.seen == []


@pytest.mark.parametrize(
    "prompt",
    [
        5,
        1.5,
        True,
        {},
        {"a": 1},
        [None],
        [1, "a"],
        ["a", 1],
        [[1], "a"],
        [[1.0]],
        [1.0],
        [True],
        [[True]],
        [{}],
        [[[1]]],
    ],
)
def test_prompt_of_a_wrong_type_is_refused(server: Any, prompt: Any) -> None:
    refused(server.complete(prompt=prompt), "prompt")


@pytest.mark.parametrize("token", [-1, V, 2**31, 2**63, 2**64, -(2**64), 10**300])
@pytest.mark.parametrize("nested", [False, True])
def test_b13_ids_outside_the_vocabulary_are_refused(server: Any, token: int, nested: bool) -> None:
    for prompt in ([token], [1, 2, token]):
        error = refused(server.complete(prompt=[prompt] if nested else prompt), "prompt")
        assert f"0..{server.tokenizer.vocab_size - 1}" in error["message"]


def test_b13_good_streams_beside_bad_requests(server: Any) -> None:
    import concurrent.futures

    def stream(_: int) -> str:
        events = server.events("/v1/completions", {"prompt": "the", "max_tokens": 60})
        return "".join(e["choices"][0]["text"] for e in events)

    quiet = stream(0)
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        streams = [pool.submit(stream, i) for i in range(4)]
        while not all(s.done() for s in streams):
            assert server.complete(prompt=[-1]).status_code == 400
        assert {s.result() for s in streams} == {quiet}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("value", [-1, 0, 1.0, 1.5, "5", True, [], {}, 2**63, 10**9, 128])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_b15_max_tokens_out_of_bounds_is_refused(server: Any, path: str, value: Any, name: str) -> None:
    if path == "/v1/completions" and (name == "max_completion_tokens" or value == 0):  # 0: the prompt is only read
        return
    body = {"model": "tiny", "prompt": "the", "messages": [{"role": "user", "content": "a"}], name: value}
    body.pop("messages" if path == "/v1/completions" else "prompt")
    refused(server.post(path, body), name)


def test_b15_defaults_and_true_numbers(server: Any) -> None:
    assert server.complete().json()["usage"]["completion_tokens"] == 16
    assert server.complete(max_tokens=None).json()["usage"]["completion_tokens"] == 16
    chat = server.chat().json()["usage"]
    assert chat["total_tokens"] == 128  # absent on chat: what is left
    full = server.complete(prompt=[5] * 127).json()
    assert full["usage"]["completion_tokens"] == 1 and full["choices"][0]["finish_reason"] == "length"
    error = refused(server.complete(prompt=[5] * 100, max_tokens=29), "max_tokens")
    assert error["code"] == "context_length_exceeded" and all(
        n in error["message"] for n in ("100", "29", "129", "128")
    )
    assert server.complete(prompt=[5] * 100, max_tokens=28).status_code == 200
    assert refused(server.complete(prompt=[5] * 128), "prompt")["code"] == "context_length_exceeded"
    assert refused(server.complete(prompt="a" * 3000), "prompt")["code"] == "context_length_exceeded"
    long = {"role": "user", "content": "a" * 3000}
    assert refused(server.chat(long), "messages")["code"] == "context_length_exceeded"
    assert refused(server.chat(max_tokens=127), "max_tokens")["code"] == "context_length_exceeded"
    assert server.chat(max_tokens=3, max_completion_tokens=3).status_code == 200
    refused(server.chat(max_tokens=3, max_completion_tokens=4), "max_tokens")


@pytest.mark.parametrize("text", ["Say A.\u0000 Say B.", "\u0000", "\u0001\u001f"])
def test_b17_control_characters(server: Any, text: str) -> None:
    answer = server.complete(prompt=text, max_tokens=2, stop="\u0000").json()
    assert answer["usage"]["prompt_tokens"] == len(server.tokenizer.encode(text))
    assert server.chat({"role": "user", "content": text}, max_tokens=2).status_code == 200


def test_b17_raw_control_bytes_are_refused(server: Any) -> None:
    for byte in range(0x20):
        body = b'{"model":"tiny","prompt":"a' + bytes([byte]) + b'b"}'
        refused(server.post("/v1/completions", body), None)


SAMPLING_BOUNDS = {
    "temperature": (0, 2, 2.01, -0.01),
    "top_p": (0, 1, 1.01, -0.01),
    "min_p": (0, 1, 1.01, -0.01),
    "presence_penalty": (-2, 2, 2.01, -2.01),
    "frequency_penalty": (-2, 2, 2.01, -2.01),
    "repetition_penalty": (0.01, 10, 10.01, 0),
    "top_k": (-1, 2**31 - 1, 2**31, -2),
    "min_tokens": (0, 16, 17, -1),
    "seed": (-(2**63), 2**63 - 1, 2**63, -(2**63) - 1),
}


@pytest.mark.parametrize("name", SAMPLING_BOUNDS)
def test_b18_closed_intervals(server: Any, name: str) -> None:
    low, high, above, below = SAMPLING_BOUNDS[name]
    for good in (low, high):
        assert server.complete(**{name: good}).status_code == 200
    for bad in (above, below, 10**400, "0.5", True, [], {}):
        refused(server.complete(**{name: bad}), name)


@pytest.mark.parametrize("value", [1e-3, 1e-7, 1e-38, 5e-324, -0.0, 2])
def test_b18_tiny_temperatures_are_taken(server: Any, value: float) -> None:
    assert server.complete(temperature=value).status_code == 200


@pytest.mark.parametrize(
    "name", ["temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty", "seed", "n"]
)
@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_b20_not_numbers_are_refused(server: Any, name: str, text: str) -> None:
    body = f'{{"model":"tiny","prompt":"a","{name}":{text}}}'.encode()
    error = refused(server.post("/v1/completions", body), None)
    assert text not in error["message"] or text == "NaN" or text == "Infinity"
    refused(
        server.post("/v1/completions", f'{{"model":"tiny","prompt":"a","logit_bias":{{"5":{text}}}}}'.encode()), None
    )


@pytest.mark.parametrize(
    "bias",
    [
        {str(10**6): 5}, {"-1": 5}, {"abc": 1}, {"1": 101}, {"1": -101}, {"1": 1e308}, {"1.0": 1}, {" 1": 1}, {"+1": 1},
        {"1": "5"}, {"1": True}, {"1": None}, {"": 1}, {"١": 1}, {"9" * 5000: 1}, {"1": 1, "01": 2}, [], [1], "x", 5,
        {str(i): 0 for i in range(1025)},
    ],
)  # fmt: skip
def test_b22_logit_bias_is_refused(server: Any, bias: Any) -> None:
    refused(server.complete(logit_bias=bias), "logit_bias")


def test_b22_logit_bias_and_stop_ids_are_taken(server: Any) -> None:
    assert server.complete(logit_bias={str(i): -100 for i in range(300)}).status_code == 200
    assert server.complete(stop_token_ids=[5], logit_bias={}).status_code == 200


@pytest.mark.parametrize("ids", [[10**6], [-1], [2**64], ["5"], [True], [1.0], "12", 5, [[1]], list(range(400)) * 3])
def test_b22_stop_ids_are_refused(server: Any, ids: Any) -> None:
    refused(server.complete(stop_token_ids=ids), "stop_token_ids")


@pytest.mark.parametrize("n", [0, -1, 129, 10**6, 1.5, "2", True, []])
def test_b24_n_out_of_bounds_is_refused(server: Any, n: Any) -> None:
    refused(server.complete(n=n), "n")
    refused(server.chat(n=n), "n")


def test_b24_n_times_prompts_and_best_of_are_refused(server: Any) -> None:
    refused(server.complete(n=128, prompt=["a"] * 9), "n")
    refused(server.complete(prompt=["a"] * 1025), "prompt")
    refused(server.complete(best_of=128, prompt=["a"] * 9), "best_of")
    for fields in (
        {"best_of": 1, "n": 2}, {"best_of": 2, "stream": True}, {"best_of": "1"}, {"best_of": 0}, {"best_of": -1},
        {"best_of": 129}, {"best_of": 10**6}, {"best_of": 2**64}, {"best_of": 1.0}, {"best_of": True}, {"best_of": []},
    ):  # fmt: skip
        refused(server.complete(**fields), "best_of")
    for n in (0, -1, 129):
        refused(server.complete(n=n, best_of=4), "n")


def test_b24_n_up_to_the_limit(server: Any) -> None:
    assert len(server.complete(n=128, max_tokens=1).json()["choices"]) == 128
    assert server.complete(n=2, best_of=2).status_code == 200


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], ["a"] * 5, "a" * 2**20, ["a" * 1025], 5, True, {}, [5], [None]])
def test_b09_stop_is_refused(server: Any, stop: Any) -> None:
    if isinstance(stop, str) and len(stop) > 90_000:
        stop = stop[:90_000]  # the body's own limit is another test
    refused(server.complete(stop=stop), "stop")


@pytest.mark.parametrize("stop", [None, []])
def test_b09_no_stop(server: Any, stop: Any) -> None:
    assert server.complete(stop=stop, max_tokens=6).json()["choices"][0]["text"] == server.known_text


def test_b06_b09_stop_strings(server: Any) -> None:
    """The script says " the quick fox ..."."""
    inside = server.complete(max_tokens=9, stop=["e q"]).json()
    assert inside["choices"][0] == {"index": 0, "text": " th", "logprobs": None, "finish_reason": "stop"}
    included = server.complete(max_tokens=9, stop=["e q"], include_stop_str_in_output=True).json()
    assert included["choices"][0]["text"] == " the q"
    first = server.complete(max_tokens=9, stop=[" "]).json()
    assert first["choices"][0]["text"] == "" and first["choices"][0]["finish_reason"] == "stop"
    assert first["usage"]["completion_tokens"] >= 1
    events = server.events("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "stop": [" "]})
    assert [e["choices"][0]["delta"] for e in events] == [{"role": "assistant", "content": ""}, {}]
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    streamed = server.events("/v1/completions", {"prompt": "a", "stop": ["e q"], "max_tokens": 9})
    assert "".join(e["choices"][0]["text"] for e in streamed) == " th"
    server.wait_until(lambda: server.engine.n_open == 0)
    assert len(server.engine.cancelled) == 5  # what a stop string ends, the engine does not go on with


UNSUPPORTED = [
    ("suffix", "x"),
    ("tools", [{"type": "function"}]), ("tool_choice", "required"), ("tool_choice", {"type": "function"}),
    ("structured_outputs", {"whitespace_pattern": " "}), ("modalities", ["audio"]),
    ("use_beam_search", True), ("bad_words", ["x"]), ("chat_template", "x"), ("functions", [{}]),
    ("truncate_prompt_tokens", 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), UNSUPPORTED)
def test_what_is_not_served_is_refused_by_name(server: Any, name: str, value: Any) -> None:
    assert refused(server.complete(**{name: value}), name)["code"] == "unsupported_parameter"
    refused(server.chat(**{name: value}), {"tools": "tools[0].function"}.get(name, name))


def test_harmless_values_of_the_same_fields(server: Any) -> None:
    fields = {
        "suffix": None,
        "logprobs": None,
        "echo": False,
        "response_format": {"type": "text"},
        "tools": [],
        "priority": 0,
    }
    assert server.complete(**fields, tool_choice="none", modalities=["text"]).status_code == 200
    assert server.chat(logprobs=False, top_logprobs=0, echo=False, tool_choice="auto").status_code == 200
    refused(server.complete(top_logprobs=5), "top_logprobs")
    refused(server.chat(echo=True), "echo")


def test_unknown_fields_are_tolerated_and_named(server: Any) -> None:
    answer = server.complete(frobnicate=1, **{"x\r\nevil: 1": 2, "<b>": 3, "length_penalty": 2})
    assert answer.status_code == 200
    assert answer.headers["x-orcaserve-ignored-fields"] == "frobnicate, length_penalty"
    assert "x-orcaserve-ignored-fields" not in server.complete(user="me").headers
    assert server.complete(**{f"f{i}": i for i in range(3000)}).status_code == 200


@pytest.mark.parametrize(
    "name", ["stream", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "echo", "return_token_ids"]
)
@pytest.mark.parametrize("value", ["true", 1, 0, [], {}])
def test_flags_of_another_type_are_refused(server: Any, name: str, value: Any) -> None:
    refused(server.complete(**{name: value}), name)


@pytest.mark.parametrize("options", ["x", [], {"include_usage": "yes"}, {"continuous_usage_stats": 1}])
def test_stream_options_are_refused(server: Any, options: Any) -> None:
    refused(server.complete(stream=True, stream_options=options), "stream_options")


def test_user_of_another_type_is_refused(server: Any) -> None:
    refused(server.complete(user=5), "user")


@pytest.mark.parametrize(
    "messages",
    [
        None, "hi", {}, 5, [], ["hi"], [5], [None], [[]], [{}], [{"role": "user"}], [{"content": "a"}],
        [{"role": "nope", "content": SECRET}], [{"role": 5, "content": "a"}], [{"role": ["user"], "content": "a"}],
        [{"role": "user", "content": None}], [{"role": "user", "content": 5}], [{"role": "user", "content": [5]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
        [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": [{"type": "text", "text": 5}]}],
        [{"role": "assistant", "content": None, "tool_calls": []}], [{"role": "tool", "content": SECRET}],
        [{"role": "user", "content": "a"}] * 4097,
    ],
)  # fmt: skip
def test_b43_messages_are_refused(server: Any, messages: Any) -> None:
    body = {"model": "tiny", "max_tokens": 2}
    if messages is not None:
        body["messages"] = messages
    answer = server.post("/v1/chat/completions", body)
    if answer.status_code == 413:
        return
    refused(answer, "messages")


def test_b43_the_templates_own_words(server: Any) -> None:
    assert "no tools here" in refused(server.chat({"role": "tool", "content": "x"}), "messages")["message"]


def test_b43_no_template_is_refused(other_server: Any) -> None:
    server = other_server()
    server.service.template = None
    assert refused(server.chat(), "messages")["code"] == "no_chat_template"


def test_messages_that_are_taken(server: Any) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert server.chat({"role": "user", "content": parts}, max_tokens=2).status_code == 200
    ids = server.tokenizer.encode_chat("<|user|>user:a\nb<|end|><|user|>")
    assert list(server.engine.seen[-1].input_ids) == ids
    for role in ("system", "developer", "assistant"):
        assert server.chat({"role": role, "content": ""}, max_tokens=2).status_code == 200


@pytest.mark.parametrize("model", ["nope", "", 5, None, [], {}, True, "x" * 90_000, "tiny "])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_b36_unknown_model_is_refused(server: Any, model: Any, path: str) -> None:
    body = {"model": model, "prompt": "a", "messages": [{"role": "user", "content": "a"}]}
    assert refused(server.post(path, body), "model", 404)["code"] == "model_not_found"
    del body["model"]
    refused(server.post(path, body), "model", 404)


def test_lone_surrogates(server: Any) -> None:
    for field in ("prompt", "stop", "user"):
        refused(server.post("/v1/completions", f'{{"model":"tiny","{field}":"\\ud800"}}'.encode()), None)
    assert server.engine.seen == []
    paired = b'{"model":"tiny","prompt":"\\ud83e\\udd99","max_tokens":1}'
    assert server.post("/v1/completions", paired).json()["usage"]["prompt_tokens"] == len(server.tokenizer.encode("🦙"))
