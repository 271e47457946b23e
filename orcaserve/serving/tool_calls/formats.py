"""The formats of calls there are, and which one a model's chat template speaks of."""

from __future__ import annotations

from orcaserve.serving.tool_calls.format import CallFormat
from orcaserve.serving.tool_calls.hermes import Hermes
from orcaserve.serving.tool_calls.json_list import JsonList
from orcaserve.serving.tool_calls.llama3_json import Llama3Json
from orcaserve.serving.tool_calls.mistral import Mistral
from orcaserve.serving.tool_calls.pythonic import Pythonic

# In this order: templates quote each other's words, those of the rarer formats say more.
FORMATS: tuple[type[CallFormat], ...] = (Mistral, Pythonic, JsonList, Hermes, Llama3Json)
BY_NAME = {kind.name: kind for kind in FORMATS}


def format_for(template: str | None, name: str | None = None) -> CallFormat:
    """The named one; else the one that the template shows signs of; else Hermes', which most models know."""
    source = template or ""
    if name is not None:
        return BY_NAME[name](source)
    kind = next((kind for kind in FORMATS if kind.fits(source)), Hermes)
    return kind(source)
