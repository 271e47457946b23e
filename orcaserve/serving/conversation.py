"""Conversation: what a chat is made of, and the ids that the model's chat template and tokenizer make of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orcaserve.core.errors import CheckpointError, InvalidRequest
from orcaserve.serving.chat_template import ChatTemplate
from orcaserve.serving.control_tokens import ControlTokens, Marks
from orcaserve.serving.fields import MAX_DOCUMENTS, MAX_TEMPLATE_LENGTH, MAX_VARIABLES, flag
from orcaserve.serving.messages import read_messages
from orcaserve.serving.prompts import encode_text, refuse_if_too_long
from orcaserve.serving.tool_calls.described import describe_tools, text_of, write_calls_as_text
from orcaserve.serving.tool_calls.tools import Tool
from orcaserve.text.tokenizer import Tokenizer

MAX_TEMPLATES = 8  # of those that requests bring, which stay compiled
_VARIABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_TAKEN = frozenset(
    (
        "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "raise_exception",
        "strftime_now", "namespace", "range", "dict", "cycler", "joiner", "loop", "self",
    )
)  # fmt: skip
# Stands at the end of a message that is to be continued, to find that place again in what the template writes.
_TAG = "\U0010f000HERE-IT-GOES-ON "


@dataclass(frozen=True, slots=True)
class Conversation:
    """messages: as read_messages has them. tools: what the model is told of. variables: more for the template.

    generation_prompt: the template is asked to open the assistant's turn. continues: the last message is not over, the
    model goes on with it.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Tool] = ()
    documents: Sequence[Mapping[str, Any]] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    generation_prompt: bool = True
    continues: bool = False


def read_conversation(body: Mapping[str, Any], tools: Sequence[Tool] = ()) -> Conversation:
    """From a request's fields. Raises InvalidRequest naming the field."""
    messages = read_messages(body.get("messages"))
    continues = flag(body, "continue_final_message")
    generation_prompt = flag(body, "add_generation_prompt", not continues)
    if continues and generation_prompt:
        message = "continue_final_message and add_generation_prompt exclude each other"
        raise InvalidRequest("continue_final_message", message)
    if continues and not _text_of(messages[-1]):
        raise InvalidRequest("continue_final_message", "the last message has no text to be continued")
    documents = _documents(body.get("documents"))
    variables = _variables(body.get("chat_template_kwargs"))
    return Conversation(messages, tools, documents, variables, generation_prompt, continues)


class ChatEncoder:
    """The chat template and the tokenizer of a model; safe to use from several threads."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self.template = template
        self._tokenizer = tokenizer
        self._control_tokens = ControlTokens(tokenizer, template.literals)

    @property
    def takes_tools(self) -> bool:
        return "tools" in self.template.variables

    def encode(self, conversation: Conversation, most_tokens: int) -> list[int]:
        """Ids as transformers' apply_chat_template gives them. May take long: call it on a thread.

        Raises InvalidRequest if the template refuses the messages, CannotFit if they are certainly too long.
        """
        if conversation.documents is not None and "documents" not in self.template.variables:
            message = "the model's chat template has no place for documents"
            raise InvalidRequest("documents", message, code="unsupported_parameter")
        adapted = self._adapted(conversation)
        try:
            rendered, marks = self._render(adapted, list(map(_with_objects, adapted.messages)))
        except InvalidRequest:
            if not any(message.get("tool_calls") for message in adapted.messages):
                raise
            rendered, marks = self._render(adapted, adapted.messages)  # some templates want arguments as text
        if marks is None:
            ids = encode_text("messages", rendered, self._tokenizer, most_tokens, add_special_tokens=False)
        else:
            refuse_if_too_long("messages", rendered, self._tokenizer, most_tokens)
            ids = self._control_tokens.encode(rendered, marks)
        if not ids:
            raise InvalidRequest("messages", "the chat template renders these messages to nothing")
        return ids

    def _adapted(self, conversation: Conversation) -> Conversation:
        """What this template does not know in a form that it does."""
        template = self.template
        messages = [dict(message) for message in conversation.messages]
        if not self.takes_tools:
            messages = describe_tools(messages, conversation.tools, template.takes_system)
            if not template.knows("tool"):
                messages = write_calls_as_text(messages)
        for message in messages:
            if message["role"] == "developer" and not template.knows("developer"):
                message["role"] = "system"
            content = message.get("content")
            if isinstance(content, list) and not template.takes_parts:
                message["content"] = text_of(message)
            elif isinstance(content, str) and not template.takes_text and template.takes_parts:
                message["content"] = [{"type": "text", "text": content}]
        return replace(conversation, messages=messages)

    def _render(self, conversation: Conversation, messages: Sequence[Mapping[str, Any]]) -> tuple[str, Marks | None]:
        """The prompt, with marks around what must not become tokens."""
        tools = [tool.offered for tool in conversation.tools] if conversation.tools and self.takes_tools else None
        others = (tools, conversation.documents, conversation.variables)
        messages, others, marks = self._control_tokens.mark(messages, others)
        tools, documents, variables = others
        if conversation.continues:
            messages = [*messages[:-1], _tagged(messages[-1])]
        rendered = self.template.render(
            messages, conversation.generation_prompt, tools=tools, documents=documents, **variables
        )
        return (_cut_at_tag(rendered) if conversation.continues else rendered), marks


class RequestTemplates:
    """Chat templates that requests bring, of which the last few stay compiled."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, ChatEncoder] = {}

    def encoder(self, source: Any) -> ChatEncoder:
        """Raises InvalidRequest."""
        if not isinstance(source, str):
            raise InvalidRequest("chat_template", "chat_template must be a string", code="invalid_type")
        if not 1 <= len(source) <= MAX_TEMPLATE_LENGTH:
            raise InvalidRequest("chat_template", f"chat_template must have 1 to {MAX_TEMPLATE_LENGTH} characters")
        known = self._known.get(source)
        if known is None:
            try:
                template = ChatTemplate(source, self._tokenizer.special_tokens)
            except CheckpointError as error:
                raise InvalidRequest("chat_template", "chat_template is not valid Jinja") from error
            known = ChatEncoder(template, self._tokenizer)
            if len(self._known) >= MAX_TEMPLATES:
                self._known.clear()
            self._known[source] = known
        return known


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return (content[-1]["text"] if content else "") if isinstance(content, list) else content or ""


def _tagged(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message["content"]
    if isinstance(content, list):
        last = {**content[-1], "text": content[-1]["text"] + _TAG}
        return {**message, "content": [*content[:-1], last]}
    return {**message, "content": content + _TAG}


def _cut_at_tag(rendered: str) -> str:
    """What the template has written up to the end of the last message. Where it trims messages, so is that end."""
    found = rendered.rfind(_TAG.strip())
    if found < 0:
        message = "the chat template does not write the last message as it is, so it cannot be continued"
        raise InvalidRequest("continue_final_message", message)
    rest = rendered[:found]
    return rest if rendered.startswith(_TAG, found) else rest.rstrip()


def _with_objects(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments of calls as what their text stands for: most templates write them as JSON in a way of their own."""
    if not message.get("tool_calls"):
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _documents(value: Any) -> list[dict[str, Any]] | None:
    if value is None or value == []:
        return None
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise InvalidRequest("documents", "documents must be a list of objects", code="invalid_type")
    if len(value) > MAX_DOCUMENTS:
        raise InvalidRequest("documents", f"documents takes at most {MAX_DOCUMENTS} documents")
    return value


def _variables(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    name = "chat_template_kwargs"
    if not isinstance(value, dict):
        raise InvalidRequest(name, f"{name} must be an object", code="invalid_type")
    if len(value) > MAX_VARIABLES:
        raise InvalidRequest(name, f"{name} takes at most {MAX_VARIABLES} variables")
    for key in value:
        if not _VARIABLE.fullmatch(key) or key in _TAKEN or key.endswith("_token"):
            raise InvalidRequest(name, f"{name} holds a name that is not free for variables")
    return value
