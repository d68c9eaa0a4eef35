"""Errors of the API as problem details (RFC 9457)."""

from http import HTTPStatus

from starlette.responses import JSONResponse

MEDIA_TYPE = "application/problem+json"
# The status and title of each kind; the page of the API lists them.
KINDS = {
    "bad-request": (400, "The request cannot be understood"),
    "bad-name": (400, "The file name is not allowed"),
    "no-token": (401, "A token is needed"),
    "other-site": (403, "Requests from other web sites are refused"),
    "not-found": (404, "There is no such address or model"),
    "wrong-method": (405, "The address does not have this method"),
    "slow-upload": (408, "The request took too long to arrive"),
    "no-heat-maps": (409, "This model has no heat maps"),
    "too-large": (413, "The upload is too large"),
    "wrong-type": (415, "The upload is not of an allowed type"),
    "wrong-host": (421, "The server does not answer for this host name"),
    "bad-image": (422, "The image cannot be read"),
    "too-many-pixels": (422, "The image is too large when it is decoded"),
    "too-many-frames": (422, "The image has too many frames"),
    "bad-options": (422, "The options are not valid"),
    "failed": (500, "The server failed"),
    "busy": (503, "The server is busy"),
}


class Problem(Exception):
    """A request that cannot be answered; ``detail`` says what to do and shows nothing secret."""

    def __init__(self, kind: str, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.headers = kind, detail, headers or {}
        self.status, self.title = KINDS[kind]

    def details(self) -> dict[str, str | int]:
        """Return the members that RFC 9457 names."""
        return {
            "type": f"/docs#{self.kind}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
        }

    def response(self) -> JSONResponse:
        """Return the answer to the request."""
        return JSONResponse(self.details(), self.status, self.headers, MEDIA_TYPE)


def busy(why: str, seconds: int = 1) -> Problem:
    """Return the problem of a server without room; ``seconds`` says when to try again."""
    return Problem("busy", f"{why}: try again in {seconds} s.", {"Retry-After": str(seconds)})


def of_status(status: int, detail: str) -> Problem:
    """Return the problem for a status that the framework chose."""
    for kind, (own, _) in KINDS.items():
        if own == status:
            return Problem(kind, detail)
    problem = Problem("bad-request" if status < 500 else "failed", detail)
    problem.status, problem.title = status, HTTPStatus(status).phrase
    return problem
