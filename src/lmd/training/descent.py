"""The optimiser of a stage, the schedule of its learning rate, and a look at its losses."""

from math import cos, isfinite, pi
from pathlib import Path

from torch.optim import SGD, Optimizer

from lmd.base.errors import LmdError
from lmd.contract.stage import ParameterGroups, Terms
from lmd.protocol import Protocol


def make_optimizer(groups: ParameterGroups, lr: float, protocol: Protocol) -> Optimizer | None:
    """SGD over what a stage trains; ``None`` where it trains nothing by gradient."""
    if not groups:
        return None
    optimizer = SGD(
        groups,
        lr=lr,
        momentum=protocol.momentum,
        weight_decay=protocol.weight_decay,
        foreach=True,  # one call for all parameters in place of several for each
    )
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


def set_lr(optimizer: Optimizer, protocol: Protocol, done: float, epochs: int) -> float:
    """Set the learning rate after ``done`` of a stage's epochs; that of the first group."""
    factor = 1.0 if protocol.schedule == "constant" else 0.5 * (1 + cos(pi * done / epochs))
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor
    return float(optimizer.param_groups[0]["lr"])


def check_finite(terms: Terms, epoch: int, batch: int, checkpoint: Path) -> dict[str, float]:
    """The loss terms as numbers, the loss itself first; an error that names one which is none."""
    terms = {"loss": terms["loss"], **terms}
    values = {key: float(value.detach()) for key, value in terms.items()}
    for key, value in values.items():
        if not isfinite(value):
            kept = (
                f"the last good checkpoint is kept in {checkpoint.parent}"
                if checkpoint.exists()
                else "there is no checkpoint yet"
            )
            raise LmdError(
                f"loss term {key!r} is {value} in epoch {epoch + 1}, batch {batch + 1}: training "
                f"stopped; {kept}. A smaller learning rate (--set lr=…) is the usual remedy."
            )
    return values
