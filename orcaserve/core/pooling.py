"""Pooling: of which tokens' hidden states a text's embedding is made. They are taken after the model's last norm."""

from __future__ import annotations

from enum import Enum


class Pooling(Enum):
    MEAN = "mean"  # of all tokens
    LAST = "last"  # of the last one
