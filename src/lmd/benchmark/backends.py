"""Runs as processes on this machine, or as tasks of a Ray cluster with a shared file system."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmd.base.errors import LmdError
from lmd.benchmark.plan import PlannedRun

DIVERGED = 3  # exit code of a run whose loss became infinite or undefined
STARTED = "=== started"  # the first words in the log of each start of a run
POLITE = 15.0  # seconds between asking a run to end and killing it
RETRIES = 5  # how often Ray restarts a run after its node or its worker was lost


class _Runs:
    """Runs in a folder that are under way.

    With ``share``, a first stage that several runs have in common is trained once: the others wait
    for the run that trains it.
    """

    def __init__(self, folder: Path, share: bool) -> None:
        self.folder, self.share = folder, share

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


class Local(_Runs):
    """``workers`` processes at once, by default one per GPU or core, which hold the lock."""

    def __init__(
        self,
        folder: Path,
        workers: int | None = None,
        *,
        keep: tuple[int, ...] = (),
        share: bool = True,
    ) -> None:
        import torch

        super().__init__(folder, share)
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
        """Return how many runs may be under way at once."""
        return self.workers

    def start(self, run: PlannedRun) -> None:
        """Start or continue a run on the first free device."""
        taken = {slot for _, slot in self._running.values()}
        slot = next(i for i in range(self.workers) if i not in taken)
        job = self.job(run, self.threads, self.devices[slot], self.loaders)
        self._running[run.name] = spawn(job, self.keep), slot

    def ended(self) -> dict[str, int]:
        """Return exit codes of the runs that ended since the last call; negative for a signal."""
        codes = {name: process.poll() for name, (process, _) in self._running.items()}
        done = {name: code for name, code in codes.items() if code is not None}
        for name in done:
            del self._running[name]
        return done

    def stop(self) -> None:
        """Ask all processes to end, and then kill them."""
        end([process for process, _ in self._running.values()])
        self._running.clear()


class OnRay(_Runs):
    """At most ``workers`` tasks at once, each with one GPU or, without GPUs, one core.

    ``address`` names a cluster (``auto``, ``ray://…``, ``host:port``), or ``local`` to start
    one on this machine that ends with the benchmark. If a worker or node is lost, Ray restarts the
    task, and the run continues from its checkpoint, which must be on a shared file system.
    """

    def __init__(
        self, folder: Path, address: str, workers: int | None, *, share: bool = True
    ) -> None:
        super().__init__(folder.resolve(), share)
        self.workers = workers
        self._ray = ray = import_ray()
        self._tasks: dict[Any, str] = {}
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if address == "local":
            options |= {"num_cpus": workers, "include_dashboard": False}
        try:
            # Ray itself retries an unreachable address for minutes.
            host, _, port = address.removeprefix("ray://").rpartition(":")
            if host and port.isdigit():
                socket.create_connection((host, int(port)), timeout=10).close()
            ray.init(address, **options)
        except Exception as error:
            raise LmdError(
                f"no Ray cluster answers at {address!r} ({_first_line(error)}): start one with "
                "`ray start --head`, or use --ray local"
            ) from error
        self._gpu = ray.cluster_resources().get("GPU", 0) >= 1
        self._task = ray.remote(
            num_cpus=int(not self._gpu),
            num_gpus=int(self._gpu),
            max_retries=RETRIES,
            retry_exceptions=False,
        )(run_task)

    def slots(self) -> int:
        """Return how many the cluster has room for now: nodes may come and go."""
        has = self._ray.cluster_resources()
        room = int(has.get("GPU" if self._gpu else "CPU", 0))
        return max(1, room if self.workers is None else min(room, self.workers))

    def start(self, run: PlannedRun) -> None:
        """Submit the run to the cluster."""
        device, loaders = ("cuda", None) if self._gpu else ("cpu", 0)
        job = self.job(run, 1, device, loaders)
        self._tasks[self._task.remote(job)] = run.name

    def ended(self) -> dict[str, int]:
        """Return exit codes since the last call; a task that Ray gave up counts as failed."""
        if not self._tasks:
            return {}
        ready, _ = self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=0)
        codes = {}
        for reference in ready:
            name = self._tasks.pop(reference)
            try:
                codes[name] = int(self._ray.get(reference))
            except self._ray.exceptions.RayError as error:
                log = log_path(self.folder, name)
                with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as file:
                    file.write(f"error: Ray gave up the run: {_first_line(error)}\n")
                codes[name] = 1
        return codes

    def stop(self) -> None:
        """Cancel all tasks; a run ends with the Ray worker that started it."""
        for reference in self._tasks:
            self._ray.cancel(reference, force=True)
        if self._tasks:
            self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=15)
        self._tasks.clear()
        self._ray.shutdown()


def run_task(job: dict[str, Any]) -> int:
    """Train one run in a separate process and return its exit code."""
    process = spawn(job)
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            end([process])


def import_ray() -> Any:
    """Import Ray, or say how to install it."""
    # Ray reports usage statistics over the network by default.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # A later default of Ray: hide no device from a task that asks for no GPU.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise LmdError("--ray needs the package ray: pip install 'lmd[ray]'") from None
    return ray


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]


Backend = Local | OnRay


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
    """Start the process of one run, which appends to its log and inherits the lock in ``keep``."""
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
