"""The device, the seeds and the processes of a run; ``torchrun`` starts several processes."""

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import Parameter

from lmd.base.errors import LmdError

T = TypeVar("T")


class NotShareable(LmdError):
    """A stage that needs all images of a batch in one process."""


# Seconds to wait for a process that hangs; one that dies is noticed at once.
TIMEOUT = 1800

TOGETHER = (
    "a stage combines images of a batch before they are encoded, or draws random numbers for its "
    "own images only, so {} processes cannot share a batch: start it without torchrun"
)


def choose_device(name: str) -> torch.device:
    """Return the device called ``name``; ``auto`` is a GPU if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):  # lmd is tested on these
        raise LmdError(f"--device must be auto, cpu, cuda or cuda:N; it is {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise LmdError("no GPU is available here: use --device cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise LmdError(f"--device must be one of cuda:0 to cuda:{last}; it is {name!r}")
    return device


def derive_seed(*parts: object) -> int:
    """Return a 63-bit seed from any values, the same on every machine.

    >>> derive_seed(0, "epoch", 1) == derive_seed(0, "epoch", 1) != derive_seed(0, "epoch", 2)
    True
    """
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def rank() -> int:
    """Return the number of this process; process 0 writes files and prints."""
    return dist.get_rank() if _running() else 0


def world() -> int:
    """Return the number of processes that share the run."""
    return dist.get_world_size() if _running() else 1


def own_device(device: torch.device) -> torch.device:
    """Return the GPU of this process, one per process on a machine; all share the CPU."""
    if environment_number("WORLD_SIZE", 1) <= 1 or device.type != "cuda":
        return device
    if str(device) != "cuda":
        raise LmdError(f"--device: several processes cannot share {device}: use cuda or cpu")
    local, gpus = environment_number("LOCAL_RANK", 0), torch.cuda.device_count()
    if local >= gpus:
        raise LmdError(
            f"--nproc-per-node: no GPU is left for process {local + 1} of this machine, which has "
            f"{gpus}: start at most {gpus} processes, or use --device cpu"
        )
    return torch.device("cuda", local)


@contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """Connect the processes inside the context, by gloo on CPUs and NCCL on GPUs."""
    if environment_number("WORLD_SIZE", 1) <= 1 or _running():
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if environment_number("RANK", 0) > 0:
        # Only the first process prints; errors of the others still reach stderr.
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    seconds = environment_number("LMD_TIMEOUT", TIMEOUT)
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
        # The others may have ended or be waiting: they notice only that this one ends.
        raise error if rank() == 0 else LmdError(f"process {rank()}: {error}") from error
    _patient_group.cache_clear()
    dist.destroy_process_group()


@cache
def _patient_group() -> "dist.ProcessGroup":
    """The processes once more: decoding may take hours, and those that wait must not time out."""
    with _answered():
        group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timedelta(days=2))
    return group


def in_turn(work: Callable[[], T]) -> T:
    """Call ``work`` in process 0, then in the first of each other machine, then in the rest.

    So they find on disk what the first has made (a folder, decoded images, a download). An
    ``LmdError`` ends all processes; one of them raises it, the others end silently.
    """
    if world() == 1:
        return work()
    mine = 0 if rank() == 0 else 1 if environment_number("LOCAL_RANK", 0) == 0 else 2
    result: list[T] = []
    group = _patient_group()  # made before the first turn, which may take longer than others wait
    for turn in range(3):
        failure: LmdError | None = None
        if turn == mine:
            try:
                result.append(work())
            except LmdError as error:
                failure = error
        failed: list[bool | None] = [None] * world()
        with _answered():
            dist.all_gather_object(failed, failure is not None, group=group)
        if failure is not None and failed.index(True) == rank():
            raise failure
        if any(failed):
            raise SystemExit(1)
    return result[0]


def cut(size: int, process: int, processes: int) -> slice:
    """Return the slice of a batch for one of ``processes``; sizes differ by at most 1.

    >>> [list(range(5)[cut(5, p, 3)]) for p in range(3)]
    [[0], [1, 2], [3, 4]]
    """
    return slice(process * size // processes, (process + 1) * size // processes)


def check_same(losses: Sequence[float]) -> None:
    """Raise ``NotShareable`` if the processes have different losses for the same batches."""
    everyone = torch.stack(all_gather(torch.tensor(losses, dtype=torch.float64)))
    # Different machines round differently, but by far less than this.
    same = torch.isclose(everyone, everyone[0], rtol=1e-2, equal_nan=True).all(0)
    if not same.all():
        different = everyone[:, ~same][:, 0].tolist()
        raise NotShareable(f"{TOGETHER.format(world())} (their losses are {different})")


def agree(tensors: Sequence[Tensor]) -> None:
    """Set tensors to their values in process 0."""
    for kind in dict.fromkeys((t.dtype, t.device) for t in tensors):
        same = [t.detach() for t in tensors if (t.dtype, t.device) == kind]
        flat = torch.cat([t.flatten() for t in same])
        with _answered():
            dist.broadcast(flat, 0)
        for t, part in zip(same, flat.split([t.numel() for t in same]), strict=True):
            t.copy_(part.view_as(t))


def average_gradients(parameters: Iterable[Parameter]) -> None:
    """Replace the gradients of trained parameters by their means over all processes."""
    gradients = [p.grad for p in parameters if p.requires_grad and p.grad is not None]
    if not gradients:
        return
    # One large message is faster than hundreds of small ones.
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    all_reduce(flat)
    flat /= world()
    sizes = [gradient.numel() for gradient in gradients]
    for gradient, mean in zip(gradients, flat.split(sizes), strict=True):
        gradient.copy_(mean.view_as(gradient))


def all_gather(tensor: Tensor) -> list[Tensor]:
    """Return the tensors of all processes in order, all of one shape; without gradient."""
    tensors = [torch.empty_like(tensor) for _ in range(world())]
    with _answered():
        dist.all_gather(tensors, tensor.contiguous())
    return tensors


def all_reduce(tensor: Tensor) -> None:
    """Replace a tensor by its sum over all processes; without gradient."""
    with _answered():
        dist.all_reduce(tensor)


@contextmanager
def _answered() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise LmdError(
            f"another of the {world()} processes of this run has ended or did not answer in time "
            f"({str(error).splitlines()[0]}). Run the same command with --resume to continue from "
            "the last finished epoch"
        ) from error


def _running() -> bool:
    return dist.is_available() and dist.is_initialized()


def environment_number(name: str, default: int) -> int:
    """Return a number from the environment, which ``torchrun`` sets."""
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise LmdError(f"{name} must be a whole number; it is {text!r}") from None
