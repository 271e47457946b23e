"""Keyring: whose key a request brings."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import sha256

from orcaserve.config import ApiKey


class Keyring:
    """All keys, as digests of one length: a search takes as long for a key that is almost right as for any other."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._keys = [(key, sha256(key.key.encode()).digest()) for key in keys]

    def __bool__(self) -> bool:
        """Whether there are any; without, everybody may come in."""
        return bool(self._keys)

    def find(self, authorization: str | None) -> ApiKey | None:
        """The entry of `Authorization: Bearer KEY`, None if there is none. Looks at all of them always."""
        scheme, _, given = (authorization or "").partition(" ")
        digest = sha256(given.strip().encode("latin-1")).digest()
        found = None
        for key, known in self._keys:
            if hmac.compare_digest(digest, known):
                found = key
        return found if scheme.lower() == "bearer" else None
