"""Forms: what a client sends is read, and everything else is a problem."""

import asyncio
import json
from contextlib import suppress
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from lmd.serve.limits import Limits
from lmd.serve.schemas import Problem
from lmd.serve.uploads import Form, read_form

NAME = st.text("abcäöü0123病変 ._-", min_size=1, max_size=20).filter(lambda name: name.strip(" ."))
KIND = "multipart/form-data; boundary=b"


def read(kind: str, body: bytes, most: int = 4) -> Form:
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return messages.pop()

    headers = [(b"content-type", kind.encode())]
    request = Request({"type": "http", "method": "POST", "headers": headers}, receive)
    return asyncio.run(read_form(request, Limits(), field="images", most=most))


@settings(max_examples=60, deadline=None)
@given(
    files=st.lists(st.tuples(NAME, st.binary(max_size=200)), min_size=1, max_size=4),
    coverage=st.none() | st.floats(0.1, 0.9),
)
def test_what_a_client_sends_is_what_is_read(
    files: list[tuple[str, bytes]], coverage: float | None
) -> None:
    sent = httpx.Request(
        "POST",
        "http://localhost",
        files=[("images", (name, data, "image/png")) for name, data in files],
        data=None if coverage is None else {"options": json.dumps({"coverage": coverage})},
    )
    form = read(sent.headers["content-type"], sent.read())
    assert [(upload.name, upload.data) for upload in form.images] == files
    assert form.options.coverage == coverage


def part(content: bytes = b"x", head: bytes = b'name="images"; filename="a"') -> bytes:
    start = b"--b\r\nContent-Disposition: form-data; " + head
    return start + b"\r\n\r\n" + content + b"\r\n"


def options(text: bytes) -> bytes:
    return part(text, b'name="options"')


def test_a_line_that_begins_like_the_boundary_is_content() -> None:
    content = b"1\r\n--c\r\n--x \r\n-"
    (upload,) = read(KIND, part(content) + b"--b--\r\n").images
    assert upload.data == content


def test_a_large_file_stays_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a file was written")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    data = bytes(5_000_000)
    assert read(KIND, part(data) + b"--b--\r\n").images[0].data == data


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b",
        b"--b\r\n",
        part()[:-3],
        part(),
        part() + options(b"{}")[:-3],
        part(head=b"") + b"--b--",
        part(head=b'name="images"\r\nX: ' + b"y" * 90_000) + b"--b--",
        part(head=b'name="images"') + b"--b--",
        part(head=b'name="options"; filename="a"') + b"--b--",
        part() + part(head=b'name="other"') + b"--b--",
        part() + options(b"{}") + options(b"{}") + b"--b--",
        part() + options(b" " * 70_000 + b"{}") + b"--b--",
        options(b"{}") + b"--b--",
    ],
    ids=range(14),
)
def test_a_broken_form_is_refused(body: bytes) -> None:
    with pytest.raises(Problem) as found:
        read(KIND, body)
    assert found.value.details.status == 400


def test_too_many_files_are_refused() -> None:
    with pytest.raises(Problem) as found:
        read(KIND, 3 * part() + b"--b--", most=2)
    assert found.value.details.status == 413


@pytest.mark.parametrize("kind", ["multipart/form-data", "application/json", ""])
def test_another_type_is_refused(kind: str) -> None:
    with pytest.raises(Problem) as found:
        read(kind, part() + b"--b--")
    assert found.value.details.status in (400, 415)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_noise_never_fails_otherwise(noise: bytes) -> None:
    for body in (noise, part(noise), part() + noise, b"--b\r\n" + noise):
        with suppress(Problem):
            assert read(KIND, body).images
