"""Runs as processes on this machine, which share its cores or GPUs."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmd.base.errors import LmdError
from lmd.benchmark.plan import PlannedRun

DIVERGED = 3  # exit code of a run whose loss became infinite or undefined
STARTED = "=== started"  # the first words in the log of each start of a run
POLITE = 15.0  # seconds between asking a run to end and killing it


class Backend(ABC):
    """Starts runs in a folder, reports how they ended, and stops them.

    With ``share``, a first stage that several runs have in common is trained once: the others wait
    for the run that trains it.
    """

    def __init__(self, folder: Path, *, share: bool = True) -> None:
        self.folder, self.share = folder, share

    @abstractmethod
    def slots(self) -> int:
        """Return how many runs may be under way at once."""

    @abstractmethod
    def start(self, run: PlannedRun) -> None:
        """Start or continue a run."""

    @abstractmethod
    def ended(self) -> dict[str, int]:
        """Return exit codes of the runs that ended since the last call; negative for a signal."""

    @abstractmethod
    def stop(self) -> None:
        """Stop all runs and wait until they have ended."""

    def job(
        self, run: PlannedRun, threads: int, device: str, loaders: int | None
    ) -> dict[str, Any]:
        """Return what a child process reads, which can be sent to another machine."""
        return {
            "request": run.request,
            "command": run.command,
            "out": str(self.folder / run.name),
            "log": str(log_path(self.folder, run.name)),
            "threads": threads,
            "device": device,
            "loaders": loaders,
            "first_stages": str(first_stages(self.folder)) if self.share else None,
        }


class Local(Backend):
    """``workers`` processes at once; by default one for each GPU, or else for each core.

    The processes hold the lock of the file descriptors in ``keep``.
    """

    def __init__(
        self,
        folder: Path,
        workers: int | None = None,
        *,
        keep: tuple[int, ...] = (),
        share: bool = True,
    ) -> None:
        import torch

        super().__init__(folder, share=share)
        self.keep = keep
        affinity = getattr(os, "sched_getaffinity", None)
        cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        self.workers = (gpus or cores) if workers is None else workers
        if self.workers < 1:
            raise LmdError(f"--workers must be at least 1; it is {self.workers}")
        self.threads = max(1, cores // self.workers)
        self.devices = [f"cuda:{i % gpus}" if gpus else "cpu" for i in range(self.workers)]
        # Loader processes pay off beside a GPU; on a CPU the runs already use every core.
        self.loaders = self.threads if gpus else 0
        self._running: dict[str, tuple[subprocess.Popen[bytes], int]] = {}

    def slots(self) -> int:
        """Return the number of workers."""
        return self.workers

    def start(self, run: PlannedRun) -> None:
        """Start a process on the first free device."""
        taken = {slot for _, slot in self._running.values()}
        slot = next(i for i in range(self.workers) if i not in taken)
        job = self.job(run, self.threads, self.devices[slot], self.loaders)
        self._running[run.name] = spawn(job, self.keep), slot

    def ended(self) -> dict[str, int]:
        """Return exit codes since the last call."""
        codes = {name: process.poll() for name, (process, _) in self._running.items()}
        done = {name: code for name, code in codes.items() if code is not None}
        for name in done:
            del self._running[name]
        return done

    def stop(self) -> None:
        """Ask all processes to end, and then kill them."""
        end([process for process, _ in self._running.values()])
        self._running.clear()


def log_path(folder: Path, name: str) -> Path:
    """Return the log of a run, outside its folder, which does not exist before training starts."""
    return folder / "logs" / f"{name}.txt"


def first_stages(folder: Path) -> Path:
    """Return where a benchmark keeps the first stages that several of its runs share."""
    return folder / "first-stages"


def environment(threads: int) -> dict[str, str]:
    """Return this process's environment, with all numerical libraries limited to some threads."""
    names = [f"{key}_NUM_THREADS" for key in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")]
    return {**os.environ, **dict.fromkeys([*names, "OPENCV_FOR_THREADS_NUM"], str(threads))}


def spawn(job: Mapping[str, Any], keep: tuple[int, ...] = ()) -> "subprocess.Popen[bytes]":
    """Start the process of one run, which appends its output to the log.

    The process inherits the file descriptors in ``keep`` (the lock).
    """
    log = Path(job["log"])
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        file.write(f"{STARTED} {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
        file.flush()
        process = subprocess.Popen(
            [sys.executable, "-m", "lmd.benchmark.child"],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(job["threads"]),
            pass_fds=keep,
            start_new_session=True,  # Ctrl-C reaches only the parent, which ends its runs in order
        )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(json.dumps({**job, "parent": os.getpid()}).encode())
    return process


def end(processes: list["subprocess.Popen[bytes]"]) -> None:
    """Ask processes to end, and kill those that are still running after ``POLITE`` seconds."""
    for process in processes:
        process.terminate()
    limit = time.monotonic() + POLITE
    for process in processes:
        try:
            process.wait(max(0.0, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
