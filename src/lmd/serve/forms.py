"""The body of a request: images and options as multipart/form-data, kept in memory."""

from dataclasses import dataclass

from fastapi import Request
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from lmd.serve.limits import Limits
from lmd.serve.multipart import Malformed, Part, boundary_of, parts_of
from lmd.serve.problems import Problem
from lmd.serve.schemas import Options
from lmd.serve.uploads import check_name

_MOST_OPTIONS = 65_536  # bytes


@dataclass(frozen=True)
class Upload:
    """One file: its name, checked, and its contents."""

    name: str
    data: bytes


@dataclass(frozen=True)
class Form:
    """What a request sent."""

    images: list[Upload]
    options: Options


async def read_form(request: Request, limits: Limits, *, field: str, most: int) -> Form:
    """Between one and ``most`` files in ``field``, and JSON in the field ``options``."""
    header = request.headers.get("content-type", "")
    if header.partition(";")[0].strip().lower() != "multipart/form-data":
        raise Problem("wrong-type", f"Send multipart/form-data with a file in the field {field}.")
    try:
        boundary = boundary_of(header)
        return _form(await _body(request), boundary, limits, field, most)
    except Malformed:
        raise Problem("bad-request", "The body is not valid multipart/form-data.") from None


async def _body(request: Request) -> bytes:
    """All of it; the guard has bounded its length."""
    try:
        return b"".join([chunk async for chunk in request.stream()])
    except ClientDisconnect:
        raise Problem("bad-request", "The connection was closed.") from None


def _form(body: bytes, boundary: bytes, limits: Limits, field: str, most: int) -> Form:
    uploads: list[Upload] = []
    options: Options | None = None
    for part in parts_of(body, boundary):
        if part.name == field and part.file is not None:
            if len(uploads) == most:
                raise Problem("too-large", f"A request may have at most {most} files.")
            uploads.append(_upload(part, limits))
        elif part.name == "options" and part.file is None and options is None:
            options = _options(part.content)
        else:
            raise Problem("bad-request", f"The fields are {field} (a file) and options (JSON).")
    if not uploads:
        raise Problem("bad-request", f"There is no file in the field {field}.")
    return Form(uploads, options or Options())


def _upload(part: Part, limits: Limits) -> Upload:
    declared = (part.kind or "application/octet-stream").partition(";")[0].strip().lower()
    images = declared.startswith("image/") and "svg" not in declared
    if not images and declared not in ("application/octet-stream", "application/dicom"):
        raise Problem("wrong-type", "The declared type of the file is not that of an image.")
    name = check_name(part.file or "image")
    if len(part.content) > limits.image_bytes:
        raise Problem("too-large", f"A file may have at most {limits.image_mb:g} MB.")
    return Upload(name, part.content)


def _options(text: bytes) -> Options:
    if len(text) > _MOST_OPTIONS:
        raise Problem("bad-request", f"The options may have at most {_MOST_OPTIONS} bytes.")
    try:
        return Options.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"][:1]) or "options"
        raise Problem("bad-options", f"{place}: {first['msg']}") from None
