"""tools, tool_choice, parallel_tool_calls: what is taken, and what is refused under which name."""

from __future__ import annotations

from typing import Any

import pytest

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.tool_calls.tools import Choice, read_tools


def tool(name: Any = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


F, G = tool("f"), tool("g", description="g", parameters={"type": "object", "properties": {"a": {}}}, strict=True)


@pytest.mark.parametrize("body", [{}, {"tools": None}, {"tools": []}, {"tools": [F], "tool_choice": "none"},
                                  {"tool_choice": "auto"}, {"tool_choice": "none"}])  # fmt: skip
def test_no_tools(body: dict[str, Any]) -> None:
    assert read_tools(body) is None


def test_choices() -> None:
    use = read_tools({"tools": [F, G]})
    assert use is not None and use.choice is Choice.AUTO and use.names == {"f", "g"} and use.most is None
    assert use.constrained and [t.strict for t in use.tools] == [False, True]
    use = read_tools({"tools": [F], "parallel_tool_calls": False, "tool_choice": "auto"})
    assert use is not None and use.most == 1 and not use.constrained
    use = read_tools({"tools": [F, G], "tool_choice": "required"})
    assert use is not None and use.choice is Choice.REQUIRED and use.constrained
    use = read_tools({"tools": [F, G], "tool_choice": {"type": "function", "function": {"name": "f"}}})
    assert use is not None and use.names == {"f"} and use.most == 1 and len(use.tools) == 2 and use.constrained
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}
    use = read_tools({"tools": [F, G], "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}})
    assert use is not None and use.names == {"f"} and use.choice is Choice.AUTO and not use.constrained


def test_a_function_without_parameters_takes_none() -> None:
    use = read_tools({"tools": [F, tool("h", parameters={})]})
    assert use is not None and use.tools[0].schema["additionalProperties"] is False
    assert use.tools[1].schema == {"type": "object"}


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ("x", "tools"), ({}, "tools"), (5, "tools"), ([F] * 129, "tools"), (["f"], "tools[0]"), ([None], "tools[0]"),
        ([{"function": {"name": "f"}}], "tools[0].type"), ([F, {"type": "custom"}], "tools[1].type"),
        ([{"type": "function"}], "tools[0].function"), ([{"type": "function", "function": "f"}], "tools[0].function"),
        ([{"type": "function", "function": {}}], "tools[0].function.name"), ([tool(5)], "tools[0].function.name"),
        ([tool("")], "tools[0].function.name"), ([tool("a b")], "tools[0].function.name"),
        ([tool("f\n")], "tools[0].function.name"), ([tool("é")], "tools[0].function.name"),
        ([tool("a.b")], "tools[0].function.name"), ([tool("a" * 65)], "tools[0].function.name"),
        ([tool("<|im_end|>")], "tools[0].function.name"), ([F, F], "tools[1].function.name"),
        ([tool(description=5)], "tools[0].function.description"), ([tool(strict=1)], "tools[0].function.strict"),
        ([tool(parameters=[])], "tools[0].function.parameters"),
        ([tool(parameters="x")], "tools[0].function.parameters"),
        ([tool(parameters={"type": "string"})], "tools[0].function.parameters.type"),
        ([tool(parameters={"type": ["object"]})], "tools[0].function.parameters.type"),
        ([tool(parameters={"properties": []})], "tools[0].function.parameters.properties"),
        ([tool(parameters={"properties": {"a": 5}})], "tools[0].function.parameters.properties"),
        ([tool(parameters={"required": "a"})], "tools[0].function.parameters.required"),
        ([tool(description="x" * 2**18)], "tools"),
    ],
)  # fmt: skip
def test_bad_tools(tools: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_tools({"tools": tools})
    assert caught.value.field == field and field.split(".")[-1].split("[")[0] in caught.value.message
    assert "<|im_end|>" not in caught.value.message


@pytest.mark.parametrize(
    "choice",
    ["any", "f", 5, True, [], {}, {"type": "function"}, {"type": "function", "function": {}},
     {"type": "function", "function": {"name": 5}}, {"type": "function", "function": {"name": "h"}},
     {"type": "allowed_tools"}, {"type": "allowed_tools", "allowed_tools": {"mode": "x", "tools": [F]}},
     {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
     {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["f"]}}, {"type": ["function"]}],
)  # fmt: skip
def test_bad_choices(choice: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_tools({"tools": [F], "tool_choice": choice})
    assert caught.value.field == "tool_choice"
    with pytest.raises(InvalidRequest) as caught:
        read_tools({"tool_choice": choice})
    assert caught.value.field == "tool_choice"


def test_bad_parallel_tool_calls() -> None:
    for body in ({"tools": [F], "parallel_tool_calls": 1}, {"parallel_tool_calls": True}, {"parallel_tool_calls": "x"}):
        with pytest.raises(InvalidRequest) as caught:
            read_tools(body)
        assert caught.value.field == "parallel_tool_calls"
