"""/v1/files: upload, list, look at, read and delete. As OpenAI's, for the one purpose there is: batches."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.fields import Field
from orcaserve.serving.files.multipart import MultipartReader, Part, boundary_of
from orcaserve.serving.files.store import FileStore, Growing, StoredFile, new_file_id
from orcaserve.serving.http import PIECE, Exchange, check_not_compressed
from orcaserve.serving.query import one_page, read_query, whole_number
from orcaserve.serving.route import Handle, Operation, Route

if TYPE_CHECKING:
    from orcaserve.serving.app import App

PURPOSES = ("batch",)
MAX_FILE_BYTES = 200 * 2**20
MAX_FORM_BYTES = MAX_FILE_BYTES + 2**20  # of an upload: the file, and all that a form puts around it
MAX_UPLOADS = 8  # at once
MAX_VALUE = 1024  # bytes of a form's field that is no file
MAX_FILENAME = 255  # characters
UPLOAD_SECONDS = 600.0
WRITTEN_AT_ONCE = 2**20  # bytes that are gathered before a thread writes them
MIN_EXPIRY, MAX_EXPIRY = 3600, 30 * 86400  # seconds
MAX_PAGE = 10_000

FORM: dict[str, Field] = {
    "file": Field({"type": "string", "format": "binary"}, f"The file, of at most {MAX_FILE_BYTES} bytes."),
    "purpose": Field({"type": "string", "enum": list(PURPOSES)}, "What the file is for: batch, the input of a batch."),
    "expires_after[anchor]": Field(
        {"type": "string", "enum": ["created_at"]}, "From when expires_after[seconds] count: the upload."
    ),
    "expires_after[seconds]": Field(
        {"type": "integer", "minimum": MIN_EXPIRY, "maximum": MAX_EXPIRY},
        "When the file is deleted; unless given, never.",
    ),
}
LIST: dict[str, Field] = {
    "purpose": Field({"type": "string"}, "Only such files: batch (uploaded) or batch_output (results of batches)."),
    "limit": Field(
        {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}, f"Most files of the answer; {MAX_PAGE} unless given."
    ),
    "order": Field({"type": "string", "enum": ["asc", "desc"]}, "By time of creation; desc unless given."),
    "after": Field({"type": "string"}, "The id after which the page begins."),
}


async def create(app: App, exchange: Exchange) -> None:
    boundary = boundary_of(exchange.header(b"content-type"))
    check_not_compressed(exchange)
    store = app.require_files()
    if app.n_uploads >= MAX_UPLOADS:
        raise InvalidRequest(None, f"{MAX_UPLOADS} files are being uploaded already", code="overloaded", status=503)
    app.n_uploads += 1
    upload = _Upload(store)
    try:
        reader = MultipartReader(boundary)
        async for data in exchange.read_parts(MAX_FORM_BYTES, UPLOAD_SECONDS):
            for piece in reader.feed(data):
                await upload.take(piece)
        reader.close()
        await upload.end_part()
        exchange.name_ignored([name for name in upload.fields if name not in FORM])
        file = await upload.keep()
    finally:
        app.n_uploads -= 1
        upload.discard()
    await exchange.send_json(200, file.said)


class _Upload:
    """A form as it comes. fields: what is no file."""

    def __init__(self, store: FileStore) -> None:
        self.fields: dict[str, str] = {}
        self._store = store
        self._content: Growing | None = None
        self._filename = ""
        self._part = Part("", None)
        self._value = bytearray()  # of the part, as far as it is not in a file

    async def take(self, piece: Part | bytes) -> None:
        if isinstance(piece, bytes):
            self._value += piece
            if self._is_file:
                if len(self._value) >= WRITTEN_AT_ONCE:
                    await self._write()
            elif len(self._value) > MAX_VALUE:
                raise InvalidRequest(None, f"a field of the form may have {MAX_VALUE} bytes", code="invalid_form")
            return
        await self.end_part()
        self._part = piece
        if piece.name in self.fields or (self._is_file and self._content is not None):
            raise InvalidRequest(None, "the form has the same field twice", code="invalid_form")
        if self._is_file:
            if piece.filename is None:
                raise InvalidRequest("file", "file must be a file, with a filename")
            self._filename = piece.filename
            self._content = self._store.receive()

    async def keep(self) -> StoredFile:
        """Once the form is over. Raises InvalidRequest if something is missing."""
        purpose = self.fields.get("purpose")
        if self._content is None:
            raise InvalidRequest("file", "the form has no file")
        if purpose not in PURPOSES:
            raise InvalidRequest("purpose", f"purpose must be {' or '.join(PURPOSES)}")
        seconds = self._seconds()
        if len(self._filename) > MAX_FILENAME or not self._filename.isprintable():
            raise InvalidRequest("file", f"a filename has at most {MAX_FILENAME} characters, all of them printable")
        return await asyncio.to_thread(self._store.keep, self._content, new_file_id(), self._filename, purpose, seconds)

    def discard(self) -> None:
        if self._content is not None:
            self._content.discard()

    @property
    def _is_file(self) -> bool:
        return self._part.name == "file"

    async def end_part(self) -> None:
        if self._is_file:
            await self._write()
        elif self._part.name:
            try:
                self.fields[self._part.name] = self._value.decode()
            except UnicodeDecodeError as error:
                raise InvalidRequest(None, "a field of the form is not UTF-8 text", code="invalid_form") from error
        self._value.clear()

    async def _write(self) -> None:
        assert self._content is not None
        if self._content.size + len(self._value) > MAX_FILE_BYTES:
            message = f"a file may have {MAX_FILE_BYTES} bytes"
            raise InvalidRequest("file", message, code="file_too_large", status=413)
        data = bytes(self._value)
        self._value.clear()
        await asyncio.to_thread(self._content.append, data)

    def _seconds(self) -> int | None:
        anchor, text = (self.fields.get(f"expires_after[{name}]") for name in ("anchor", "seconds"))
        if anchor is None and text is None:
            return None
        if anchor != "created_at":
            raise InvalidRequest("expires_after", "the anchor of expires_after must be created_at")
        return check_expiry("expires_after", int(text) if text and text.isascii() and text.isdigit() else None)


def check_expiry(field: str, seconds: Any) -> int:
    if type(seconds) is not int or not MIN_EXPIRY <= seconds <= MAX_EXPIRY:
        raise InvalidRequest(field, f"the seconds of {field} must be an integer from {MIN_EXPIRY} to {MAX_EXPIRY}")
    return seconds


async def list_files(app: App, exchange: Exchange) -> None:
    query = read_query(exchange, LIST)
    limit = whole_number(query, "limit", MAX_PAGE, MAX_PAGE)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("order", "order must be asc or desc")
    files = [f for f in app.require_files().all() if f.purpose == query.get("purpose", f.purpose)]
    if order == "desc":
        files.reverse()
    page = one_page(files, lambda file: file.id, lambda file: file.said, query.get("after"), limit)
    await exchange.send_json(200, page)


async def get(app: App, exchange: Exchange) -> None:
    await exchange.send_json(200, app.require_files().get(exchange.params["id"]).said)


async def content(app: App, exchange: Exchange) -> None:
    store = app.require_files()
    file = store.get(exchange.params["id"])
    fd = os.open(store.path(file.id), os.O_RDONLY | os.O_CLOEXEC)  # also if it is deleted meanwhile
    try:
        await exchange.send_pieces(200, _pieces(fd), file.bytes, b"application/octet-stream")
    finally:
        os.close(fd)


async def _pieces(fd: int) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(os.read, fd, PIECE):
        yield piece


async def delete(app: App, exchange: Exchange) -> None:
    file_id = exchange.params["id"]
    app.require_files().delete(file_id)
    await exchange.send_json(200, {"id": file_id, "object": "file", "deleted": True})


_FILE = {"$ref": "#/components/schemas/File"}
_ID = {"id": "The file's id."}


def _route(method: str, path: str, handle: Handle, summary: str, answer: Any, **more: Any) -> Route:
    # 503: the folder of files cannot be used now. 404 also where the server keeps no files at all.
    return Route(method, path, handle, Operation(summary, answer, "Files and batches", errors=(404, 503), **more))


ROUTES = [
    Route(
        "POST",
        "/v1/files",
        create,
        Operation(
            "Upload a file",
            _FILE,
            "Files and batches",
            "A form (multipart/form-data). Files are kept in the server's folder (--files-dir), over restarts too, and "
            "have at most --max-files-bytes together.",
            fields=FORM,
            required=("file", "purpose"),
            form=True,
            errors=(404, 507),
        ),
    ),
    _route("GET", "/v1/files", list_files, "List files", {"$ref": "#/components/schemas/Files"}, query=LIST),
    _route("GET", "/v1/files/{id}/content", content, "A file's content", {"type": "string", "format": "binary"},
           parameters=_ID, content="application/octet-stream"),
    _route("GET", "/v1/files/{id}", get, "What is known of a file", _FILE, parameters=_ID),
    _route("DELETE", "/v1/files/{id}", delete, "Delete a file", {"$ref": "#/components/schemas/Deleted"},
           parameters=_ID),
]  # fmt: skip
