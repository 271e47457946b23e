"""B42, B43 at the template's level: transformers' text, refusals named, nothing reaches out, nothing runs away."""

from __future__ import annotations

import time
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from orcaserve.core import CheckpointError, InvalidRequest
from orcaserve.serving.chat_template import ChatTemplate
from orcaserve.serving.tokenizer import Tokenizer

CHATML = (
    "{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{{ '<|im_end|>' ~ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set messages = messages[1:] %}"
    "{% endif %}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if m['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + (system + '\n' if system and loop.first else '') + m['content'].strip() + ' [/INST]' }}"
    "{% else %}{% generation %}{{ ' ' + m['content'] + ' ' }}{% endgeneration %}{% endif %}{% endfor %}"
)
TRICKS = (
    "{%- set ns = namespace(n=0) -%}\n{%- for m in messages %}\n    {% if loop.index > 2 %}{% break %}{% endif %}"
    "{% set ns.n = ns.n + 1 %}{{ m | tojson }}|{{ m.content | upper | replace('A', 'B') | indent(2) }}\n{% endfor %}"
    "{{ ns.n }}{{ tools is none }}{{ ', '.join(['a', 'b']) }}{{ messages | map(attribute='role') | join('/') }}"
)
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hi <there> & 'you'"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  a\nb  "}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "你好 🦙"}],
]


@pytest.mark.parametrize("source", [CHATML, LLAMA2, TRICKS], ids=["chatml", "llama2", "tricks"])
@pytest.mark.parametrize("chat", CHATS, ids=["one", "system", "three"])
def test_same_text_as_transformers(source: str, chat: list[dict[str, Any]]) -> None:
    expected, _ = render_jinja_template([chat], chat_template=source, add_generation_prompt=True, bos_token="<s>")
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(chat) == expected[0]


def test_b42_default_model_ids_equal_transformers(default_tokenizer: Tokenizer) -> None:
    assert default_tokenizer.chat_template is not None
    rendered = ChatTemplate(default_tokenizer.chat_template, default_tokenizer.special_tokens).render(CHATS[0])
    expected, _ = render_jinja_template(
        [CHATS[0]], chat_template=default_tokenizer.chat_template, add_generation_prompt=True
    )
    assert rendered == expected[0]
    ids = default_tokenizer.encode_chat(rendered)
    assert ids.count(1) == rendered.count("<|im_start|>") == 3  # special tokens are recognised, none is added


def test_b43_refusal_carries_the_templates_words() -> None:
    template = ChatTemplate(LLAMA2, {"bos_token": "<s>"})
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        template.render([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    assert caught.value.field == "messages" and caught.value.status == 400
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate("{{ raise_exception('x' * 5000) }}").render(CHATS[0])
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0]['content'] + 1 }}",
        "{{ messages.nothing.here }}",
        "{{ 1 // 0 }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages.__class__ }}{{ namespace.__init__.__globals__['x'] }}",
        "{{ 'x' * 10**9 }}",
        "{{ 'x' * 999999999 }}",
        "{{ [1] * 999999999 }}",
        "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(60) %}"
        "{% set ns.x = ns.x.replace('x', ns.x) %}{% endfor %}",
        "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(60) %}"
        "{% set ns.x = ns.x|replace('x', ns.x) %}{% endfor %}",
        "{{ '%999999999d' % 1 }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ 'x'.ljust(999999999) }}",
        "{{ 'x' | center(999999999) }}",
        "{{ 'x' | indent(999999999, true) }}",
        "{{ range(999999999) | list }}",
        "{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = a * b %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_hostile_template_is_stopped(source: str) -> None:
    start = time.monotonic()
    try:
        with pytest.raises(InvalidRequest) as caught:
            ChatTemplate(source).render(CHATS[0])
    except CheckpointError:
        return  # refused when it was compiled
    assert caught.value.field == "messages" and "Hi" not in caught.value.message
    assert time.monotonic() - start < 10


def test_broken_template_stops_the_load() -> None:
    with pytest.raises(CheckpointError):
        ChatTemplate("{% for %}")


def test_strftime_now_and_missing_content() -> None:
    assert ChatTemplate("{{ strftime_now('%Y') }}").render(CHATS[0]).isdigit()
    message = {"role": "assistant", "content": None, "tool_calls": []}
    assert ChatTemplate("{{ messages[0].content is defined }}").render([message]) == "False"
