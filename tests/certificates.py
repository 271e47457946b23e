"""An authority and certificates of it, made with the command openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

from orcaserve.core.tls import TlsFiles

NAME = "orcaserve"


def _openssl(*words: str | Path) -> None:
    done = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Authority:
    """Its own certificate, and those that it signs, are put into `folder`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self.cert, self._key = folder / "ca.pem", folder / "ca.key"
        _new_key(self._key)
        _openssl("req", "-x509", "-new", "-key", self._key, "-out", self.cert, "-days", "2", "-subj", "/CN=authority")

    def issue(self, who: str, name: str = NAME, expired: bool = False) -> TlsFiles:
        """For a machine; made out to `name`."""
        key, request, cert, extensions = (self._folder / f"{who}.{end}" for end in ("key", "csr", "pem", "ext"))
        _new_key(key)
        extensions.write_text(f"subjectAltName=DNS:{name}\n")
        _openssl("req", "-new", "-key", key, "-out", request, "-subj", f"/CN={who}")
        days = "-1" if expired else "2"
        _openssl("x509", "-req", "-in", request, "-CA", self.cert, "-CAkey", self._key, "-CAcreateserial",
                 "-days", days, "-extfile", extensions, "-out", cert)  # fmt: skip
        return TlsFiles(cert, key, self.cert)


def _new_key(path: Path) -> None:
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)
    path.chmod(0o600)
