"""B42, B43 at the template's level: transformers' text, refusals named, nothing reaches out, nothing runs away."""

from __future__ import annotations

import resource
import time
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from orcaserve.core import CheckpointError, InvalidRequest
from orcaserve.serving.chat_template import ChatTemplate
from orcaserve.text.tokenizer import Tokenizer

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


def repeated(step: str, start: str = "'xxxxxxxx'", times: int = 60) -> str:
    """A template that sets ns.x to `step` again and again, and writes it."""
    loop = f"{{% for i in range({times}) %}}{{% set ns.x = {step} %}}{{% endfor %}}"
    return f"{{% set ns = namespace(x={start}) %}}{loop}{{{{ ns.x }}}}"


# One call each that makes much, or takes long inside C, or steps that double.
HOSTILE = [
    "{{ [1] | batch(20000000, 0) | list }}",
    "{{ [1] | slice(20000000, 0) | list }}",
    "{{ messages | tojson(indent=60000000) }}",
    "{{ messages | tojson(separators=('x' * 4000000, 'y')) | length }}",
    "{{ ([['x' * 1000] * 1000] * 1000) | tojson }}",
    "{{ (['x' * 1000000] * 1000) | join }}",
    "{{ (['x' * 1000000] * 1000) | string }}",
    "{{ ['x' * 1000000] * 1000 }}",
    "{{ '' ~ (['x' * 1000000] * 1000) }}",
    "{{ ''.join(['x' * 1000000] * 1000) }}",
    "{{ ('x' * 1000000).join(['y'] * 1000) }}",
    "{{ ['y'] * 1000 | join('x' * 1000000) }}",
    "{{ (['x' * 1000000] * 1000) | map('upper') | join }}",
    repeated("ns.x * ns.x", "3"),
    repeated("ns.x * ns.x // 2", "5"),
    repeated("ns.x + ns.x", "[1]"),
    repeated("ns.x + ns.x", "(1,)"),
    repeated("[ns.x, [1] * 4000000]", "[1]", 99999),
    repeated("(ns.x + ns.x,)", "(1,)") + "{{ {ns.x: 1} }}",
    repeated("[ns.x, ns.x]", "[1]"),
    repeated("(ns.x, ns.x)", "(1,)"),
    repeated("{'a': ns.x, 'b': ns.x}", "{}"),
    repeated("dict(a=ns.x, b=ns.x)", "{}"),
    repeated("ns.x | tojson", """'"'"""),
    repeated("ns.x | urlencode", "'%'"),
    repeated("ns.x ~ ns.x | escape", "'&'"),
    "{% set a = namespace(x=[1]) %}{% set b = namespace(x=[1]) %}{% for i in range(60) %}{% set a.x = [a.x, a.x] %}"
    "{% set b.x = [b.x, b.x] %}{% endfor %}{{ a.x == b.x }}",
    "{% set ns = namespace(x='xx') %}{% for i in range(40) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
    "{% set ns.x = y %}{% endfor %}",
    "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}" + repeated("f(ns.x)"),
    "{% set y %}{% for i in range(99999) %}{% for j in range(99999) %}"
    + "x" * 10_000
    + "{% endfor %}{% endfor %}{% endset %}",
    "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = ns.x + ['x' * 4000000 ~ i] %}{% endfor %}",
    "{{ ('a' * 4000000) | trim('b' * 4000000 ~ 'a') }}",
    "{{ ('a' * 4000000) | trim(chars='b' * 4000000 ~ 'a') }}",
    "{{ ('a' * 4000000).strip('b' * 4000000 ~ 'a') }}",
    "{{ ('a' * 4000000).rfind('b' ~ 'a' * 2000000) }}",
    "{{ ('a' * 4000000).rsplit('b' ~ 'a' * 2000000) }}",
    "{{ 1 | round(999999999, 'ceil') }}",
    "{{ (1).to_bytes(1000000000) }}",
    "{{ 'x'.rjust(999999999) }}",
    "{{ 'x'.center(999999999) }}",
    "{{ 'x'.zfill(999999999) }}",
    "{{ ('\t' * 1000).expandtabs(9999999) }}",
    "{{ 'x'.encode('utf-8') * 999999999 }}",
    "{{ 'x' | wordwrap(1, wrapstring='y' * 4000000) }}",
    "{{ ('x ' * 1000000).replace(' ', 'y' * 1000) }}",
    "{{ 'x' | indent('y' * 9000000, true) }}",
    "{{ ([[1] * 1000] * 1000) | sum(start=[]) }}",
    "{{ strftime_now('%Y' * 1000000) }}",
    "{{ raise_exception(['x' * 1000000] * 1000) }}",
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
        *HOSTILE,
    ],
)
def test_a_hostile_template_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orcaserve.serving.chat_template.MAX_SECONDS", 0.5)
    start, memory = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with pytest.raises(InvalidRequest) as caught:
            ChatTemplate(source).render(CHATS[0])
    except CheckpointError:
        return  # refused when it was compiled
    assert caught.value.field == "messages" and "Hi" not in caught.value.message
    assert time.monotonic() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 2**20, "KiB"


def test_a_hostile_template_does_nothing_when_it_is_compiled() -> None:
    start = time.monotonic()
    for source in HOSTILE:
        ChatTemplate(source)
    assert time.monotonic() - start < 2


def test_long_conversations_are_rendered() -> None:
    """What templates do in earnest stays within the limits."""
    chat = [{"role": "user", "content": "word " * 200} for _ in range(1000)]
    source = (
        "{% set ns = namespace(kept=[], text='') %}{% for m in messages %}{% set ns.kept = ns.kept + [m] %}"
        "{% if m.content.strip().startswith('word') %}{% set ns.text = m.content | trim %}{% endif %}{% endfor %}"
        "{% for m in ns.kept %}{{ m.role + ': ' + m.content.split('</think>')[-1].lstrip('\n') }}{% endfor %}"
        "{{ messages | tojson }}{{ messages | map(attribute='content') | join('\n') }}"
    )
    assert len(ChatTemplate(source).render(chat)) > 3 * 1000 * 1000


def test_broken_template_stops_the_load() -> None:
    with pytest.raises(CheckpointError):
        ChatTemplate("{% for %}")


def test_strftime_now_and_missing_content() -> None:
    assert ChatTemplate("{{ strftime_now('%Y') }}").render(CHATS[0]).isdigit()
    message = {"role": "assistant", "content": None, "tool_calls": []}
    assert ChatTemplate("{{ messages[0].content is defined }}").render([message]) == "False"
