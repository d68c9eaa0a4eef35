"""Runs as processes of this machine, its cores or its GPUs divided among them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from lmd.base.errors import LmdError
from lmd.benchmark.plan import PlannedRun

POLITE = 15.0  # seconds that a run has to end when it is asked to


class Backend(Protocol):
    """Where runs are done: started by name, asked how they ended, stopped all at once."""

    def slots(self) -> int:
        """How many runs may be under way at once."""

    def start(self, run: PlannedRun, *, shared: bool = False) -> None:
        """Begin a run, or go on with it; ``shared``: others have the same first stage."""

    def ended(self) -> dict[str, int]:
        """Exit codes of the runs that ended since the last call."""

    def stop(self) -> None:
        """End every run that is under way and wait until it has ended."""


def environment(threads: int) -> dict[str, str]:
    """This process's environment with every library of numbers held to ``threads`` threads."""
    keys = ("OMP", "MKL", "OPENBLAS", "NUMEXPR")
    limits = {f"{key}_NUM_THREADS": str(threads) for key in keys}
    return dict(os.environ) | limits | {"OPENCV_FOR_THREADS_NUM": str(threads)}


def job(
    run: PlannedRun, folder: Path, *, threads: int, device: str, loaders: int | None, shared: bool
) -> dict[str, Any]:
    """What a child reads: plain values, so that it can travel to another machine."""
    return {
        "request": run.request,
        "command": run.command,
        "out": str(folder / run.name),
        "threads": threads,
        "device": device,
        "loaders": loaders,
        "first_stages": str(first_stages(folder)) if shared else None,
    }


def spawn(
    work: Mapping[str, Any], log: Path, keep: tuple[int, ...] = ()
) -> "subprocess.Popen[bytes]":
    """Start the process of one run; what it says is added to ``log``.

    ``keep`` are open files that live as long as it does: the lock.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "lmd.benchmark.child"],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(work["threads"]),
            pass_fds=keep,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which ends them in order
        )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(json.dumps(work).encode())
    return process


def end(processes: list["subprocess.Popen[bytes]"]) -> None:
    """Ask processes to end, and kill what is still there after a while."""
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


class Local:
    """``workers`` processes at once: one for each core or each GPU unless told otherwise."""

    def __init__(
        self, folder: Path, workers: int | None = None, keep: tuple[int, ...] = ()
    ) -> None:
        self.folder, self.keep = folder, keep
        cores, gpus = available_cores(), available_gpus()
        self.workers = (gpus or cores) if workers is None else workers
        if self.workers < 1:
            raise LmdError(f"--workers must be at least 1; it is {self.workers}")
        self.threads = max(1, cores // self.workers)
        self.devices = [f"cuda:{i % gpus}" if gpus else "cpu" for i in range(self.workers)]
        # Beside a GPU the views need processes of their own; on a CPU the cores are all taken.
        self.loaders = self.threads if gpus else 0
        self._running: dict[str, tuple[subprocess.Popen[bytes], int]] = {}

    def slots(self) -> int:
        """The number of workers."""
        return self.workers

    def start(self, run: PlannedRun, *, shared: bool = False) -> None:
        """A process on the first free device."""
        taken = {slot for _, slot in self._running.values()}
        slot = next(i for i in range(self.workers) if i not in taken)
        work = job(
            run,
            self.folder,
            threads=self.threads,
            device=self.devices[slot],
            loaders=self.loaders,
            shared=shared,
        )
        self._running[run.name] = spawn(work, log_path(self.folder, run), self.keep), slot

    def ended(self) -> dict[str, int]:
        """Exit codes; negative where a signal ended the process."""
        codes = {name: process.poll() for name, (process, _) in self._running.items()}
        done = {name: code for name, code in codes.items() if code is not None}
        for name in done:
            del self._running[name]
        return done

    def stop(self) -> None:
        """Ask all to end, then make them."""
        end([process for process, _ in self._running.values()])
        self._running.clear()


def log_path(folder: Path, run: PlannedRun) -> Path:
    """Where a run's own words go: beside the run folders, as one that never began has no folder."""
    return folder / "logs" / f"{run.name}.txt"


def first_stages(folder: Path) -> Path:
    """Where the first stages that several runs have in common are kept while a grid runs."""
    return folder / "first-stages"


def available_cores() -> int:
    """The cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def available_gpus() -> int:
    """The number of GPUs that training would use here."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
