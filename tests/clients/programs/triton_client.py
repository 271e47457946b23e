"""Triton's HTTP client, and the generate extension, which it has no call for: triton_client.py BASE_URL MODEL."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Mapping
from typing import Any

import numpy as np
import tritonclient.http as triton
from steps import run, same

base, model = sys.argv[1:]
PROMPT = "The sea is"


def _client() -> triton.InferenceServerClient:
    return triton.InferenceServerClient(base.removeprefix("http://"))


def _post(path: str, body: Mapping[str, Any]) -> str:
    """The answer's text, by the standard library."""
    request = urllib.request.Request(
        f"{base}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())


def health() -> None:
    """is_server_live, is_server_ready, is_model_ready"""
    client = _client()
    same((client.is_server_live(), client.is_server_ready(), client.is_model_ready(model)), (True, True, True))
    same(client.is_model_ready("no-such-model"), False)


def metadata() -> None:
    """get_server_metadata, get_model_metadata"""
    client = _client()
    assert client.get_server_metadata()["name"]
    found = client.get_model_metadata(model)
    same(found["name"], model)
    assert "text_input" in [entry["name"] for entry in found["inputs"]]
    assert "text_output" in [entry["name"] for entry in found["outputs"]]


def infer() -> None:
    """infer: text_input to text_output, with request parameters"""
    text = triton.InferInput("text_input", [1], "BYTES")
    text.set_data_from_numpy(np.array([PROMPT.encode()], dtype=np.object_), binary_data=False)
    wanted = [triton.InferRequestedOutput("text_output", binary_data=False)]
    answer = _client().infer(model, [text], outputs=wanted, parameters={"max_tokens": 12, "temperature": 0})
    found = answer.as_numpy("text_output").reshape(-1)[0]
    same(found.decode() if isinstance(found, bytes) else found, _generated())


def generate() -> None:
    """generate and generate_stream: the same text as completions"""
    asked = {"model": model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    completed = json.loads(_post("/v1/completions", asked))["choices"][0]["text"]
    same(_generated(), completed)
    body = {"text_input": PROMPT, "parameters": {"max_tokens": 12, "temperature": 0}}
    lines = _post(f"/v2/models/{model}/generate_stream", body).splitlines()
    events = [json.loads(line.removeprefix("data:")) for line in lines if line.startswith("data:")]
    same("".join(event["text_output"] for event in events), completed)


def _generated() -> str:
    body = {"text_input": PROMPT, "parameters": {"max_tokens": 12, "temperature": 0}}
    return str(json.loads(_post(f"/v2/models/{model}/generate", body))["text_output"])


def refusals() -> None:
    """errors as InferenceServerException"""
    try:
        _client().get_model_metadata("no-such-model")
    except triton.InferenceServerException as error:
        assert error.message()
    else:
        raise AssertionError("not refused")


sys.exit(run([health, metadata, generate, infer, refusals]))
