"""Forms, cut anywhere, are read as they were written; what is no form is refused, in bounded memory."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcaserve.core.errors import InvalidRequest
from orcaserve.serving.files.multipart import MAX_PART_HEADER, MultipartReader, Part, boundary_of


def read(boundary: bytes, *pieces: bytes) -> list[tuple[Part, bytes]]:
    reader = MultipartReader(boundary)
    parts: list[tuple[Part, bytes]] = []
    for piece in pieces:
        for said in reader.feed(piece):
            if isinstance(said, Part):
                parts.append((said, b""))
            else:
                parts[-1] = (parts[-1][0], parts[-1][1] + said)
    reader.close()
    return parts


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = sorted({place % (len(data) + 1) for place in places})
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]


# Content that looks like delimiters, in whole and in part
contents = st.lists(
    st.sampled_from(
        [b"\r\n--xyz", b"--xyz", b"\r\n", b"\r", b"\n", b"--", b"-", b"a", b"\x00\xff", b"\r\n--xy", b"xyz"]
    ),
    max_size=12,
).map(b"".join)


@given(content=contents, value=st.text(max_size=20), places=st.lists(st.integers(0, 10_000), max_size=20))
def test_cut_anywhere(content: bytes, value: str, places: list[int]) -> None:
    boundary = b"xyzw"  # some content holds the beginning of it
    head = b'--xyzw\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n' + value.encode()
    file = b'\r\n--xyzw\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\nContent-Type: x/y\r\n\r\n'
    body = head + file + content + b"\r\n--xyzw--\r\n"
    assert read(boundary, *cut(body, places)) == [
        (Part("purpose", None), value.encode()),
        (Part("file", "a.jsonl"), content),
    ]


@given(
    name=st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x00"), min_size=1, max_size=20),
    data=st.binary(max_size=300),
)
def test_as_a_real_client_writes_it(name: str, data: bytes) -> None:
    request = httpx.Request("POST", "http://x/", data={"purpose": "batch"}, files={"file": (name, data, "text/plain")})
    parts = read(boundary_of(request.headers["content-type"]), request.read())
    assert [part.name for part, _ in parts] == ["purpose", "file"] and parts[1][1] == data
    assert parts[0] == (Part("purpose", None), b"batch") and parts[1][0].filename is not None


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_anything_is_read_or_refused(data: bytes, places: list[int]) -> None:
    for body in (data, b"--b\r\n" + data, b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + data):
        try:
            read(b"b", *cut(body, places))
        except InvalidRequest as error:
            assert error.status == 400


GOOD = b'Content-Disposition: form-data; name="a"'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b",
        b"--b\r\n",
        b"--b\r\n" + GOOD + b"\r\n\r\nvalue",
        b"--b\r\n" + GOOD + b"\r\n\r\nvalue\r\n--b",
        b"--b\r\n\r\nvalue\r\n--b--",
        b"--b\r\nContent-Type: text/plain\r\n\r\nvalue\r\n--b--",
        b'--b\r\nContent-Disposition: attachment; name="a"\r\n\r\nvalue\r\n--b--',
        b"--b\r\nContent-Disposition: form-data\r\n\r\nvalue\r\n--b--",
        b"--b\r\nno header\r\n\r\nvalue\r\n--b--",
        b"--b\r\n" + GOOD + b"\r\nContent-Transfer-Encoding: base64\r\n\r\nvalue\r\n--b--",
        b"--b\r\n\xff\xfe: x\r\n\r\nvalue\r\n--b--",
        b"--bcd\r\n" + GOOD + b"\r\n\r\nvalue\r\n--bcd--",
        b"no form at all",
        (b"--b\r\n" + GOOD + b"\r\n\r\n\r\n") * 17 + b"--b--",
    ],
)
def test_no_forms(body: bytes) -> None:
    for pieces in ([body], [bytes([byte]) for byte in body]):
        with pytest.raises(InvalidRequest) as refused:
            read(b"b", *pieces)
        assert refused.value.code == "invalid_form" and refused.value.status == 400


@pytest.mark.parametrize("start", [b"x", b"--b   ", b"--b\r\n" + GOOD + b"\r\nX: ", b"--b\r\n"])
def test_what_goes_on_and_on_is_refused(start: bytes) -> None:
    reader = MultipartReader(b"b")
    with pytest.raises(InvalidRequest):
        for data in [start, *[b"a" if start != b"--b   " else b" "] * (MAX_PART_HEADER + 200)]:
            list(reader.feed(data))


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        (None, 415), ("application/json", 415), ("multipart/form-data", 415), ("multipart/mixed; boundary=b", 415),
        ("multipart/form-data; boundary=", 400), ("multipart/form-data; boundary=ü", 400),
        (f"multipart/form-data; boundary={'b' * 71}", 400),
    ],
)  # fmt: skip
def test_content_types(content_type: str | None, status: int) -> None:
    with pytest.raises(InvalidRequest) as refused:
        boundary_of(content_type)
    assert refused.value.status == status


def test_boundaries_that_are_taken() -> None:
    assert boundary_of('Multipart/Form-Data; charset=utf-8; boundary="a b:c"') == b"a b:c"
