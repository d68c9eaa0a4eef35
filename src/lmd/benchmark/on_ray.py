"""Runs as tasks of a Ray cluster with a shared file system."""

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

from lmd.base.errors import LmdError
from lmd.benchmark.local import end, job, log_path, spawn
from lmd.benchmark.plan import PlannedRun

RETRIES = 5  # how often a run is taken up again after its node or its worker was lost


class OnRay:
    """At most ``workers`` tasks at once, each with ``threads`` cores, or one GPU where there are.

    ``address`` is the cluster's (``auto``, ``ray://…``, ``host:port``), or ``local`` for one on
    this machine that ends with the benchmark. Ray starts a task again whose worker or node was
    lost; the run then goes on from its last checkpoint, which must lie on a shared file system.
    """

    def __init__(self, folder: Path, address: str, workers: int | None, threads: int = 1) -> None:
        self.folder, self.workers, self.threads = folder.resolve(), workers, threads
        self._ray = ray = import_ray()
        local = address == "local"
        self._tasks: dict[Any, str] = {}
        quiet = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
        if not local:
            del quiet["include_dashboard"]
        _check_reachable(address)
        try:
            ray.init(address, num_cpus=workers if local else None, **quiet)
        except Exception as error:
            raise _no_cluster(address, error) from error
        self._gpu = ray.cluster_resources().get("GPU", 0) >= 1
        self._task = ray.remote(
            num_cpus=0 if self._gpu else threads,
            num_gpus=1 if self._gpu else 0,
            max_retries=RETRIES,
            retry_exceptions=False,
        )(run_task)

    def slots(self) -> int:
        """As many as the cluster has room for now: nodes may come and go."""
        has = self._ray.cluster_resources()
        room = int(has.get("GPU", 0) if self._gpu else has.get("CPU", 0) // self.threads)
        return max(1, room if self.workers is None else min(room, self.workers))

    def start(self, run: PlannedRun, *, shared: bool = False) -> None:
        """Hand the run to the cluster."""
        work = job(
            run,
            self.folder,
            threads=self.threads,
            device="cuda" if self._gpu else "cpu",
            loaders=None if self._gpu else 0,
            shared=shared,
        )
        self._tasks[self._task.remote(work, str(log_path(self.folder, run)))] = run.name

    def ended(self) -> dict[str, int]:
        """Exit codes; a task that Ray gave up is a failed run."""
        if not self._tasks:
            return {}
        ready, _ = self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=0)
        codes = {}
        for reference in ready:
            name = self._tasks.pop(reference)
            try:
                codes[name] = int(self._ray.get(reference))
            except self._ray.exceptions.RayError as error:
                log = self.folder / "logs" / f"{name}.txt"
                with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as file:
                    file.write(f"error: Ray gave the run up: {_first_line(error)}\n")
                codes[name] = 1
        return codes

    def stop(self) -> None:
        """Cancel what is under way; a run ends with the worker that watches it."""
        for reference in self._tasks:
            self._ray.cancel(reference, force=True)
        if self._tasks:
            self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=15)
        self._tasks.clear()
        self._ray.shutdown()


def run_task(work: dict[str, Any], log: str) -> int:
    """What a worker of the cluster does: one run in a process of its own, and its exit code."""
    process = spawn(work, Path(log))
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            end([process])


def import_ray() -> Any:
    """Ray, or an error that says how to install it."""
    # Ray counts its users over the network unless it is told not to.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Setting no device where a task asks for no GPU is what Ray will do by default.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise LmdError("--ray needs the package ray: pip install 'lmd[ray]'") from None
    return ray


def _check_reachable(address: str) -> None:
    """Ray itself tries an address where nobody answers for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except (OSError, OverflowError) as error:
            raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: BaseException) -> LmdError:
    return LmdError(
        f"no Ray cluster answers at {address!r} ({_first_line(error)}): start one with "
        "`ray start --head`, or use --ray local"
    )


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]
