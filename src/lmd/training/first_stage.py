"""First stages that several runs share: trained once, and then loaded by the others.

Many methods start with the same stage, for example with cross-entropy. Every stage has its own
seeds, so a first stage depends only on itself, the data and the protocol. Runs that agree in these
can continue from one checkpoint and end with the weights that they would have reached alone.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lmd.contract.settings import Settings
from lmd.contract.stage import Rate, Stage
from lmd.model import Model

_OWN = {*vars(nn.Module()), "training", "clock"}  # attributes that do not describe a stage


class _NotDescribed(Exception):
    """A stage has an attribute that cannot be compared with another stage's."""


@dataclass(frozen=True)
class FirstStages:
    """A folder of checkpoints; ``context`` is all else that a trained stage depends on."""

    folder: Path
    context: Mapping[str, Any]

    def place(self, stage: Stage, model: Model) -> Path | None:
        """The path for the checkpoint of this stage; ``None`` if it cannot be shared."""
        try:
            described = _describe(stage, {id(m): name for name, m in model.named_modules()})
        except _NotDescribed:
            return None
        text = json.dumps([self.context, described], sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode())
        for name, tensor in (*stage.named_parameters(), *stage.named_buffers()):
            digest.update(name.encode())
            digest.update(_digest(tensor).encode())
        return self.folder / f"{digest.hexdigest()[:32]}.safetensors"

    def keep(self, checkpoint: Path, place: Path) -> None:
        """Keep the checkpoint of a finished first stage for other runs, as a hard link."""
        if place.exists() or not checkpoint.exists():
            return
        # On a file system without links, the other runs train the stage themselves.
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            os.link(checkpoint, place)


def _describe(module: nn.Module, known: Mapping[int, str]) -> Any:
    """Types and values of a module and its children; parts of the model by name."""
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
    if isinstance(value, Rate):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(k): _value(v, known) for k, v in value.items()}
    if isinstance(value, partial):
        return _value([value.func, value.args, value.keywords], known)
    name = getattr(value, "__qualname__", "<")
    # A module-level function is identified by its name; a lambda or a closure is not.
    if callable(value) and "<" not in name and getattr(value, "__self__", None) is None:
        return f"{value.__module__}.{name}"
    raise _NotDescribed


def _digest(tensor: Tensor) -> str:
    array = tensor.detach().cpu().contiguous().numpy()
    return f"{array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
