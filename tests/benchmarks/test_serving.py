"""The load benchmark counts what a real server answers."""

import asyncio
from pathlib import Path

import pytest
from scripts import script
from served import encoded, photo, shipped, started

serving = script("serving")


@pytest.mark.slow
def test_clients_count_answers_and_refusals(tmp_path: Path) -> None:
    images = [encoded(photo(i), "JPEG") for i in range(3)]
    folder = shipped(tmp_path / "model")
    with started(folder, "--queue", "2", "--max-files", "1") as (server, address):
        alone = asyncio.run(serving.load_test(address, images, 1, 1.5, server.pid))
        crowd = asyncio.run(serving.load_test(address, images, 12, 1.5, server.pid))
        used = serving.cpu_seconds(server.pid)
        bad = asyncio.run(serving.load_test(address, [b"no image"], 1, 0.5, server.pid))
    assert alone.taken
    assert alone.busy == sum(alone.failed.values()) == 0
    assert crowd.taken
    assert crowd.busy > 0
    assert crowd.silent == 0
    assert not crowd.failed
    assert bad.failed.keys() == {"415"}
    assert used > 0
    assert min(alone.memory) > 50
    assert "  1 " in alone.row(1)


@pytest.mark.parametrize(("growth", "met"), [(0.0, True), (10.0, False)])
def test_a_soak_with_growing_memory_is_not_flat(growth: float, met: bool) -> None:
    soak = serving.Load(elapsed=100, memory=[200 + growth * i / 100 * 3 for i in range(100)])
    assert serving.flat(soak).met == met


def test_cores_are_split_between_server_and_clients() -> None:
    server, clients = serving.split(0)
    assert server
    assert clients
    assert not server & clients or len(server | clients) == 1
