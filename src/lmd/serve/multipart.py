"""The parts of a multipart/form-data body (RFC 7578) that is complete in memory.

Parsers of streams call back for every piece of every header, which takes longer than to decode a
small image. Here a body is searched for its boundary, so that most of the time is spent in C.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from python_multipart.multipart import parse_options_header

_MOST_HEAD = 8192  # bytes of the headers of a part
_MOST_BOUNDARY = 70
_END, _LINE = b"--", b"\r\n"


class Malformed(ValueError):
    """The body is no valid multipart/form-data."""


@dataclass(frozen=True)
class Part:
    """One field: ``file`` is the name of an uploaded file, ``kind`` its declared type."""

    name: str
    file: str | None
    kind: str
    content: bytes


def boundary_of(header: str) -> bytes:
    """The boundary that a Content-Type names."""
    found = parse_options_header(header)[1].get(b"boundary", b"")
    if not 0 < len(found) <= _MOST_BOUNDARY:
        raise Malformed
    return found


def parts_of(body: bytes, boundary: bytes) -> Iterator[Part]:
    """All parts, one after the other; ``Malformed`` where the body breaks the rules."""
    mark = _END + boundary
    if not body.startswith(mark):
        raise Malformed
    place = len(mark)
    while not body.startswith(_END, place):
        if not body.startswith(_LINE, place):
            raise Malformed
        head = body.find(2 * _LINE, place, place + _MOST_HEAD)
        if head < 0:
            raise Malformed
        stop = _next(body, _LINE + mark, head + 4)
        yield _part(body[place + 2 : head], body[head + 4 : stop])
        place = stop + 2 + len(mark)


def _next(body: bytes, mark: bytes, start: int) -> int:
    """Where the next delimiter begins; a line that only begins like one is content."""
    while (found := body.find(mark, start)) >= 0:
        after = found + len(mark)
        if body.startswith((_END, _LINE), after):
            return found
        start = found + 1
    raise Malformed


def _part(head: bytes, content: bytes) -> Part:
    headers = {}
    for line in head.split(_LINE):
        key, mark, value = line.partition(b":")
        if not mark:
            raise Malformed
        headers[key.strip().lower()] = value.strip()
    disposition, values = parse_options_header(headers.get(b"content-disposition", b""))
    if disposition != b"form-data" or b"name" not in values:
        raise Malformed
    file = values.get(b"filename")
    return Part(
        name=_text(values[b"name"]),
        file=None if file is None else _text(file),
        kind=_text(headers.get(b"content-type", b"")),
        content=content,
    )


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
