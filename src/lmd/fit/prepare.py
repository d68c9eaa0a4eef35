"""All that training needs: decoded images in parts, a new model, the stages of a method."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import BatchNorm2d

from lmd.base.device import derive_seed
from lmd.base.distributed import in_turn
from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.base.text import counted
from lmd.data.dataset import Dataset, plan_data
from lmd.data.source import Source
from lmd.data.table import PARTS
from lmd.doctor import quick_check
from lmd.methods import find_method
from lmd.methods.method import Method
from lmd.methods.stage import Stages, Task
from lmd.model import HeldOut, Model, ModelSpec, Preprocessing, Prior, build_model
from lmd.runs.protocol import Protocol
from lmd.runs.record import Request


@dataclass(frozen=True)
class Ready:
    """All that training needs; ``seconds`` is the time that decoding took."""

    request: Request
    method: Method
    protocol: Protocol
    data: Dataset
    model: Model
    preprocessing: Preprocessing
    device: torch.device
    seconds: float

    def stages(self) -> Stages:
        """The stages of the method."""
        counts = torch.from_numpy(self.data.counts("train")).to(self.device)
        task = Task(counts, self.model.classifier.in_features)
        return self.method.stages_for(self.model, task, self.request.settings)

    def spec(
        self, temperature: float, prior: Prior | None = None, held_out: HeldOut | None = None
    ) -> ModelSpec:
        """The description of the shipped model."""
        return ModelSpec(
            classes=self.data.table.classes,
            backbone=self.protocol.backbone,
            head=self.method.head,
            preprocessing=self.preprocessing,
            method=self.method.title,
            feature_dim=self.model.classifier.in_features,
            class_counts=tuple(int(n) for n in self.data.counts("train")),
            temperature=temperature,
            levels=self.model.levels,
            prior=prior,
            held_out=held_out,
        )


def plan(request: Request) -> Dataset:
    """Open the data and check all that needs no pixels; several processes take turns."""
    protocol = Protocol.model_validate(request.protocol)
    planned = in_turn(lambda: plan_data(Source.of(request), protocol))
    parts = planned.table.parts
    if parts is not None and "validation" not in parts:
        _check_without_validation(request)
    return planned


def _check_without_validation(request: Request) -> None:
    if find_method(request.method).needs_validation(request.settings):
        tau = ", or set tau (1 normalises fully)" if "tau" in request.settings else ""
        raise LmdError(
            f"method {request.method!r} learns from validation images, and there are none: split "
            f"off a validation part (--set split=[0.7,0.1,0.2]){tau}"
        )


def prepare(request: Request, planned: Dataset, device: torch.device, display: Display) -> Ready:
    """Build the model, then decode the images; several processes take turns."""
    method, protocol = find_method(request.method), Protocol.model_validate(request.protocol)
    model, preprocessing = in_turn(
        lambda: build_model(
            protocol.backbone,
            protocol.weights,
            len(planned.table.classes),
            head=method.head,
            image_size=protocol.image_size,
            seed=derive_seed(protocol.seed, "model"),
        )
    )
    _check_batches(model, protocol)
    started = time.perf_counter()
    data = in_turn(lambda: planned.decode(display))
    seconds = time.perf_counter() - started
    return Ready(request, method, protocol, data, model, preprocessing, device, seconds)


def _check_batches(model: Model, protocol: Protocol) -> None:
    if protocol.batch_size == 1 and any(isinstance(m, BatchNorm2d) for m in model.modules()):
        raise LmdError(
            f"setting 'batch_size' must be at least 2 for backbone {protocol.backbone!r}, whose "
            "BatchNorm needs several images; it is 1"
        )


def announce(ready: Ready, notes: Sequence[str], display: Display) -> None:
    """Print the first lines of a run: method, images, model, and findings in the data."""
    data = ready.data
    display.say(_first_line(ready))
    for note in notes:
        display.say(f"  settings: {note}")
    for found in data.warnings:
        style = "bold yellow" if found.severity == "warning" else ""
        display.say(f"  {found.severity}: {found.text} {found.remedy}", style=style)
    for line in quick_check(data.table):
        display.say(f"  data: {line}")
    if data.skipped:
        display.say(f"  data: {len(data.skipped)} images were skipped; the record names them.")


def _first_line(ready: Ready) -> str:
    """What is trained on what: method, images, size, epochs, backbone and its weights."""
    data, protocol = ready.data, ready.protocol
    parts = ", ".join(f"{int(data.counts(p).sum())} {p}" for p in PARTS)
    epochs = counted(protocol.epochs, "{n} [epoch|epochs]")
    if len(ready.method.stages) > 1:
        later = ready.method.last_epochs(ready.request.settings) or protocol.stage2_epochs
        epochs += f", then {counted(later, '{n} [epoch|epochs]')} of stage 2"
    weights = {"none": "random weights", "imagenet": "ImageNet weights"}
    size = sum(p.numel() for p in ready.model.parameters())
    return (
        f"{ready.method.title} on {data.table.source}: {parts} images; {protocol.image_size} px; "
        f"{epochs}; {protocol.backbone} with "
        f"{weights.get(protocol.weights, f'the weights of {protocol.weights}')}, "
        f"{size / 1e6:.1f} million parameters; head, medium, tail: {data.tiers.rule}"
    )
