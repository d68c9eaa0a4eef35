"""Chromium without a window, driven over a pipe (the DevTools protocol needs no package for it)."""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = Path("/usr/bin/chromium")
AXE = "4.14.0"  # the version of axe-core


class Browser:
    """One page; ``errors`` has what its console complained about."""

    def __init__(self, out: int, into: int) -> None:
        self._out, self._into = out, into
        self._rest, self._number, self._session = b"", 0, None
        self.errors: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "DOM"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **values: Any) -> dict[str, Any]:
        """The result of one command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": values}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self._message()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]

    def size(self, wide: int, high: int, scheme: str = "light") -> None:
        """The size of the window, and whether it is light or dark."""
        phone = wide < 500
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=wide,
            height=high,
            deviceScaleFactor=1,
            mobile=phone,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def value(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script: str, seconds: float = 60) -> None:
        """Wait for a condition in the page."""
        end = time.monotonic() + seconds
        while not self.value(script):
            assert time.monotonic() < end, f"{script}: {self.value('document.body.innerText')}"
            time.sleep(0.1)

    def choose(self, selector: str, *paths: Path) -> None:
        """Files for a file input."""
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])

    def press(self, key: str) -> None:
        """Press a key."""
        codes = {"Tab": 9, " ": 32, "Enter": 13, "ArrowDown": 40}
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes[key]
            )

    def picture(self, path: Path) -> None:
        """The whole page as a PNG file."""
        found = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def drop(self, x: float, y: float, *paths: Path) -> None:
        """Drag files from outside and drop them at a place of the window."""
        data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.send("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def downloads(self, folder: Path) -> None:
        """Save what the page offers in a folder."""
        self.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    def serious(self) -> list[str]:
        """What axe-core finds serious or critical in the page as it is now."""
        self.value(f"{axe_script()}; 0")
        self.value(
            "window.found = null; axe.run(document, {resultTypes: ['violations']})"
            ".then((all) => { window.found = all.violations; }); 0"
        )
        self.until("window.found !== null", seconds=300)
        found = self.value(
            "window.found.filter((v) => ['serious', 'critical'].includes(v.impact))"
            ".map((v) => v.id + ': ' + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 200)))"
        )
        return [str(each) for each in found]

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._into, 1 << 16)
            assert data, "the browser has ended"
            self._rest += data
        first, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(first)
        if found.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(found["params"]["exceptionDetails"]))
        if found.get("method") == "Log.entryAdded":
            self.errors.append(found["params"]["entry"]["text"])
        return found


@contextmanager
def opened(folder: Path) -> Iterator[Browser]:
    """A browser with a new profile in ``folder``."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
    flags += ["--remote-debugging-pipe", f"--user-data-dir={folder}", "--disable-dev-shm-usage"]

    def place() -> None:  # the browser reads 3 and writes 4
        spare = [os.dup(each) for each in (theirs_in, theirs_out)]
        for number, each in zip((3, 4), spare, strict=True):
            os.dup2(each, number)

    process = subprocess.Popen(
        [str(CHROMIUM), *flags],
        preexec_fn=place,  # noqa: PLW1509  (it only copies two numbers)
        close_fds=False,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(ours_out, ours_in)
    finally:
        process.kill()
        process.wait()
        os.close(ours_out)
        os.close(ours_in)


def axe_script() -> str:
    """The script of axe-core, which npm fetches once into the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / f"lmd-tests-axe-{AXE}"
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        if shutil.which("npm") is None:
            pytest.skip("npm is absent, so axe-core cannot be fetched")
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
        command += ["--prefix", str(folder), f"axe-core@{AXE}"]
        if subprocess.run(command, capture_output=True, check=False, timeout=300).returncode:
            pytest.skip("npm could not fetch axe-core")
    return script.read_text(encoding="utf-8")
