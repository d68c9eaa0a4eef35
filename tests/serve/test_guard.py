"""Token, host, origin, size, room and time."""

import asyncio
import base64
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import client, encoded, is_problem, make_service, photo, shipped

from lmd.base.errors import LmdError
from lmd.serve.app import Guard
from lmd.serve.command import check_access
from lmd.serve.limits import Limits
from lmd.serve.models import Measures

TOKEN = "a-token-of-some-length"
ROUTES = ["/", "/docs", "/openapi.json", "/health", "/version", "/metrics", "/api/models", "/no"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shipped(tmp_path_factory.mktemp("served") / "run")


def basic(secret: str) -> str:
    return "Basic " + base64.b64encode(f"me:{secret}".encode()).decode()


def test_every_route_needs_the_token(folder: Path) -> None:
    files = {"image": ("a.png", encoded(photo()))}
    path = "/api/models/run/predict"
    with client(make_service(folder), TOKEN) as web:
        for given in (
            None,
            "",
            f"Bearer {TOKEN}x",
            f"Bearer {TOKEN[:-1]}",
            TOKEN,
            basic("x"),
            "Basic !",
        ):
            headers = {} if given is None else {"Authorization": given}
            answers = [web.get(route, headers=headers) for route in ROUTES]
            answers.append(web.post(path, files=files, headers=headers))
            assert {found.status_code for found in answers} == {401}
            assert all(is_problem(found) for found in answers)
            assert "www-authenticate" in answers[0].headers
        for given in (f"Bearer {TOKEN}", basic(TOKEN)):
            headers = {"Authorization": given, "Host": "other.example"}
            assert web.get("/health", headers=headers).status_code == 200
            assert web.post(path, files=files, headers=headers).status_code == 200


def test_without_a_token_only_this_machine_is_answered(folder: Path) -> None:
    with client(make_service(folder)) as web:
        for host in ("localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "127.9.9.9"):
            assert web.get("/health", headers={"Host": host}).status_code == 200, host
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", ""):
            assert is_problem(web.get("/health", headers={"Host": host})), host


def test_other_web_sites_cannot_post(folder: Path) -> None:
    files = {"image": ("a.png", encoded(photo()))}
    with client(make_service(folder)) as web:
        for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200)):
            headers = {"Sec-Fetch-Site": site}
            found = web.post("/api/models/run/predict", files=files, headers=headers)
            assert found.status_code == status


def test_large_requests_and_too_many_files(folder: Path) -> None:
    good = encoded(photo())
    with client(make_service(folder, max_files=3, max_image_mb=0.05, max_request_mb=0.1)) as web:
        many = [("images", (f"{i}.png", good)) for i in range(4)]
        assert web.post("/api/models/run/batch", files=many).status_code == 413
        assert web.post("/api/models/run/batch", files=many[:3]).status_code == 200
        large = {"image": ("a.png", bytes(200_000))}
        assert web.post("/api/models/run/predict", files=large).status_code == 413

        async def stream() -> Any:  # without a length
            for _ in range(30):
                yield bytes(10_000)

        kind = {"Content-Type": "multipart/form-data; boundary=x"}
        found = web.post("/api/models/run/predict", content=stream(), headers=kind)
        assert found.status_code in (400, 413)
        assert is_problem(found)


def test_a_full_queue_says_when_to_try_again(folder: Path) -> None:
    service = make_service(folder, queue=2, max_files=2)
    form = {"files": {"image": ("a.png", encoded(photo()))}}
    with client(service) as web, service.models["run"].batcher.places(2):
        found = web.post("/api/models/run/predict", **form)
        assert found.status_code == 503
        assert is_problem(found)
        assert int(found.headers["retry-after"]) >= 1


def run_guard(app: Any, messages: list[Any], **limits: Any) -> list[Any]:
    """What is sent for one POST whose body arrives as ``messages``; then nothing more comes."""
    sent = []

    async def receive() -> Any:
        if messages:
            return messages.pop(0)
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "headers": [(b"host", b"localhost")]}
    asyncio.run(Guard(app, Limits(**limits), Measures())(scope, receive, send))
    return sent


def test_time_is_limited() -> None:
    async def slow_answer(_scope: Any, receive: Any, _send: Any) -> None:
        await receive()
        await asyncio.sleep(60)

    async def whole_body(_scope: Any, receive: Any, _send: Any) -> None:
        while (await receive())["more_body"]:
            pass

    start = time.monotonic()
    body = {"type": "http.request", "body": b"a", "more_body": False}
    assert run_guard(slow_answer, [body], max_seconds=0.05)[0]["status"] == 503
    more = {**body, "more_body": True}
    assert run_guard(whole_body, [more], max_seconds=0.05)[0]["status"] == 408
    assert time.monotonic() - start < 10


def test_a_failure_shows_and_logs_nothing_of_the_upload(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_scope: Any, _receive: Any, _send: Any) -> None:
        raise RuntimeError("Patient: Jane Doe")

    start, body = run_guard(broken, [])
    assert start["status"] == 500
    assert b"Jane" not in body["body"]
    assert "RuntimeError" in caplog.text
    assert "Jane" not in caplog.text.replace('raise RuntimeError("Patient: Jane Doe")', "")


@pytest.mark.parametrize(
    ("host", "token", "message"),
    [("0.0.0.0", None, "needs --token"), ("::", None, "needs --token"), ("127.0.0.1", "a", "16")],
)
def test_an_open_server_needs_a_long_token(host: str, token: str | None, message: str) -> None:
    with pytest.raises(LmdError, match=message):
        check_access(host, token)
    check_access("0.0.0.0", TOKEN)
    check_access("::1", None)


def test_requests_that_were_given_up_are_not_computed(folder: Path) -> None:
    service = make_service(folder)
    served, held = service.models["run"], threading.Event()
    batcher = served.batcher
    batcher.submit(lambda: held.wait(10))  # the model is busy

    async def impatient() -> None:
        pixels = np.zeros((32, 32, 3), np.uint8)
        asked = [service._scores(served, lambda: pixels) for _ in range(20)]
        for task in [asyncio.create_task(one) for one in asked]:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(task, 0.02)

    asyncio.run(impatient())
    computed: list[int] = []
    batcher._observe = lambda images, _: computed.append(images)
    held.set()
    service.close()
    assert computed == []
