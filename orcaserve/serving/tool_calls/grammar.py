"""The grammar of an answer that must hold calls, or may hold some and then strictly by their schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.core.grammar import MAX_GRAMMAR_LENGTH, Grammar, GrammarKind
from orcaserve.serving.tool_calls.format import CallFormat
from orcaserve.serving.tool_calls.lark import MAX_CALLS, Function, Lark
from orcaserve.serving.tool_calls.tools import Choice, Tool, ToolUse
from orcaserve.text.json_schema import prepare

ANY_OBJECT = {"type": "object"}


def grammar_of_calls(
    use: ToolUse, form: CallFormat, token_ids: Mapping[str, int], answer: Grammar | None = None
) -> Grammar | None:
    """None if the model writes as it likes: nothing is required, no function is strict, and there is no `answer`.

    token_ids: of the marks that are special tokens of the model's. answer: what the text must be where it is no call.
    Raises InvalidRequest for a schema that cannot be kept to.
    """
    if not use.constrained and answer is None:
        return None
    functions = [Function(tool.name, _kept_schema(tool, use.choice)) for tool in use.callable]
    lark = Lark(functions, MAX_CALLS if use.most is None else use.most, token_ids)
    calls = lark.rule("calls", form.write_calls(lark))
    if use.choice is Choice.REQUIRED:
        start = f"{lark.mark(form.opening)} {calls}" if form.opening else calls
    elif answer is not None:
        start = _calls_or_answer(form, lark, calls, answer)
    else:
        start = _calls_after_text(form, lark, calls)
    text = lark.written(start)
    if len(text) > MAX_GRAMMAR_LENGTH:
        message = f"the schemas of tools that are strict or required make more than {MAX_GRAMMAR_LENGTH} characters"
        raise InvalidRequest("tools", message)
    return Grammar(GrammarKind.LARK, text)


def _calls_after_text(form: CallFormat, lark: Lark, calls: str) -> str:
    """Free text up to where calls begin, if they do."""
    if not form.opening:
        # An answer that is no call does not begin like one; the format's own mark may come before calls as well.
        text = lark.rule("TEXT", rf"/[ \t\r\n]*[^ \t\r\n\{form.marks.bare}](.|\n)*/")
        marked = [f"{text}? {lark.mark(mark)} {calls}" for mark in form.marks.begins if lark.is_token(mark)]
        return " | ".join([text, calls, *marked])
    if lark.is_token(form.opening):
        text = lark.rule("TEXT", r"/(.|\n)+/")
        return f"{text}? ({lark.mark(form.opening)} {calls})?"
    text = lark.rule("TEXT", r"/(.|\n)*/")
    lark.rule("opening[lazy]", f"{text} {lark.text(form.opening)}")
    return f"{text} | opening {calls}"


def _calls_or_answer(form: CallFormat, lark: Lark, calls: str, answer: Grammar) -> str:
    """One or the other, told apart by how they begin."""
    if answer.kind is not GrammarKind.JSON_SCHEMA:
        raise InvalidRequest("tools", "beside tools, only JSON and JSON schemas can be asked for")
    mark = form.opening or next(filter(lark.is_token, form.marks.begins), "")
    if not mark:
        message = "this model's calls begin as JSON does: they cannot stand beside a schema for the answer"
        raise InvalidRequest("tools", message, code="unsupported_parameter")
    lark.rule("answer", f"%json {answer.text}")
    return f"answer | {lark.mark(mark)} {calls}"


def _kept_schema(tool: Tool, choice: Choice) -> Mapping[str, Any]:
    """What the arguments have to be. A function that is neither strict nor required may get any object.

    One that is required but not strict is held to its schema if that can be done.
    """
    if not tool.strict and choice is Choice.AUTO:
        return ANY_OBJECT
    try:
        prepare(tool.schema)
    except InvalidRequest as error:
        if not tool.strict:
            return ANY_OBJECT
        field = f"{tool.field}.parameters"
        raise InvalidRequest(field, f"{field}: {error.message}", code="invalid_schema") from error
    return tool.schema
