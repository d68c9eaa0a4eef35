"""The command: it stops cleanly, and says what is wrong before it loads anything."""

import asyncio
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from served import encoded, photo, shipped, started

from lmd.serve.command import _bound


def test_sigterm_finishes_what_was_begun(tmp_path: Path) -> None:
    folder = shipped(tmp_path / "run")
    large = encoded(photo(1, (3000, 3000)))
    before = sorted(path.name for path in folder.iterdir())
    with started(folder) as (process, address):
        found: list[int] = []

        def ask() -> None:
            url = f"{address}api/models/run/predict"
            files = {"image": ("a.png", large)}
            with suppress(httpx.TransportError):  # of one that comes after the signal
                found.append(httpx.post(url, files=files, timeout=60).status_code)

        assert httpx.get(f"{address}health", timeout=60).status_code == 200
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        while httpx.get(f"{address}metrics", timeout=60).text.count("lmd_requests_open 1.0\n"):
            time.sleep(0.01)  # only this one is open
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert process.wait(60) == 0
        assert process.stdout is not None
        assert "Stopped." in process.stdout.read()
    assert 200 in found
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0"], "needs --token"),
        (["--max-files", "0"], "--max-files must be above 0"),
        (["--queue", "2"], "--queue must be at least --max-files"),
    ],
)
def test_mistakes_are_found_before_anything_is_loaded(options: list[str], message: str) -> None:
    from typer.testing import CliRunner

    from lmd.cli.commands import app

    found = CliRunner().invoke(app, ["serve", "nowhere", *options])
    assert message in str(found.exception)


def test_an_unknown_engine_is_refused() -> None:
    from typer.testing import CliRunner

    from lmd.cli.commands import app

    found = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["serve", "x", "--engine", "cuda"])
    assert found.exit_code == 2
    assert "'auto', 'onnx', 'torch'" in " ".join(found.output.split())


def test_answers_do_not_wait_for_acknowledgements() -> None:
    async def accepted() -> int:
        found = asyncio.get_running_loop().create_future()

        def take(_reader: object, writer: asyncio.StreamWriter) -> None:
            own = writer.get_extra_info("socket")
            found.set_result(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listening = _bound("127.0.0.1", 0)
        async with await asyncio.start_server(take, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname())
            result = await found
            writer.close()
        return result

    assert asyncio.run(accepted())


def test_a_port_that_is_taken_is_named() -> None:
    from typer.testing import CliRunner

    from lmd.cli.commands import app

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        found = CliRunner().invoke(app, ["serve", "nowhere", "--port", port])
    assert f"--port {port} cannot be used" in str(found.exception)
