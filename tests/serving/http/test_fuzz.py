"""Bodies nobody would write: each gets an answer in our form, below 500, and harms nobody."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orcaserve.serving.fields import CHAT, COMPLETION, UNSUPPORTED

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-3, 130), st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20), st.sampled_from(["a", "tiny", "user", "text", "1", "2"]),
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)
message = st.fixed_dictionaries(
    {}, optional={"role": st.one_of(values, st.just("user")), "content": st.one_of(values, st.just("hi"))}
)
fields = st.sampled_from([*COMPLETION, *CHAT, *UNSUPPORTED, "best_of", "x"])


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_fuzzed_fields(server: Any, data: Any) -> None:
    body = {"model": "tiny", "prompt": "a", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
    body.update(data.draw(st.dictionaries(fields, values, max_size=3)))
    if data.draw(st.booleans()):
        body["messages"] = data.draw(st.lists(message, max_size=3))
    path = data.draw(st.sampled_from(["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]))
    answer = server.post(path, body)
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"]


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 120), junk=st.binary(max_size=6), keep=st.booleans())
def test_fuzzed_bytes(server: Any, cut: int, junk: bytes, keep: bool) -> None:
    good = json.dumps({"model": "tiny", "prompt": ["a", "ü🦙"], "max_tokens": 2, "stop": ["x"], "n": 1}).encode()
    body = good[:cut] + junk + (good[cut:] if keep else b"")
    assert server.post("/v1/completions", body).status_code in (200, 400, 404)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    head=st.binary(max_size=60), line=st.sampled_from([b"GET /live HTTP/1.1\r\n", b"POST /tokenize HTTP/1.1\r\n", b""])
)
def test_fuzzed_headers(server: Any, head: bytes, line: bytes) -> None:
    answer = server.send_raw(line + head + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
    assert answer == b"" or (answer.startswith(b"HTTP/1.1 ") and b" 50" not in answer.split(b"\r\n")[0])
