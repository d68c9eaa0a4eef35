"""Save and resume training, and share equal first stages.

Many methods start with the same stage, for example with cross-entropy. Every stage has its own
seeds, so a first stage depends only on itself, the data and the protocol. Runs that agree in these
can continue from one checkpoint and end with the weights that they would have reached alone.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import Optimizer

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write, waiting_for
from lmd.base.text import shorten
from lmd.methods.method import Settings
from lmd.methods.stage import Rate, Stage
from lmd.model import Model

FORMAT = 3
_REMEDY = "remove it to train the run from the start with --resume"


class Progress(BaseModel):
    """How far training had come when a checkpoint was saved."""

    run: str
    taken_from: str | None = None
    stage: int = Field(ge=0)
    epoch: int = Field(ge=0)
    best_score: float
    history: list[dict[str, Any]]
    stages: list[dict[str, Any]]
    timings: dict[str, float]
    val_recall: list[float] | None


def save_checkpoint(
    path: Path,
    *,
    model: Model,
    stage: Stage,
    optimizer: Optimizer | None,
    best: Mapping[str, Tensor] | None,
    progress: Mapping[str, Any],
) -> None:
    """Save all that is needed to resume: model, other state of the stage, optimiser, progress."""
    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    tensors |= {f"stage.{k}": v for k, v in _own_state(stage, model).items()}
    tensors |= {f"best.{k}": v for k, v in (best or {}).items()}
    scalars: dict[str, Any] = {}
    for index, state in (optimizer.state_dict()["state"] if optimizer else {}).items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{name}"] = value
            elif value is not None:
                scalars[f"{index}.{name}"] = value
    payload = {"format": FORMAT, "progress": dict(progress), "optimizer": scalars}
    flat = {k: v.detach().to("cpu", copy=True).contiguous() for k, v in tensors.items()}
    # In one value: safetensors writes several in any order, and the bytes shall be the same.
    payload["sha256"] = digest(payload, flat)
    atomic_write(path, save(flat, metadata={"lmd": json.dumps(payload)}))


class Checkpoint:
    """A loaded checkpoint; ``progress`` says how far training had come."""

    def __init__(self, tensors: dict[str, Tensor], payload: dict[str, Any], path: Path) -> None:
        self._tensors, self.path = tensors, path
        self._optimizer_scalars: dict[str, Any] = payload["optimizer"]
        self.progress: dict[str, Any] = payload["progress"]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors with names that start with ``prefix.``, which is removed."""
        start = f"{prefix}."
        return {k[len(start) :]: v for k, v in self._tensors.items() if k.startswith(start)}

    def restore(self, model: Model, stage: Stage, optimizer: Optimizer | None) -> None:
        """Load the state into objects made by the same method."""
        saved = self.part("stage")
        self._check("model", model.state_dict())
        self._check("stage", _own_state(stage, model))
        if self.part("best"):
            self._check("best", model.state_dict())
        model.load_state_dict(self.part("model"))
        stage.load_state_dict(saved, strict=False)
        if optimizer is None:
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        states: dict[int, dict[str, Any]] = {}
        for key, value in (self.part("optimizer") | self._optimizer_scalars).items():
            index, _, name = key.partition(".")
            place = int(index) if index.isdecimal() else len(parameters)
            shaped = not isinstance(value, Tensor) or value.ndim == 0
            if place >= len(parameters) or not (shaped or value.shape == parameters[place].shape):
                raise self._other(f"optimizer.{key} fits no parameter")
            states.setdefault(place, {})[name] = value
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": states, "param_groups": groups})

    def _check(self, prefix: str, expected: Mapping[str, Tensor]) -> None:
        """The names, shapes and types of the tensors must be those that are expected."""
        saved = self.part(prefix)
        if saved.keys() != expected.keys():
            lacks, has = sorted(expected.keys() - saved.keys()), sorted(saved.keys() - expected)
            raise self._other(f"of {prefix} it lacks [{shorten(lacks)}] and has [{shorten(has)}]")
        for name, tensor in expected.items():
            wanted, found = (f"{t.dtype} {tuple(t.shape)}" for t in (tensor, saved[name]))
            if wanted != found:
                raise self._other(f"{prefix}.{name} is {found} and should be {wanted}")

    def _other(self, why: str) -> LmdError:
        return LmdError(
            f"checkpoint {self.path} is of another method or version: {why}; remove it to train "
            "the run from the start with --resume"
        )


def load_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint, or ``None`` if there is none yet."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            payload = json.loads((file.metadata() or {}).get("lmd", "null"))
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise LmdError(f"{path} is not a checkpoint of lmd ({error}): {_REMEDY}") from error
    if not isinstance(payload, dict) or payload.get("format") != FORMAT:
        raise LmdError(f"{path} is not a checkpoint of this version of lmd: {_REMEDY}")
    if payload.pop("sha256", "") != digest(payload, tensors):
        raise LmdError(f"{path} is damaged: its checksum is not that of its content; {_REMEDY}")
    try:
        progress = Progress.model_validate(payload.get("progress"))
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, ("progress", *problem["loc"])))
        raise LmdError(f"{path}: field {field!r}: {problem['msg']}; {_REMEDY}") from None
    scalars = payload.get("optimizer")
    if not isinstance(scalars, dict):
        raise LmdError(f"{path}: field 'optimizer' must be an object; {_REMEDY}")
    return Checkpoint(tensors, {"optimizer": scalars, "progress": progress.model_dump()}, path)


def digest(payload: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the payload and over names, types, shapes and values of all tensors."""
    found = hashlib.sha256(json.dumps(payload).encode())
    for name, tensor in sorted(tensors.items()):
        found.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def clone_state(module: nn.Module) -> dict[str, Tensor]:
    """A copy of a module's state, independent of later updates."""
    return {k: v.detach().clone() for k, v in module.state_dict().items()}


def _own_state(stage: Stage, model: Model) -> dict[str, Tensor]:
    """The stage's state without the model that it trains; tensors are compared by identity."""
    shared = {id(t) for t in (*model.parameters(), *model.buffers())}
    aliases = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in stage.named_modules(remove_duplicate=False)
        for name, t in (
            *module.named_parameters(recurse=False),
            *module.named_buffers(recurse=False),
        )
        if id(t) in shared
    }
    return {k: v for k, v in stage.state_dict().items() if k not in aliases}


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

    def claim(self, place: Path) -> AbstractContextManager[None]:
        """Hold the place of a first stage; another run that needs the stage waits here for it."""
        return waiting_for(place.with_suffix(".lock"))

    def keep(self, checkpoint: Path, place: Path) -> None:
        """Keep the checkpoint of a finished first stage for other runs, as a hard link."""
        if place.exists() or not checkpoint.exists():
            return
        # On a file system without links, the other runs train the stage themselves.
        with suppress(OSError):
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
