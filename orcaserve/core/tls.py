"""TlsFiles: where a machine's part of mutual TLS lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. cert: this machine's certificate, and those between it and the authority; key: its private key;
    ca: the authority whose certificates all machines have.
    """

    cert: Path
    key: Path
    ca: Path
