"""Runs as tasks of a Ray cluster with a shared file system."""

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

from lmd.base.errors import LmdError
from lmd.benchmark.local import Backend, end, log_path, spawn
from lmd.benchmark.plan import PlannedRun

RETRIES = 5  # how often Ray restarts a run after its node or its worker was lost


class OnRay(Backend):
    """At most ``workers`` tasks at once, each with one GPU or, without GPUs, one core.

    ``address`` names a cluster (``auto``, ``ray://…``, ``host:port``), or ``local`` to start
    one on this machine that ends with the benchmark. If a worker or node is lost, Ray restarts the
    task, and the run continues from its checkpoint, which must be on a shared file system.
    """

    def __init__(
        self, folder: Path, address: str, workers: int | None, *, share: bool = True
    ) -> None:
        super().__init__(folder.resolve(), share=share)
        self.workers = workers
        self._ray = ray = import_ray()
        self._tasks: dict[Any, str] = {}
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if address == "local":
            options |= {"num_cpus": workers, "include_dashboard": False}
        try:
            _check_reachable(address)
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


def _check_reachable(address: str) -> None:
    """Fail early: Ray itself retries an unreachable address for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]
