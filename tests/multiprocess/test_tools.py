"""Tools by a real server with a model that knows nothing: what a grammar writes are calls, whatever the temperature."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from server_process import BYTES, Serve
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[A-Z][a-z]{1,6}$"},
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
PING = {"type": "object", "properties": {"loud": {"type": "boolean"}}, "additionalProperties": False}
SCHEMAS = {"weather": WEATHER, "ping": PING}
TEMPLATES = {
    "hermes": "<s>{% if tools %}T<tool_call>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}",
    "llama3_json": "<s>{% if tools %}<|python_tag|>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}",
    "mistral": "<s>{% if tools %}[TOOL_CALLS]{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}",
    "json_list": "<s>{% if tools %}<|tool_call|>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}",
    "pythonic": "<s>{% if tools %}<|python_start|>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}",
}
SPECIAL = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|tool_call|>")  # in place of the last bytes
USER: Any = [{"role": "user", "content": "Hi"}]


def with_tokens(model: Path, folder: Path, template: str) -> Path:
    """The model with a tokenizer of single bytes, and with the marks of calls as special tokens."""
    shutil.copytree(model, folder)
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    letter = {b: chr(b) for b in printable} | {b: chr(0x100 + i) for i, b in enumerate(others)}
    n_bytes = 256 - BYTES - len(SPECIAL)
    tokens = ["<unk>", "<s>", "</s>", *(letter[b] for b in range(n_bytes)), *SPECIAL]
    backend = Backend(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<unk>", "<s>", "</s>", *SPECIAL])
    backend.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module", params=TEMPLATES)
def serve(
    request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serve]:
    folder = with_tokens(tiny_model, tmp_path_factory.mktemp("tools") / "tiny", TEMPLATES[request.param])
    serve = Serve(str(folder), "--port", "0", "--n-slots", "8192", "-t", "1", "--max-model-len", "512")
    yield serve
    assert serve.stop() == 0
    assert not any("Traceback" in line for line in serve.log)


def tools(strict: bool = False) -> Any:
    return [
        {"type": "function", "function": {"name": name, "parameters": schema, "strict": strict}}
        for name, schema in SCHEMAS.items()
    ]


def calls_of(client: openai.OpenAI, body: dict[str, Any]) -> tuple[list[tuple[str, str]], str | None, str]:
    """Calls, content and reason of an answer, which a stream gives as well."""
    [choice] = client.chat.completions.create(**body).choices
    calls = [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or []]
    state = ChatCompletionStreamState()
    for chunk in client.chat.completions.create(**body, stream=True):
        state.handle_chunk(chunk)
    [streamed] = state.get_final_completion().choices
    assert [(c.function.name, c.function.arguments) for c in streamed.message.tool_calls or []] == calls
    assert (streamed.message.content, streamed.finish_reason) == (choice.message.content, choice.finish_reason)
    return calls, choice.message.content, choice.finish_reason


@pytest.mark.parametrize("temperature", [0, 0.7, 2])
def test_calls_are_valid_at_any_temperature(serve: Serve, temperature: float) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    n_whole = 0
    with openai.OpenAI(base_url=f"{serve.base}/v1", api_key="none", max_retries=0) as client:
        for seed, choice in enumerate(("required", named, "required", named)):
            body: dict[str, Any] = {
                "model": serve.model, "messages": USER, "tools": tools(seed > 1), "tool_choice": choice,
                "max_tokens": 400, "temperature": temperature, "seed": seed, "parallel_tool_calls": seed == 0,
            }  # fmt: skip
            calls, content, reason = calls_of(client, body)
            assert content is None and calls
            for name, arguments in calls if reason == "tool_calls" else calls[:-1]:
                jsonschema.validate(json.loads(arguments), SCHEMAS[name])
            n_whole += reason == "tool_calls"
            assert seed == 0 or (reason == "tool_calls" and len(calls) == 1)
            assert choice == "required" or calls[0][0] == "weather"
    assert n_whole >= 3


def test_strict_functions_beside_text(serve: Serve) -> None:
    """What the model makes of it: content, or calls that are valid; never half of each."""
    with openai.OpenAI(base_url=f"{serve.base}/v1", api_key="none", max_retries=0) as client:
        for seed in range(4):
            body: dict[str, Any] = {
                "model": serve.model, "messages": USER, "tools": tools(True), "max_tokens": 60, "temperature": 1.5,
                "seed": seed,
            }  # fmt: skip
            calls, content, reason = calls_of(client, body)
            assert calls or content or reason == "stop"
            for name, arguments in calls if reason == "tool_calls" else calls[:-1]:
                jsonschema.validate(json.loads(arguments), SCHEMAS[name])


def test_a_schema_that_is_none(serve: Serve) -> None:
    bad = {"type": "object", "properties": {"a": {"type": "no such type"}}, "required": ["a"]}
    body = {
        "model": serve.model, "messages": USER, "tool_choice": "required", "max_tokens": 9,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": bad, "strict": True}}],
    }  # fmt: skip
    answer = serve.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400 and answer.json()["error"]["param"].startswith("tools")
    assert serve.http.get("/health").status_code == 200
