"""Save and resume training, and share equal first stages.

Many methods start with the same stage, for example with cross-entropy. Every stage has its own
seeds, so a first stage depends only on itself, the data and the protocol. Runs that agree in these
can continue from one checkpoint and end with the weights that they would have reached alone.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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
from lmd.base.files import atomic_write
from lmd.base.text import shorten
from lmd.methods.method import Settings
from lmd.methods.stage import Rate, Stage
from lmd.model import Model

FORMAT = 3
_REMEDY = "remove it to train the run from the start with --resume"


class Progress(BaseModel):
    """How far training has come; ``taken_from`` is the run that trained stage 1, if another did."""

    run: str
    taken_from: str | None = None
    stage: int = Field(ge=0)
    epoch: int = Field(ge=0)
    best_score: float
    history: list[dict[str, Any]]
    stages: list[dict[str, Any]]
    timings: dict[str, float]
    val_recall: list[float] | None

    def continued(self, saved: "Progress") -> "Progress":
        """Return what a checkpoint has saved, as the progress of this run."""
        source, timings = self.taken_from or saved.taken_from, self.timings | saved.timings
        return saved.model_copy(update={"run": self.run, "taken_from": source, "timings": timings})

    def add_time(self, activity: str, seconds: float) -> None:
        """Add seconds to an activity."""
        self.timings[activity] = self.timings.get(activity, 0.0) + seconds

    @contextmanager
    def clock(self, activity: str) -> Iterator[None]:
        """Add the time inside the context to an activity."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add_time(activity, time.perf_counter() - start)


@dataclass(frozen=True)
class Checkpoint:
    """The state of training; ``scalars`` are those numbers of the optimiser that are no tensors."""

    path: Path
    progress: Progress
    tensors: Mapping[str, Tensor]
    scalars: Mapping[str, Any]

    @staticmethod
    def save(
        path: Path,
        model: Model,
        stage: Stage,
        optimizer: Optimizer | None,
        best: Mapping[str, Tensor] | None,
        progress: Progress,
    ) -> None:
        """Write all that is needed to resume: model, other state of the stage, optimiser."""
        tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
        tensors |= {f"stage.{k}": v for k, v in _state_beside(model, stage).items()}
        tensors |= {f"best.{k}": v for k, v in (best or {}).items()}
        scalars: dict[str, Any] = {}
        for index, state in (optimizer.state_dict()["state"] if optimizer else {}).items():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{index}.{name}"] = value
                elif value is not None:
                    scalars[f"{index}.{name}"] = value
        payload = {"format": FORMAT, "progress": progress.model_dump(), "optimizer": scalars}
        flat = {k: v.detach().to("cpu", copy=True).contiguous() for k, v in tensors.items()}
        # In one value: safetensors writes several in any order, and the bytes shall be the same.
        payload["sha256"] = digest(payload, flat)
        atomic_write(path, save(flat, metadata={"lmd": json.dumps(payload)}))

    @classmethod
    def load(cls, path: Path) -> "Checkpoint | None":
        """Read a checkpoint; ``None`` if there is none yet."""
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
        if not isinstance(payload.get("optimizer"), dict):
            raise LmdError(f"{path}: field 'optimizer' must be an object; {_REMEDY}")
        return cls(path, progress, tensors, payload["optimizer"])

    def part(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors with names that start with ``prefix.``, which is removed."""
        start = f"{prefix}."
        return {k[len(start) :]: v for k, v in self.tensors.items() if k.startswith(start)}

    def restore(self, model: Model, stage: Stage, optimizer: Optimizer | None) -> None:
        """Load the state into objects made by the same method."""
        self._check("model", model.state_dict())
        self._check("stage", _state_beside(model, stage))
        if self.part("best"):
            self._check("best", model.state_dict())
        model.load_state_dict(self.part("model"))
        stage.load_state_dict(self.part("stage"), strict=False)
        if optimizer is None:
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        states: dict[int, dict[str, Any]] = {}
        for key, value in {**self.part("optimizer"), **self.scalars}.items():
            number, _, name = key.partition(".")
            index = int(number) if number.isdecimal() else len(parameters)
            scalar = not isinstance(value, Tensor) or value.ndim == 0
            if index >= len(parameters) or not (scalar or value.shape == parameters[index].shape):
                raise self._mismatch(f"optimizer.{key} fits no parameter")
            states.setdefault(index, {})[name] = value
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": states, "param_groups": groups})

    def _check(self, prefix: str, expected: Mapping[str, Tensor]) -> None:
        """Check the names, shapes and types of the tensors."""
        saved = self.part(prefix)
        if saved.keys() != expected.keys():
            lacks, has = sorted(expected.keys() - saved.keys()), sorted(saved.keys() - expected)
            raise self._mismatch(
                f"of {prefix} it lacks [{shorten(lacks)}] and has [{shorten(has)}]"
            )
        for name, tensor in expected.items():
            wanted, actual = (f"{t.dtype} {tuple(t.shape)}" for t in (tensor, saved[name]))
            if wanted != actual:
                raise self._mismatch(f"{prefix}.{name} is {actual} and should be {wanted}")

    def _mismatch(self, why: str) -> LmdError:
        return LmdError(f"checkpoint {self.path} is of another method or version: {why}; {_REMEDY}")


def digest(payload: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return SHA-256 over the payload and over names, types, shapes and values of all tensors."""
    sha = hashlib.sha256(json.dumps(payload).encode())
    for name, tensor in sorted(tensors.items()):
        sha.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()


def _state_beside(model: Model, stage: Stage) -> dict[str, Tensor]:
    """Return a stage's state without the model that it trains; tensors compare by identity."""
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


@dataclass(frozen=True)
class FirstStages:
    """A folder of checkpoints; ``context`` is all else that a trained stage depends on."""

    folder: Path
    context: Mapping[str, Any]

    def place(self, stage: Stage, model: Model) -> Path | None:
        """Return the path for the checkpoint of this stage; ``None`` if it cannot be shared."""
        try:
            description = _describe(stage, {id(m): name for name, m in model.named_modules()})
        except TypeError:
            return None
        text = json.dumps([self.context, description], sort_keys=True, default=str)
        sha = hashlib.sha256(text.encode())
        for name, tensor in (*stage.named_parameters(), *stage.named_buffers()):
            sha.update(f"{name}{_describe_value(tensor, {})}".encode())
        return self.folder / f"{sha.hexdigest()[:32]}.safetensors"

    def keep(self, checkpoint: Path, place: Path) -> None:
        """Keep the checkpoint of a finished first stage for other runs, as a hard link."""
        if place.exists() or not checkpoint.exists():
            return
        # On a file system without links, the other runs train the stage themselves.
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            os.link(checkpoint, place)


_UNRELATED = {*vars(nn.Module()), "training", "clock"}  # attributes that do not describe a stage


def _describe(module: nn.Module, names: Mapping[int, str]) -> Any:
    """Return types and values of a module and its children; parts of the model by name."""
    if id(module) in names:
        return f"model {names[id(module)]}"
    values = {k: _describe_value(v, names) for k, v in vars(module).items() if k not in _UNRELATED}
    children = {name: _describe(child, names) for name, child in module.named_children()}
    return [type(module).__module__, type(module).__qualname__, values, children]


def _describe_value(value: Any, names: Mapping[int, str]) -> Any:
    """Return a value as JSON; a ``TypeError`` if it cannot be compared with another stage's."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, Tensor):
        array = value.detach().cpu().contiguous().numpy()
        return f"{array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
    if isinstance(value, list | tuple):
        return [_describe_value(v, names) for v in value]
    if isinstance(value, partial):
        return _describe_value([value.func, value.args, value.keywords], names)
    if isinstance(value, Settings):
        value = value.model_dump()
    if isinstance(value, Rate):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(k): _describe_value(v, names) for k, v in value.items()}
    name = getattr(value, "__qualname__", "<")
    # A module-level function is identified by its name; a lambda or a closure is not.
    if callable(value) and "<" not in name and getattr(value, "__self__", None) is None:
        return f"{value.__module__}.{name}"
    raise TypeError(f"{name} has no description")
