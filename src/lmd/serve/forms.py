"""The body of a request: images and options as multipart/form-data, kept in memory."""

import sys
from dataclasses import dataclass

from fastapi import Request
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from lmd.serve.limits import Limits
from lmd.serve.problems import Problem
from lmd.serve.schemas import Options
from lmd.serve.uploads import check_name

_MOST_OPTIONS = 65_536  # bytes


class _InMemory(MultiPartParser):
    """The parser of Starlette without its temporary files."""

    spool_max_size = sys.maxsize

    def close(self) -> None:
        """Free the memory of all files, also of one whose end did not arrive."""
        for file in self._files_to_close_on_error:
            file.close()


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
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise Problem("wrong-type", f"Send multipart/form-data with a file in the field {field}.")
    parser = _InMemory(
        request.headers,
        request.stream(),
        max_files=most,
        max_fields=1,
        max_part_size=_MOST_OPTIONS,
    )
    try:
        return await _form(await _parsed(parser, most), limits, field)
    finally:
        parser.close()


async def _form(parsed: FormData, limits: Limits, field: str) -> Form:
    uploads, options = [], Options()
    for name, value in parsed.multi_items():
        if name == field and isinstance(value, UploadFile):
            uploads.append(await _upload(value, limits))
        elif name == "options" and isinstance(value, str):
            options = _options(value)
        else:
            raise Problem("bad-request", f"The fields are {field} (a file) and options (JSON).")
    if not uploads:
        raise Problem("bad-request", f"There is no file in the field {field}.")
    return Form(uploads, options)


async def _parsed(parser: MultiPartParser, most: int) -> FormData:
    try:
        return await parser.parse()
    except MultiPartException as error:
        if error.message.startswith("Too many files"):
            raise Problem("too-large", f"A request may have at most {most} files.") from None
        raise Problem("bad-request", "The body is not valid multipart/form-data.") from None
    except ClientDisconnect:
        raise Problem("bad-request", "The connection was closed.") from None
    except (ValueError, KeyError, AssertionError):  # odd headers of parts
        raise Problem("bad-request", "The body is not valid multipart/form-data.") from None


async def _upload(file: UploadFile, limits: Limits) -> Upload:
    declared = (file.content_type or "application/octet-stream").partition(";")[0].strip().lower()
    images = declared.startswith("image/") and "svg" not in declared
    if not images and declared not in ("application/octet-stream", "application/dicom"):
        raise Problem("wrong-type", "The declared type of the file is not that of an image.")
    name = check_name(file.filename or "image")
    if (file.size or 0) > limits.image_bytes:
        raise Problem("too-large", f"A file may have at most {limits.image_mb:g} MB.")
    return Upload(name, await file.read())


def _options(text: str) -> Options:
    try:
        return Options.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"][:1]) or "options"
        raise Problem("bad-options", f"{place}: {first['msg']}") from None
