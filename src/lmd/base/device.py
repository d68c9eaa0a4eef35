"""The device to compute on."""

import torch

from lmd.base.errors import LmdError


def choose_device(name: str) -> torch.device:
    """The device called ``name``; ``auto`` is a GPU if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise LmdError(f"unknown device {name!r}: use auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise LmdError("no GPU is available here: use --device cpu")
    return device
