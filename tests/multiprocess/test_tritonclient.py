"""The real tritonclient[http] against a real server, where it is installed: it brings gevent, so no extra has it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from server_process import Serve

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tritonclient") is None, reason="tritonclient[http] is not installed"
)
# In a process of its own: gevent changes the one it is imported in.
PROGRAM = """
import json, sys
import numpy as np
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

client = http.InferenceServerClient(sys.argv[1])
model = sys.argv[2]
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(model)
assert client.is_model_ready(model, "1") and not client.is_model_ready(model, "2") and not client.is_model_ready("nope")
assert client.get_server_metadata()["name"] == "orcaserve"
assert client.get_model_metadata(model)["inputs"][0]["name"] == "text_input"
assert client.get_model_config(model)["backend"] == "orcaserve"
said = {}
for binary in (True, False):
    text = http.InferInput("text_input", [2, 1], "BYTES")
    text.set_data_from_numpy(np.array([[b"ab"], ["q".encode()]], dtype=object), binary_data=binary)
    most = http.InferInput("max_tokens", [1], "INT32")
    most.set_data_from_numpy(np.array([8], np.int32), binary_data=binary)
    greedy = http.InferInput("temperature", [1], "FP32")
    greedy.set_data_from_numpy(np.array([0], np.float32), binary_data=binary)
    for outputs in (None, [http.InferRequestedOutput("text_output", binary_data=not binary)]):
        result = client.infer(model, [text, most, greedy], outputs=outputs, request_id="7",
                              parameters={"ignore_eos": True})
        assert result.get_response()["id"] == "7" and result.get_response()["model_version"] == "1"
        texts = result.as_numpy("text_output")
        assert texts.shape == (2, 1)
        said[f"{binary} {outputs is None}"] = [t.decode() if isinstance(t, bytes) else t for t in texts.ravel()]
try:
    client.infer("nope", [text])
    raise SystemExit("no error")
except InferenceServerException as error:
    assert error.status() == "404" and "does not exist" in error.message(), error
print(json.dumps(said))
"""


def test_tritonclient(served_model: Path) -> None:
    serve = Serve(str(served_model), "--port", "0", "--n-slots", "1024", "-t", "1")
    try:
        expected = [serve.text(prompt, max_tokens=8) for prompt in ("ab", "q")]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, serve.base.removeprefix("http://"), serve.model],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert len(said) == 4 and all(texts == expected for texts in said.values())
    finally:
        assert serve.stop() == 0
