"""Reading multipart/form-data (RFC 7578) as it comes, in bounded memory.

    reader = MultipartReader(boundary_of(content_type))
    for piece in reader.feed(data): ...      # Part: a part begins; bytes: more of its content
    reader.close()                           # raises if the form was not complete

Raises InvalidRequest (400) for whatever is no such form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message

from orcaserve.core.errors import InvalidRequest

MAX_PARTS = 16
MAX_PART_HEADER = 4096  # bytes of a part's header, of its blanks behind a boundary, and of what precedes the first part
PLAIN = ("binary", "8bit", "7bit")
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{1,70}")


@dataclass(frozen=True, slots=True)
class Part:
    """name: of the form's field; filename: None if it is no file."""

    name: str
    filename: str | None


def boundary_of(content_type: str | None) -> bytes:
    """Raises InvalidRequest (415) if this is no form."""
    message = Message()
    message["content-type"] = content_type or ""
    boundary = message.get_param("boundary")
    if message.get_content_type() != "multipart/form-data" or not isinstance(boundary, str):
        text = "send the header Content-Type: multipart/form-data; boundary=..."
        raise InvalidRequest(None, text, code="unsupported_media_type", status=415)
    if not _BOUNDARY.fullmatch(boundary):
        raise _bad("its boundary is not of the form that RFC 2046 allows")
    return boundary.encode()


class MultipartReader:
    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._buffer = b"\r\n"  # so that the first delimiter is like all others
        self._read = self._preamble
        self._n_parts = 0
        self._over = False

    def feed(self, data: bytes) -> Iterator[Part | bytes]:
        self._buffer += data
        while True:
            before = (self._read, len(self._buffer))
            yield from self._read()
            if (self._read, len(self._buffer)) == before:
                return

    def close(self) -> None:
        if not self._over:
            raise _bad("it ends before its last boundary")

    def _preamble(self) -> Iterator[Part | bytes]:
        at = self._buffer.find(self._delimiter)
        if at >= 0:
            self._pass_delimiter(at)
        elif len(self._buffer) > MAX_PART_HEADER + len(self._delimiter):
            raise _bad("it does not begin with its boundary")
        yield from ()

    def _content(self) -> Iterator[Part | bytes]:
        at = self._buffer.find(self._delimiter)
        # What may be the beginning of a delimiter waits for more.
        end = at if at >= 0 else max(len(self._buffer) - len(self._delimiter) + 1, 0)
        content, self._buffer = self._buffer[:end], self._buffer[end:]
        if at >= 0:
            self._pass_delimiter(0)
        if content:
            yield content

    def _pass_delimiter(self, at: int) -> None:
        self._buffer = self._buffer[at + len(self._delimiter) :]
        self._read = self._after_delimiter

    def _after_delimiter(self) -> Iterator[Part | bytes]:
        """`--` ends the form; else blanks may follow, and a line's end does."""
        if self._buffer.startswith(b"--"):
            self._over = True
            self._read = self._epilogue
        elif (at := self._buffer.find(b"\r\n")) >= 0:
            if self._buffer[:at].strip(b" \t"):
                raise _bad("something stands behind a boundary")
            self._buffer = self._buffer[at:]  # the line's end stays, so that an empty header is like all others
            self._read = self._header
        elif len(self._buffer) > MAX_PART_HEADER:
            raise _bad("something stands behind a boundary")
        yield from ()

    def _header(self) -> Iterator[Part | bytes]:
        at = self._buffer.find(b"\r\n\r\n")
        if (at if at >= 0 else len(self._buffer)) > MAX_PART_HEADER:
            raise _bad(f"the header of a part must be at most {MAX_PART_HEADER} bytes")
        if at < 0:
            return
        head, self._buffer = self._buffer[:at], self._buffer[at + 4 :]
        self._n_parts += 1
        if self._n_parts > MAX_PARTS:
            raise _bad(f"it has more than {MAX_PARTS} parts")
        self._read = self._content
        yield _part(head)

    def _epilogue(self) -> Iterator[Part | bytes]:
        self._buffer = b""
        yield from ()


def _part(head: bytes) -> Part:
    message = Message()
    try:
        lines = head.decode("utf-8").split("\r\n")
    except UnicodeDecodeError as error:
        raise _bad("the header of a part is not UTF-8 text") from error
    for line in filter(None, lines):
        key, colon, value = line.partition(":")
        if not colon or "\n" in value or "\r" in value:
            raise _bad("the header of a part is malformed")
        if key.strip().lower() == "content-disposition":
            message["content-disposition"] = value.strip()
        elif key.strip().lower() == "content-transfer-encoding" and value.strip().lower() not in PLAIN:
            raise _bad("its parts must not be encoded")
    name = message.get_param("name", header="content-disposition")
    if message.get_content_disposition() != "form-data" or not isinstance(name, str):
        raise _bad("a part has no name")
    return Part(name, message.get_filename())


def _bad(why: str) -> InvalidRequest:
    return InvalidRequest(None, f"the body is not a valid form: {why}", code="invalid_form")
