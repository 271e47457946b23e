"""API keys: those of the command line, and those of a file, each with a name, a weight and a priority.

- {name: search, key: s3cret-1, weight: 4}
- {name: nightly, key: s3cret-2, priority: 10}
"""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from orcaserve.config import ApiKey
from orcaserve.core.errors import ConfigError

FLAG, FILE_FLAG = "--api-key", "--api-keys-file"
MAX_FILE_BYTES = 4 * 2**20
_MEMBERS = ("name", "key", "weight", "priority")
_log = logging.getLogger("orcaserve")


def api_keys(given: Sequence[str] | None, file: Path | None) -> tuple[ApiKey, ...]:
    """All keys. Those of the command line are called key-1, key-2 and so on. Raises ConfigError, without any key."""
    keys = []
    for number, key in enumerate(given or (), 1):
        if key == "":
            raise ConfigError(FLAG, "is empty: give a key, or leave it out to serve without one")
        try:
            keys.append(ApiKey(f"key-{number}", key))
        except ConfigError as error:
            raise ConfigError(FLAG, str(error).removeprefix(f"{FILE_FLAG}: ")) from None
    return (*keys, *(() if file is None else read_keys(file)))


def read_keys(path: Path) -> list[ApiKey]:
    """The entries of a file, JSON if it is named so, else YAML. Raises ConfigError that names the entry."""
    try:
        mode = path.stat().st_mode
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(FILE_FLAG, f"{path} has more than {MAX_FILE_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(FILE_FLAG, f"{path} cannot be read: {why}") from None
    if stat.S_IMODE(mode) & 0o077:
        what = "%s: %s can be read or changed by other users of this machine (mode %o): chmod 600 it"
        _log.warning(what, FILE_FLAG, path, stat.S_IMODE(mode))
    entries = _parse(path, text)
    if not isinstance(entries, list) or not entries:
        raise ConfigError(FILE_FLAG, f"{path} must be a list of entries with name and key")
    return [_entry(number, entry) for number, entry in enumerate(entries, 1)]


def _parse(path: Path, text: str) -> Any:
    """Raises ConfigError: what a parser says of a place may hold a piece of a key, so only the line is told."""
    try:
        return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except json.JSONDecodeError as error:
        raise ConfigError(FILE_FLAG, f"{path} is not JSON: see line {error.lineno}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f": see line {mark.line + 1}"
        raise ConfigError(FILE_FLAG, f"{path} is not YAML{where}") from None


def _entry(number: int, entry: Any) -> ApiKey:
    if not isinstance(entry, dict):
        raise ConfigError(FILE_FLAG, f"entry {number} must be an object with name and key")
    if unknown := [name for name in entry if name not in _MEMBERS]:
        # It may be a key that somebody wrote in the wrong place: it is not repeated.
        raise ConfigError(FILE_FLAG, f"entry {number} has {len(unknown)} members beside {', '.join(_MEMBERS)}")
    for name in ("name", "key"):
        if not isinstance(entry.get(name), str):
            raise ConfigError(FILE_FLAG, f"entry {number}: {name} must be a string (quote what looks like a number)")
    try:
        return ApiKey(**entry)
    except ConfigError as error:
        raise ConfigError(FILE_FLAG, f"entry {number}: {str(error).removeprefix(f'{FILE_FLAG}: ')}") from None
