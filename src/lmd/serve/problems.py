"""Errors of the API as problem details (RFC 9457)."""

import json
from dataclasses import dataclass
from http import HTTPStatus

MEDIA_TYPE = "application/problem+json"
TYPES = "/docs#"  # the page of the API explains every kind


@dataclass(frozen=True)
class Kind:
    """A kind of problem: its status and its title."""

    status: int
    title: str


KINDS = {
    "bad-request": Kind(400, "The request cannot be understood"),
    "bad-name": Kind(400, "The file name is not allowed"),
    "no-token": Kind(401, "A token is needed"),
    "other-site": Kind(403, "Requests from other web sites are refused"),
    "not-found": Kind(404, "There is no such address or model"),
    "wrong-method": Kind(405, "The address does not have this method"),
    "slow-upload": Kind(408, "The request took too long to arrive"),
    "no-heat-maps": Kind(409, "This model has no heat maps"),
    "too-large": Kind(413, "The upload is too large"),
    "wrong-type": Kind(415, "The upload is not of an allowed type"),
    "wrong-host": Kind(421, "The server does not answer for this host name"),
    "bad-image": Kind(422, "The image cannot be read"),
    "too-many-pixels": Kind(422, "The image is too large when it is decoded"),
    "too-many-frames": Kind(422, "The image has too many frames"),
    "bad-options": Kind(422, "The options are not valid"),
    "failed": Kind(500, "The server failed"),
    "busy": Kind(503, "The server is busy"),
}


class Problem(Exception):
    """A request that cannot be answered; ``detail`` says what to do and shows nothing secret."""

    def __init__(self, kind: str, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.headers = kind, detail, headers or {}
        self.status, self.title = KINDS[kind].status, KINDS[kind].title

    def as_dict(self) -> dict[str, str | int]:
        """The members of RFC 9457."""
        return {
            "type": TYPES + self.kind,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
        }

    def body(self) -> bytes:
        """As JSON."""
        return json.dumps(self.as_dict()).encode()


def busy(why: str, seconds: int = 1) -> Problem:
    """The server has no room at the moment; ``seconds`` says when to try again."""
    return Problem("busy", f"{why}: try again in {seconds} s.", {"Retry-After": str(seconds)})


def of_status(status: int, detail: str) -> Problem:
    """The problem for a status that the framework chose."""
    for name, kind in KINDS.items():
        if kind.status == status:
            return Problem(name, detail)
    found = Problem("bad-request" if status < 500 else "failed", detail)
    found.status, found.title = status, HTTPStatus(status).phrase
    return found
