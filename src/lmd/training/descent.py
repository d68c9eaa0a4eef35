"""The optimiser of a stage and its learning-rate schedule."""

from math import cos, pi

from torch.optim import SGD, Optimizer

from lmd.contract.stage import ParameterGroups, Schedule, Stage
from lmd.protocol import Protocol


def learning_rate(stage: Stage, index: int, protocol: Protocol) -> float:
    """The stage's own rate if it has one, otherwise the protocol's for a stage of this index."""
    if stage.lr is not None:
        return stage.lr.at(protocol.batch_size)
    return (protocol.stage2_lr if index else None) or protocol.lr


def schedule_of(stage: Stage, protocol: Protocol) -> Schedule:
    """The stage's own schedule if it has one, otherwise the protocol's."""
    return stage.schedule or protocol.schedule


def make_optimizer(groups: ParameterGroups, lr: float, protocol: Protocol) -> Optimizer | None:
    """SGD over the parameters that a stage trains; ``None`` if there are none."""
    if not groups:
        return None
    optimizer = SGD(
        groups,
        lr=lr,
        momentum=protocol.momentum,
        weight_decay=protocol.weight_decay,
        foreach=True,  # one call for all parameters instead of several for each
    )
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


def set_lr(optimizer: Optimizer, schedule: Schedule, done: float, epochs: int) -> float:
    """Set the learning rate after ``done`` epochs of a stage; returns that of the first group."""
    factor = 1.0 if schedule == "constant" else 0.5 * (1 + cos(pi * done / epochs))
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor
    return float(optimizer.param_groups[0]["lr"])
