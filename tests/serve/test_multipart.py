"""Forms as clients send them are read as they were meant; broken ones are refused."""

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmd.serve.multipart import Malformed, Part, boundary_of, parts_of

NAME = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=20)


def read(header: str, body: bytes) -> list[Part]:
    return list(parts_of(body, boundary_of(header)))


@settings(max_examples=60, deadline=None)
@given(
    files=st.lists(st.tuples(NAME, st.binary(max_size=200)), min_size=1, max_size=4),
    options=st.none() | st.text(max_size=30),
)
def test_what_a_client_sends_is_what_is_read(
    files: list[tuple[str, bytes]], options: str | None
) -> None:
    sent = httpx.Request(
        "POST",
        "http://localhost",
        files=[("images", (name, data, "image/png")) for name, data in files],
        data=None if options is None else {"options": options},
    )
    found = read(sent.headers["content-type"], sent.read())
    texts = [part for part in found if part.file is None]
    assert [part.content.decode() for part in texts] == ([] if options is None else [options])
    uploads = [part for part in found if part.file is not None]
    assert [part.content for part in uploads] == [data for _, data in files]
    assert {part.kind for part in uploads} == {"image/png"}
    plain = [name for name, _ in files if name.isalnum() and name.isascii()]
    assert [part.file for part in uploads if part.file in plain] == plain


def part(content: bytes = b"x", head: bytes = b'Content-Disposition: form-data; name="a"') -> bytes:
    return b"--b\r\n" + head + b"\r\n\r\n" + content + b"\r\n"


def test_a_line_that_begins_like_the_boundary_is_content() -> None:
    content = b"1\r\n--bc\r\n--b \r\n--"
    (found,) = read("multipart/form-data; boundary=b", part(content) + b"--b--\r\n")
    assert found.content == content
    assert found.name == "a"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b",
        b"--b\r\n",
        b"\r\n" + part() + b"--b--",
        part(),  # no end
        part()[:-3],
        part() + b"--b\r\n--b--",
        part(head=b"Content-Disposition: form-data") + b"--b--",
        part(head=b'Content-Disposition: attachment; name="a"') + b"--b--",
        part(head=b"no colon") + b"--b--",
        part(head=b"X: " + b"y" * 9000) + b"--b--",
    ],
)
def test_a_broken_body_is_refused(body: bytes) -> None:
    with pytest.raises(Malformed):
        read("multipart/form-data; boundary=b", body)


@pytest.mark.parametrize("value", ["", "; boundary=", f"; boundary={'x' * 71}"])
def test_a_boundary_is_needed(value: str) -> None:
    with pytest.raises(Malformed):
        boundary_of("multipart/form-data" + value)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_noise_never_fails_otherwise(noise: bytes) -> None:
    for body in (noise, part(noise), part() + noise, b"--b\r\n" + noise):
        try:
            found = read("multipart/form-data; boundary=b", body)
        except Malformed:
            continue
        assert all(isinstance(each, Part) for each in found)
