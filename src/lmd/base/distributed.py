"""Several processes for one run, as ``torchrun`` starts them; alone, nothing happens here."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from lmd.base.errors import LmdError

T = TypeVar("T")


class NotShareable(LmdError):
    """What was asked for needs all images of a batch in one process."""


# Seconds that a process waits for the others inside one step; a process that dies is noticed at
# once, so this is only for one that hangs.
TIMEOUT = 1800

TOGETHER = (
    "a stage takes images of a batch together before they are encoded, or draws at random for its "
    "own images only, so {} processes cannot share a batch: start it without torchrun"
)


def rank() -> int:
    """The number of this process; 0 writes files and talks."""
    return dist.get_rank() if _running() else 0


def world() -> int:
    """How many processes share the run; 1 alone."""
    return dist.get_world_size() if _running() else 1


def local_world() -> int:
    """How many of them are on this machine."""
    return _environment("LOCAL_WORLD_SIZE", 1) if _running() else 1


def launched() -> bool:
    """Whether ``torchrun`` (or whoever sets its variables) started several processes."""
    return _environment("WORLD_SIZE", 1) > 1


def speaks() -> bool:
    """Whether this process is the one that writes files and talks, joined or not."""
    return not launched() or _environment("RANK", 0) == 0


def own_device(device: torch.device) -> torch.device:
    """This process's GPU of those on its machine; the CPU is for all."""
    if not launched() or device.type != "cuda":
        return device
    if str(device) != "cuda":
        raise LmdError(f"--device: several processes cannot share {device}; use cuda or cpu")
    local, gpus = _environment("LOCAL_RANK", 0), torch.cuda.device_count()
    if local >= gpus:
        raise LmdError(
            f"--nproc-per-node: process {local + 1} of this machine has no GPU, there are {gpus}: "
            f"start at most {gpus}, or use --device cpu"
        )
    return torch.device("cuda", local)


@contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """Inside, the processes are connected: gloo on CPUs, NCCL on GPUs."""
    if not launched() or _running():
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not speaks():
        # The first process says it all; errors of the others still reach stderr.
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    seconds = _environment("LMD_TIMEOUT", TIMEOUT)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=seconds))
    except (ValueError, RuntimeError) as error:
        raise LmdError(
            f"the {os.environ['WORLD_SIZE']} processes of this run did not find one another "
            f"({error}): start them with torchrun, and unset WORLD_SIZE for one process"
        ) from error
    try:
        yield
    except LmdError as error:
        # The others may be gone, or wait for this one: only its end tells them.
        raise error if rank() == 0 else LmdError(f"process {rank()}: {error}") from error
    dist.destroy_process_group()


def in_turn(work: Callable[[], T]) -> T:
    """``work()`` of every process: first number 0, then the first of each machine, then the rest.

    What the first one leaves on the disk (a folder, decoded images, a download) is there for the
    others. An ``LmdError`` of one ends all; it is raised in one process, the others end silently.
    """
    if world() == 1:
        return work()
    mine = 0 if rank() == 0 else 1 if _environment("LOCAL_RANK", 0) == 0 else 2
    result: list[T] = []
    # Decoding may take hours, and who waits for it must not give up.
    with _answered():
        patient = dist.new_group(backend="gloo", timeout=timedelta(days=2))
    for turn in range(3):
        failure: LmdError | None = None
        if turn == mine:
            try:
                result.append(work())
            except LmdError as error:
                failure = error
        failed: list[bool | None] = [None] * world()
        with _answered():
            dist.all_gather_object(failed, failure is not None, group=patient)
        if failure is not None and failed.index(True) == rank():
            raise failure
        if any(failed):
            raise SystemExit(1)
    return result[0]


def cut(size: int, process: int, processes: int) -> slice:
    """The slice of a batch of ``size`` that one of ``processes`` works on; they differ by one.

    >>> [list(range(5)[cut(5, p, 3)]) for p in range(3)]
    [[0], [1, 2], [3, 4]]
    """
    return slice(process * size // processes, (process + 1) * size // processes)


def check_same(losses: Sequence[float]) -> None:
    """Refuse to go on where the processes differ in the losses of the same whole batches."""
    if world() == 1 or not losses:
        return
    everyone = torch.stack(all_gather(torch.tensor(losses, dtype=torch.float64)))
    # Machines of different kinds round differently, by far less than this.
    same = torch.isclose(everyone, everyone[0], rtol=1e-2, equal_nan=True).all(0)
    if not same.all():
        found = everyone[:, ~same][:, 0].tolist()
        raise NotShareable(f"{TOGETHER.format(world())} (their losses are {found})")


def agree(tensors: Sequence[Tensor]) -> None:
    """Give these tensors the values they have in process 0."""
    if world() == 1:
        return
    kinds = {(t.dtype, t.device): None for t in tensors}
    for kind in kinds:
        same = [t.detach() for t in tensors if (t.dtype, t.device) == kind]
        flat = torch.cat([t.flatten() for t in same])
        with _answered():
            dist.broadcast(flat, 0)
        for t, part in zip(same, flat.split([t.numel() for t in same]), strict=True):
            t.copy_(part.view_as(t))


def all_gather(tensor: Tensor) -> list[Tensor]:
    """The tensors of all processes, of one shape, in their order; without gradient."""
    found = [torch.empty_like(tensor) for _ in range(world())]
    with _answered():
        dist.all_gather(found, tensor.contiguous())
    return found


def all_reduce(tensor: Tensor) -> None:
    """Replace a tensor by its sum over all processes; without gradient."""
    if world() > 1:
        with _answered():
            dist.all_reduce(tensor)


def largest(number: int) -> int:
    """The largest of all processes' numbers."""
    found = torch.tensor(number)
    if world() > 1:
        with _answered():
            dist.all_reduce(found, dist.ReduceOp.MAX)
    return int(found)


@contextmanager
def _answered() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise LmdError(
            f"another of the {world()} processes of this run has ended or did not answer in time "
            f"({str(error).splitlines()[0]}). Nothing is lost: the same command with --resume "
            "goes on from the last finished epoch"
        ) from error


def _running() -> bool:
    return dist.is_available() and dist.is_initialized()


def _environment(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise LmdError(f"{name} must be a whole number; it is {text!r}") from None
