"""Checkpoints: the newest complete state in one file, replaced atomically, without pickle."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import Optimizer

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.contract.stage import Stage
from lmd.model import Model

FORMAT = 2


def save_checkpoint(
    path: Path,
    *,
    model: Model,
    stage: Stage,
    optimizer: Optimizer | None,
    best: Mapping[str, Tensor] | None,
    progress: Mapping[str, Any],
) -> None:
    """Everything needed to go on: model, what the stage holds beside it, optimiser, progress."""
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
    atomic_write(path, save(flat, metadata={"lmd": json.dumps(payload)}))


class Checkpoint:
    """A checkpoint that has been read; ``progress`` tells how far it got."""

    def __init__(self, tensors: dict[str, Tensor], payload: dict[str, Any]) -> None:
        self._tensors = tensors
        self._optimizer_scalars: dict[str, Any] = payload["optimizer"]
        self.progress: dict[str, Any] = payload["progress"]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors below ``prefix``, without it."""
        start = f"{prefix}."
        return {k[len(start) :]: v for k, v in self._tensors.items() if k.startswith(start)}

    def restore(self, model: Model, stage: Stage, optimizer: Optimizer | None) -> None:
        """Put the state back into objects made by the same method."""
        model.load_state_dict(self.part("model"))
        expected = set(_own_state(stage, model))
        saved = self.part("stage")
        if set(saved) != expected:
            raise LmdError(
                f"the checkpoint is of another method or version: it lacks "
                f"{sorted(expected - set(saved))} and has {sorted(set(saved) - expected)}"
            )
        stage.load_state_dict(saved, strict=False)
        if optimizer is not None:
            self._restore_optimizer(optimizer)

    def _restore_optimizer(self, optimizer: Optimizer) -> None:
        states: dict[int, dict[str, Any]] = {}
        for key, value in (self.part("optimizer") | self._optimizer_scalars).items():
            index, name = key.split(".", 1)
            states.setdefault(int(index), {})[name] = value
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": states, "param_groups": groups})


def load_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint, or ``None`` where there is none yet."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            payload = json.loads((file.metadata() or {}).get("lmd", "null"))
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise LmdError(f"{path} is not a checkpoint of lmd: {error}") from error
    if not isinstance(payload, dict) or payload.get("format") != FORMAT:
        raise LmdError(f"{path} is not a checkpoint of this version of lmd")
    return Checkpoint(tensors, payload)


def clone_state(module: nn.Module) -> dict[str, Tensor]:
    """A copy of a module's state that later updates do not reach."""
    return {k: v.detach().clone() for k, v in module.state_dict().items()}


def _own_state(stage: Stage, model: Model) -> dict[str, Tensor]:
    """What the stage holds beside the model it trains: told apart by where the tensors live."""
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
