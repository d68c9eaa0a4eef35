"""Choose the device, and derive seeds from values such as a run's seed, a stage and an epoch."""

import hashlib

import torch

from lmd.base.errors import LmdError


def choose_device(name: str) -> torch.device:
    """The device called ``name``; ``auto`` is a GPU if there is one, else the CPU."""
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
    """A 63-bit seed from any values, the same on every machine.

    >>> derive_seed(0, "epoch", 1) == derive_seed(0, "epoch", 1) != derive_seed(0, "epoch", 2)
    True
    """
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
