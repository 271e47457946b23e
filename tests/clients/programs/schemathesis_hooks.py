"""Gives three of four of Schemathesis' requests the served model's name, MODEL: with any other, nothing else that the
request says is looked at."""

from __future__ import annotations

import itertools
import os
from typing import Any

import schemathesis

_MODEL = os.environ["MODEL"]
_turn = itertools.cycle((True, True, True, False))


@schemathesis.hook
def before_call(context: Any, case: Any, **kwargs: Any) -> None:
    if not next(_turn):
        return
    for part in (case.body, case.path_parameters):
        if isinstance(part, dict) and isinstance(part.get("model"), str):
            part["model"] = _MODEL
