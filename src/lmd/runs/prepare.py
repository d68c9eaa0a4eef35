"""All that training needs: decoded images in parts, a new model, the stages of a method."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lmd.base.distributed import in_turn
from lmd.base.progress import Display
from lmd.base.seeds import derive_seed
from lmd.contract.method import Method
from lmd.contract.stage import Stages, Task
from lmd.data.doctor import quick_check
from lmd.data.prepare import Prepared, prepare_data
from lmd.data.table import PARTS
from lmd.methods import find_method
from lmd.model import HeldOut, Model, ModelSpec, Preprocessing, Prior, build_model
from lmd.protocol import Protocol
from lmd.runfolder.record import Request


@dataclass(frozen=True)
class Ready:
    """All that training needs; ``seconds`` is the time that decoding took."""

    request: Request
    method: Method
    protocol: Protocol
    data: Prepared
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


def prepare(request: Request, device: torch.device, display: Display) -> Ready:
    """Read, split and decode the images, and build the model; several processes take turns."""
    method, protocol = find_method(request.method), Protocol.model_validate(request.protocol)
    started = time.perf_counter()
    display.start("decoding images", 1)
    data = in_turn(
        lambda: prepare_data(
            request.data,
            protocol,
            columns=request.columns,
            skip_bad=request.skip_bad,
            tick=display.step,
            say=display.say,
        )
    )
    display.stop()
    seconds = time.perf_counter() - started
    model, preprocessing = in_turn(
        lambda: build_model(
            protocol.backbone,
            protocol.weights,
            len(data.table.classes),
            head=method.head,
            image_size=protocol.image_size,
            seed=derive_seed(protocol.seed, "model"),
        )
    )
    return Ready(request, method, protocol, data, model, preprocessing, device, seconds)


def announce(ready: Ready, notes: Sequence[str], display: Display) -> None:
    """Print the first lines of a run: method, images, model, and findings in the data."""
    data = ready.data
    parts = ", ".join(f"{int(data.counts(p).sum())} {p}" for p in PARTS)
    size = sum(p.numel() for p in ready.model.parameters())
    display.say(
        f"{ready.method.title} on {data.table.source}: {parts} images; "
        f"{size / 1e6:.1f} million parameters; head, medium, tail: {data.tiers.rule}"
    )
    for note in notes:
        display.say(f"  settings: {note}")
    for line in quick_check(data.table):
        display.say(f"  data: {line}")
    if data.skipped:
        display.say(f"  data: {len(data.skipped)} images were skipped; the record names them.")
