"""One run of a benchmark in its own process: ``python -m lmd.benchmark.child``, job on stdin.

It ends as soon as its parent does: the next benchmark may write to the same folder.
"""

import json
import os
import shlex
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any


def main() -> int:
    """Start or continue one run.

    Returns 0 if it finished, 1 on an error, ``DIVERGED`` if its loss became infinite or undefined,
    130 if it was stopped.
    """
    job: dict[str, Any] = json.loads(sys.stdin.read())
    signal.signal(signal.SIGTERM, _stop)
    threading.Thread(target=_watch, args=(job["parent"],), daemon=True).start()
    try:
        from lmd.base.errors import DivergedError, LmdError
        from lmd.benchmark.backends import DIVERGED

        try:
            _train(job)
        except LmdError as error:
            print(f"error: {error}", file=sys.stderr)
            return DIVERGED if isinstance(error, DivergedError) else 1
    except KeyboardInterrupt:
        print("stopped; the last finished epoch is saved", file=sys.stderr)
        return 130
    return 0


def _train(job: dict[str, Any]) -> None:
    import cv2
    import torch

    from lmd.fit.train import train

    torch.set_num_threads(job["threads"])
    cv2.setNumThreads(job["threads"] if job["threads"] > 1 else 0)
    out, request = Path(job["out"]), job["request"]
    begun = (out / "record.json").exists()
    train(
        None if begun else request["data"],
        **{key: request[key] for key in ("method", "profile", "columns", "skip_bad")},
        settings=request["protocol"] | {"workers": job["loaders"]} | request["settings"],
        images=request.get("images", True),
        out=out,
        resume=True,
        device=job["device"],
        first_stages=job["first_stages"],
        # The command that repeats this run without the benchmark.
        command=shlex.join([*job["command"], "--out", str(out)]),
    )


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.25)
    os._exit(1)


def _stop(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one must not interrupt the first
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
