"""Small chat templates with the constructs and the special tokens of the common families, and tokenizers for them.

None of them is a family's own text; each does with messages what that family's does.
"""

# ruff: noqa: E501  (templates have lines of their own)

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

TEXTS = [
    "The quick brown fox jumps over the lazy dog. What is the weather in Paris today? user assistant system tool",
    '{"name": "get_weather", "arguments": {"city": "Paris"}} {"type": "function", "description": "x", "properties": {}}',
    "Grüße aus Köln, ça va? 你好，世界 🦙 don't we'll 123 456\n\n  code()\n",
] * 4


@dataclass(frozen=True)
class Family:
    """special: tokens; added: those that are not special. takes: what its template has a place for."""

    template: str
    special: tuple[str, ...]
    bos: str | None
    eos: str
    added: tuple[str, ...] = ()
    takes: frozenset[str] = field(default_factory=frozenset)
    sentencepiece: bool = False


def _family(
    template: str, special: str, bos: str | None, eos: str, added: str = "", takes: str = "", **more: Any
) -> Family:
    return Family(template, tuple(special.split()), bos, eos, tuple(added.split()), frozenset(takes.split()), **more)


LLAMA2 = (
    "{% if messages[0].role == 'system' %}{% set sys = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set sys = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('user and assistant take turns') }}{% endif %}"
    "{% set text = sys + m['content'] if loop.first else m['content'] %}"
    "{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + text.strip() + ' [/INST]' }}"
    "{% else %}{% generation %}{{ ' ' ~ text.strip() ~ ' ' ~ eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
)
LLAMA3 = (
    "{% for m in messages %}{% set text = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n'"
    " + m['content'] | trim + '<|eot_id|>' %}{{ bos_token + text if loop.first else text }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
LLAMA32 = """{{- bos_token }}
{%- if not date_string is defined %}{% set date_string = strftime_now("%d %b %Y") %}{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}{% set messages = messages[1:] %}
{%- else %}{% set system = "" %}{% endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{ "Environment: ipython\\n" }}{% endif %}
{{- "Today: " + date_string + "\\n\\n" + system + "<|eot_id|>" }}
{%- if tools is not none and tools | length > 0 %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\nAnswer with {"name": function, "parameters": arguments}.\\n\\n' }}
    {%- for t in tools %}{{ t | tojson(indent=4) }}{{ "\\n\\n" }}{% endfor %}
    {{- messages[0]['content']|trim + "<|eot_id|>" }}{% set messages = messages[1:] %}
{%- endif %}
{%- for m in messages %}
    {%- if m.role in ('tool', 'ipython') %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if m.content is mapping or m.content is iterable and m.content is not string %}{{ m.content | tojson }}
        {%- else %}{{ m.content }}{% endif %}{{- "<|eot_id|>" }}
    {%- elif 'tool_calls' in m %}
        {%- if m.tool_calls|length != 1 %}{{ raise_exception("one call at a time") }}{% endif %}
        {%- set call = m.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n<|python_tag|>{"name": "' + call.name + '", ' }}
        {{- '"parameters": ' }}{{- call.arguments | tojson }}{{- "}" }}{{- "<|eom_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
MISTRAL = """{%- if messages[0]["role"] == "system" %}{% set system = messages[0]["content"] %}{% set loop_messages = messages[1:] %}
{%- else %}{% set loop_messages = messages %}{% endif %}
{%- set ns = namespace(last=-1) %}
{%- for m in loop_messages %}{% if m.role == "user" %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{{- bos_token }}
{%- for m in loop_messages %}
    {%- if m["role"] == "user" %}
        {%- if tools is not none and loop.index0 == ns.last %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.function.items() if key != "return" %}
                    {{- '"' + key + '": ' + (val | tojson) }}{% if not loop.last %}{{ ", " }}{% endif %}
                {%- endfor %}{{- "}}" }}{% if not loop.last %}{{ ", " }}{% endif %}
            {%- endfor %}{{- "][/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST] " + (system + "\\n\\n" if system is defined and loop.first else "") + m["content"] + "[/INST]" }}
    {%- elif m.tool_calls is defined and m.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for call in m.tool_calls %}
            {%- if call.id is not defined or call.id|length != 9 %}{{ raise_exception("ids have nine characters") }}{% endif %}
            {{- (call.function|tojson)[:-1] + ', "id": "' + call.id + '"}' }}{% if not loop.last %}{{ ", " }}{% endif %}
        {%- endfor %}{{- "]" + eos_token }}
    {%- elif m["role"] == "assistant" %}{{ " " + m["content"]|trim + eos_token }}
    {%- elif m["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + m.content|string + ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}{{ raise_exception("only user, assistant and tool") }}{% endif %}
{%- endfor %}"""
QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}{{- messages[0].content if messages[0].role == 'system' else 'You are helpful.' }}
    {{- "\\n\\n# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{% endfor %}
    {{- "\\n</tools>\\nAnswer within <tool_call></tool_call>.<|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first)
        or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}{% if message.content %}{{- '\\n' + message.content }}{% endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{% set tool_call = tool_call.function %}{% endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}{{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{% endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
QWEN3 = """{%- set ns = namespace(last=messages|length - 1, looking=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.looking and message.role == "user" and message.content is string
        and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.looking = false %}{% set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}{% set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}{{- '<|im_start|>' + message.role + '\\n' + content }}{% endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {%- if call.function.arguments is string %}{{- call.function.arguments }}
            {%- else %}{{- call.function.arguments | tojson }}{% endif %}{{- '}\\n</tool_call>' }}
        {%- endfor %}{{- '<|im_end|>\\n' }}
    {%- else %}{{- '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are small and helpful<|im_end|>\\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PHI3 = (
    "{% for m in messages %}{% if m['role'] == 'system' and m['content'] %}{{ '<|system|>\\n' + m['content'] + '<|end|>\\n' }}"
    "{% elif m['role'] == 'user' %}{{ '<|user|>\\n' + m['content'] + '<|end|>\\n' }}{% elif m['role'] == 'assistant' %}"
    "{{ '<|assistant|>\\n' + m['content'] + '<|end|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"
)
PHI4 = (
    "{% for m in messages %}{% if m['role'] == 'system' and tools %}"
    "{{ '<|' + m['role'] + '|>' + m['content'] + '<|tool|>' + (tools | tojson) + '<|/tool|>' + '<|end|>' }}"
    "{% elif m.tool_calls %}{{ '<|assistant|><|tool_call|>' }}{{ m.tool_calls | map(attribute='function') | list | tojson }}"
    "{{ '<|/tool_call|><|end|>' }}{% else %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}"
)
GEMMA2 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = m['role'] %}"
    "{% endif %}{{ '<start_of_turn>' + role + '\\n' + m['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"
)
GEMMA3 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}{%- set prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}{%- set prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}{%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}{%- set prefix = "" -%}{%- set loop_messages = messages -%}{%- endif -%}
{%- for message in loop_messages -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (prefix if loop.first else "") }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{ raise_exception("what content is this") }}{%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<start_of_turn>model\\n'}}{%- endif -%}"""
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""
DEEPSEEK = (
    "{% set ns = namespace(system='', in_tool=false) %}{% for m in messages %}{% if m['role'] == 'system' %}"
    "{% set ns.system = ns.system + m['content'] %}{% endif %}{% endfor %}{{ bos_token }}{{ ns.system }}"
    "{% if tools %}{{ tools | length }}{% endif %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}{% set ns.in_tool = false %}{{ '<｜User｜>' + m['content'] }}"
    "{% elif m['role'] == 'assistant' and m['tool_calls'] %}{{ '<｜Assistant｜><｜tool▁calls▁begin｜>' }}"
    "{% for call in m['tool_calls'] %}{{ '<｜tool▁call▁begin｜>' + call['type'] + '<｜tool▁sep｜>' + call['function']['name']"
    " + '\\n```json\\n' + call['function']['arguments'] + '\\n```<｜tool▁call▁end｜>' }}{% endfor %}"
    "{{ '<｜tool▁calls▁end｜>' + eos_token }}{% elif m['role'] == 'assistant' %}{% set content = m['content'] %}"
    "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{ '<｜Assistant｜>' + content + eos_token }}{% elif m['role'] == 'tool' %}"
    "{{ '<｜tool▁output▁begin｜>' + m['content'] + '<｜tool▁output▁end｜>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and not ns.in_tool %}{{ '<｜Assistant｜>' }}{% endif %}"
)
GRANITE = """{%- if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}
{%- else %}{% set system = "Today is " + strftime_now('%B %d, %Y') + "." %}{% set rest = messages %}{% endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system + '<|end_of_text|>\\n' }}
{%- if tools %}{{- '<|start_of_role|>tools<|end_of_role|>' }}{{- tools | tojson(indent=4) }}{{- '<|end_of_text|>\\n' }}{% endif %}
{%- if documents %}
    {{- '<|start_of_role|>documents<|end_of_role|>' }}
    {%- for document in documents %}{{- 'Document ' + loop.index0 | string + '\\n' + document['text'] }}
    {%- if not loop.last %}{{- '\\n\\n' }}{% endif %}{% endfor %}{{- '<|end_of_text|>\\n' }}
{%- endif %}
{%- for message in rest %}
    {%- if message.tool_calls %}
        {{- '<|start_of_role|>assistant<|end_of_role|><|tool_call|>' }}
        {{- message.tool_calls | map(attribute='function') | list | tojson }}{{- '<|end_of_text|>\\n' }}
    {%- else %}{{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>\\n' }}
    {%- endif %}
    {%- if loop.last and add_generation_prompt %}{{- '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}
{%- endfor %}"""
COMMAND_R = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}"
    "{% set loop_messages = messages[1:] %}{% else %}{% set system = false %}{% set loop_messages = messages %}{% endif %}"
    "{% if system %}{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + system + '<|END_OF_TURN_TOKEN|>' }}{% endif %}"
    "{% for m in loop_messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}{% set content = m['content'] %}"
    "{% if m['role'] == 'user' %}{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}"
    "{% elif m['role'] == 'assistant' %}"
    "{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>'  + content.strip() + '<|END_OF_TURN_TOKEN|>' }}{% endif %}{% endfor %}"
    "{% if documents %}{{ '<results>' }}{% for d in documents %}{{ '\\nDocument: ' ~ loop.index0 }}"
    "{% for k, v in d.items() %}{{ '\\n' ~ k ~ ': ' ~ v }}{% endfor %}{% endfor %}{{ '</results>' }}{% endif %}"
    "{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"
)
_HEADERS = (
    "<|begin_of_text|> <|end_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|eom_id|> <|python_tag|>"
)
_IM = "<|endoftext|> <|im_start|> <|im_end|>"
_QWEN_ADDED = "<tool_call> </tool_call> <think> </think> <tool_response> </tool_response>"
_INST = "<s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_CALLS] [TOOL_RESULTS] [/TOOL_RESULTS]"
_DEEP = (
    "<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜User｜> <｜Assistant｜> <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> "
    "<｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜>"
)
_COMMAND = "<BOS_TOKEN> <|START_OF_TURN_TOKEN|> <|END_OF_TURN_TOKEN|> <|USER_TOKEN|> <|CHATBOT_TOKEN|> <|SYSTEM_TOKEN|>"

FAMILIES: dict[str, Family] = {
    "llama2": _family(LLAMA2, "<unk> <s> </s>", "<s>", "</s>", takes="system", sentencepiece=True),
    "llama3": _family(LLAMA3, _HEADERS, "<|begin_of_text|>", "<|eot_id|>", takes="system any"),
    "llama3.2": _family(LLAMA32, _HEADERS, "<|begin_of_text|>", "<|eot_id|>", takes="system tools date_string"),
    "mistral": _family(MISTRAL, "<unk> " + _INST, "<s>", "</s>", takes="system tools", sentencepiece=True),
    "mixtral": _family(MISTRAL, _INST, "<s>", "</s>", takes="system tools"),
    "qwen2.5": _family(QWEN, _IM, None, "<|im_end|>", _QWEN_ADDED, "system tools several"),
    "qwen3": _family(QWEN3, _IM, None, "<|im_end|>", _QWEN_ADDED, "system tools several enable_thinking any"),
    "smollm2": _family(SMOLLM2, _IM, "<|im_start|>", "<|im_end|>", takes="system any"),
    "phi3": _family(PHI3, "<unk> <s> </s> <|endoftext|> <|system|> <|user|> <|assistant|> <|end|>", "<s>", "<|endoftext|>",
                    takes="system", sentencepiece=True),
    "phi4": _family(PHI4, "<|endoftext|> <|system|> <|user|> <|assistant|> <|end|> <|tool|> <|/tool|> <|tool_call|> "
                    "<|/tool_call|>", "<|endoftext|>", "<|endoftext|>", takes="system tools several any"),
    "gemma2": _family(GEMMA2, "<unk> <bos> <eos> <start_of_turn> <end_of_turn>", "<bos>", "<eos>", takes="any",
                      sentencepiece=True),
    "gemma3": _family(GEMMA3, "<bos> <eos> <start_of_turn> <end_of_turn> <start_of_image>", "<bos>", "<eos>",
                      takes="system parts any"),
    "chatml": _family(CHATML, _IM, None, "<|im_end|>", takes="system any"),
    "zephyr": _family(ZEPHYR, "<unk> <s> </s> <|user|> <|system|> <|assistant|>", "<s>", "</s>", takes="system",
                      sentencepiece=True),
    "deepseek": _family(DEEPSEEK, _DEEP, "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", takes="system tools text several"),
    "granite": _family(GRANITE, "<|start_of_role|> <|end_of_role|> <|end_of_text|> <|tool_call|>", "<|end_of_text|>",
                       "<|end_of_text|>", takes="system tools several documents any"),
    "command-r": _family(COMMAND_R, _COMMAND + " <EOS>", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", takes="system documents"),
}  # fmt: skip


def save_family(family: Family, folder: Path) -> Path:
    """The files that transformers and the server read: tokenizer.json, tokenizer_config.json, chat_template.jinja."""
    folder.mkdir(parents=True)
    backend = _sentencepiece(family) if family.sentencepiece else _byte_level(family)
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in family.special])
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in family.added])
    if family.bos is not None:  # it puts the token there itself: chats must not have it twice
        backend.post_processor = processors.TemplateProcessing(
            single=[family.bos, "$A"], special_tokens=[(family.bos, backend.token_to_id(family.bos))]
        )
    backend.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": family.eos,
        "model_max_length": 4096,
    }
    if family.bos is not None:
        config["bos_token"] = family.bos
    if "<unk>" in family.special:
        config["unk_token"] = "<unk>"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(family.template, encoding="utf-8")
    return folder


def _byte_level(family: Family) -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    return backend


def _sentencepiece(family: Family) -> Backend:
    """With the quirks of Llama 2's: a blank before each text, byte tokens, and control tokens that merges could make."""
    letters = dict.fromkeys("▁" + "".join(TEXTS[:2]).replace(" ", "") + "</|>[]_")
    words = [
        "▁the",
        "▁wea",
        "er",
        "▁weather",
        "▁is",
        "ser",
        "▁user",
        "▁in",
        "he",
        "</",
        "s>",
        "</s>",
        "<s>",
        "|>",
        "<|",
    ]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *letters, *words]
    tokens = list(dict.fromkeys(tokens))
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = [
        (token[:cut], token[cut:])
        for token in words
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend
