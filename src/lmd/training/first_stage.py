"""First stages that several runs have in common: trained once, taken over by the others.

Many methods begin alike (cross-entropy, say) and differ in what follows. Every stage starts from
seeds of its own, so a first stage depends on nothing but itself, the data and the protocol; runs
in which these agree may go on from one and the same checkpoint, to the very weights that they would
have reached alone.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lmd.contract.settings import Settings
from lmd.contract.stage import Stage
from lmd.model import Model
from lmd.training.checkpoint import Checkpoint, load_checkpoint

_OWN = {*vars(nn.Module()), "training", "clock"}  # attributes that say nothing of a stage


class _NotDescribed(Exception):
    """A stage holds something of which equality cannot be told."""


@dataclass(frozen=True)
class FirstStages:
    """A folder of checkpoints; ``context`` is all that shapes a stage beside the stage itself."""

    folder: Path
    context: Mapping[str, Any]

    def place(self, stage: Stage, model: Model) -> Path | None:
        """Where the checkpoint of this very stage is or will be; ``None``: it is not shared."""
        try:
            described = _describe(stage, {id(m): name for name, m in model.named_modules()})
        except _NotDescribed:
            return None
        told = json.dumps([self.context, described], sort_keys=True, default=str)
        digest = hashlib.sha256(told.encode())
        for name, tensor in (*stage.named_parameters(), *stage.named_buffers()):
            digest.update(name.encode())
            digest.update(_digest(tensor).encode())
        return self.folder / f"{digest.hexdigest()[:32]}.safetensors"

    def take(self, place: Path | None) -> Checkpoint | None:
        """The finished stage, where another run has left it."""
        return load_checkpoint(place) if place is not None else None

    def leave(self, place: Path | None, checkpoint: Path) -> None:
        """Keep the checkpoint of a finished first stage for other runs.

        A link costs nothing, and the run's next checkpoint replaces the run's own name alone.
        """
        if place is None or place.exists() or not checkpoint.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        # Without it the other runs train by themselves: a file system without links is no error.
        with contextlib.suppress(OSError):
            os.link(checkpoint, place)


def _describe(module: nn.Module, known: Mapping[int, str]) -> Any:
    """Kinds and plain values of a module and all below it; parts of the model by their name."""
    if id(module) in known:
        return f"model {known[id(module)]}"
    values = {key: _value(v, known) for key, v in vars(module).items() if key not in _OWN}
    below = {name: _describe(child, known) for name, child in module.named_children()}
    kind = type(module)
    return [kind.__module__, kind.__qualname__, values, below]


def _value(value: Any, known: Mapping[int, str]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, Tensor):
        return _digest(value)
    if isinstance(value, list | tuple):
        return [_value(v, known) for v in value]
    if isinstance(value, Settings):
        value = value.model_dump()
    if isinstance(value, Mapping):
        return {str(k): _value(v, known) for k, v in value.items()}
    if isinstance(value, partial):
        return _value([value.func, value.args, value.keywords], known)
    name = getattr(value, "__qualname__", "<")
    # A function of a module is what its name says; a lambda or a closure may be anything.
    if callable(value) and "<" not in name and getattr(value, "__self__", None) is None:
        return f"{value.__module__}.{name}"
    raise _NotDescribed


def _digest(tensor: Tensor) -> str:
    array = tensor.detach().cpu().contiguous().numpy()
    return f"{array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
