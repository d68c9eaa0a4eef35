"""Weights of encoders, from files and over HTTP."""

import hashlib
import http.server
import pickle
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from lmd.base.errors import LmdError
from lmd.model import backbones
from lmd.model import backbones as weights
from lmd.model.backbones import download


def source() -> dict[str, Tensor]:
    state = backbones.build("resnet8").encoder.state_dict()
    return {k: torch.rand_like(t) if t.is_floating_point() else t for k, t in state.items()}


@pytest.mark.parametrize("prefix", ["", "module.", "encoder.", "module.encoder."])
@pytest.mark.parametrize("kind", ["pth", "wrapped.pt", "safetensors"])
def test_weights_from_a_file(tmp_path: Path, prefix: str, kind: str) -> None:
    state = source()
    file = tmp_path / f"weights.{kind}"
    stored = {prefix + key: tensor for key, tensor in state.items()}
    stored[prefix + "fc.weight"] = torch.zeros(10, 128)
    if kind == "safetensors":
        save_file(stored, file)
    else:
        torch.save({"state_dict": stored} if "wrapped" in kind else stored, file)
    loaded = backbones.build("resnet8", str(file)).encoder.state_dict()
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[key], state[key]) for key in state)


def test_weights_of_old_files_without_batch_counters(tmp_path: Path) -> None:
    state = {k: t for k, t in source().items() if not k.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "old.pth")
    loaded = backbones.build("resnet8", str(tmp_path / "old.pth")).encoder.state_dict()
    assert torch.equal(loaded["conv1.weight"], state["conv1.weight"])


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    state = source()
    del state["layer2.0.bn1.bias"]
    state["layer9.weight"] = torch.zeros(1)
    state["conv1.weight"] = torch.zeros(32, 1, 3, 3)
    torch.save(state, tmp_path / "other.pth")
    with pytest.raises(LmdError) as error:
        backbones.build("resnet8", str(tmp_path / "other.pth"))
    message = str(error.value)
    assert "missing: layer2.0.bn1.bias;" in message
    assert "unexpected: layer9.weight;" in message
    assert "conv1.weight (32, 1, 3, 3) instead of (32, 3, 3, 3)" in message


class Trap:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.touch, (self.target,)


def test_code_in_a_weights_file_does_not_run(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    torch.save({"conv1.weight": Trap(sprung)}, tmp_path / "trap.pth")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Trap(sprung)))
    for name in ("trap.pth", "plain.pt"):
        with pytest.raises(LmdError, match="would run their code"):
            backbones.build("resnet8", str(tmp_path / name))
    assert not sprung.exists()
    pickle.loads((tmp_path / "plain.pt").read_bytes())
    assert sprung.exists(), "the trap itself must work"


def test_weights_that_are_no_weights(tmp_path: Path) -> None:
    (tmp_path / "text.safetensors").write_text("hello")
    torch.save({"epoch": 3}, tmp_path / "number.pth")
    (tmp_path / "weights.h5").write_bytes(b"")
    for name, problem in {
        "absent.pth": "is not a file",
        "text.safetensors": "not a safetensors file",
        "number.pth": "does not hold a state dict",
        "weights.h5": "must end in",
    }.items():
        with pytest.raises(LmdError, match=problem):
            backbones.build("resnet8", str(tmp_path / name))


# Downloads, from a server on this machine.

CONTENT = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    served: int

    def do_GET(self) -> None:
        type(self).served += 1
        if self.path == "/silent.pth":
            return
        if self.path == "/slow.pth":
            time.sleep(0.5)
            return
        if self.path == "/absent.pth":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        whole = self.path == "/weights.pth"
        self.wfile.write(CONTENT if whole else CONTENT[: len(CONTENT) // 2])
        if self.path == "/reset.pth":
            # Closing at once then sends a reset in place of an orderly end.
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    Handler.served = 0
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


def test_download_is_checked_and_kept(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "cache"
    path = download(f"{server}/weights.pth", SHA256[:8], folder)
    assert path == folder / "weights.pth"
    assert path.read_bytes() == CONTENT
    out, err = capsys.readouterr()
    assert out == ""
    assert "downloading" in err
    assert "weights.pth" in err
    assert download(f"{server}/weights.pth", SHA256[:8], folder) == path
    assert Handler.served == 1
    path.write_bytes(CONTENT[:-1])  # damaged on disk: fetched again
    download(f"{server}/weights.pth", SHA256[:8], folder)
    assert Handler.served == 2
    assert path.read_bytes() == CONTENT
    assert list(folder.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "prefix", "problem"),
    [
        ("weights.pth", "00000000", f'not the published file.*"00000000", got "{SHA256}'),
        ("truncated.pth", SHA256[:8], "incomplete or was changed; nothing was kept"),
        ("reset.pth", SHA256[:8], r"reset.pth broke off \(.*reset"),
        ("absent.pth", SHA256[:8], "HTTP 404"),
        ("silent.pth", SHA256[:8], "broke off .*closed connection without response"),
        ("slow.pth", SHA256[:8], "broke off .*timed out"),
    ],
)
def test_failed_downloads_leave_nothing(
    server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    prefix: str,
    problem: str,
) -> None:
    monkeypatch.setattr(weights, "_TIMEOUT", 0.2)
    with pytest.raises(LmdError, match=problem) as error:
        download(f"{server}/{name}", prefix, tmp_path)
    assert "--weights FILE" in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(server: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LmdError, match=r"cannot write to .*file/weights.*set LMD_CACHE"):
        download(f"{server}/weights.pth", SHA256[:8], tmp_path / "file" / "weights")
    assert Handler.served == 0


def test_offline_says_what_to_do(server: str, tmp_path: Path) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as closed:
        port = closed.server_port  # free again, and nobody listens
    with pytest.raises(LmdError, match="cannot reach") as error:
        download(f"http://127.0.0.1:{port}/weights.pth", SHA256[:8], tmp_path)
    for way in ("--weights FILE", "--set weights=none", "--set backbone=efficientnet_lite0"):
        assert way in str(error.value)
    assert list(tmp_path.iterdir()) == []
