"""What hostile uploads cost a real server: an answer each, and little memory."""

from pathlib import Path

import httpx
import pytest
from hostile import uploads
from served import encoded, photo, shipped, started

pytest.importorskip("pydicom")
STATUS = Path("/proc/self/status")
MOST = 64  # MB; one image of 60 000 x 60 000 pixels would need 10 800


def memory(process: int, key: str) -> float:
    """A line of the status of a process, in MB."""
    text = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(text.partition(f"{key}:")[2].split()[0]) / 1024


@pytest.mark.slow
@pytest.mark.skipif(not STATUS.exists(), reason="the system has no /proc")
def test_hostile_uploads_need_little_memory(tmp_path: Path) -> None:
    limits = ["--max-image-mb", "3.2", "--max-request-mb", "6"]
    with (
        started(shipped(tmp_path / "run"), *limits) as (server, address),
        httpx.Client(base_url=address, timeout=60) as web,
    ):

        def send(data: bytes, name: str, kind: str) -> int:
            files = {"image": (name, data, kind)}
            return web.post("/api/models/run/predict", files=files).status_code

        assert send(encoded(photo()), "a.png", "image/png") == 200
        Path(f"/proc/{server.pid}/clear_refs").write_text("5", encoding="utf-8")  # reset the peak
        before = memory(server.pid, "VmRSS")
        found = {name: send(*upload) for name, upload in uploads().items()}
        grown = memory(server.pid, "VmHWM") - before
        assert send(encoded(photo()), "a.png", "image/png") == 200
    assert len(found) >= 40
    assert {name: code for name, code in found.items() if not 400 <= code < 500} == {}
    assert grown < MOST, f"{grown:.0f} MB"
