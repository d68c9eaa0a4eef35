"""What a stage does with its views, found by running it once on a tiny network.

Nothing here knows a method. Edges are found by small changes: a view feeds the encoder calls whose
input changes with it, and a loss term depends on the calls with whose output it changes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lmd.base.errors import LmdError
from lmd.contract.method import Method
from lmd.contract.stage import Batch, Stage, Task, prepare
from lmd.model import Model, build_model

COUNTS = (12, 8, 5, 3)
IMAGES, SIZE = 8, 16


@dataclass(frozen=True)
class Call:
    """One call of the encoder or classifier of a network of the stage."""

    network: str
    part: Literal["encoder", "classifier"]
    gradient: bool

    @property
    def name(self) -> str:
        """Both words, as a diagram shows them."""
        return f"{self.network} {self.part}".strip()


@dataclass
class Trace:
    """A stage: its calls by index, and the edges among views, calls and loss terms."""

    title: str
    says: str
    views: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    terms: list[str] = field(default_factory=list)
    inputs: list[tuple[str, int]] = field(default_factory=list)  # view, encoder call
    passes: list[tuple[int, int]] = field(default_factory=list)  # encoder call, classifier call
    reaches: list[tuple[int, str]] = field(default_factory=list)  # call, term
    roles: dict[str, str] = field(default_factory=dict)  # of "NETWORK PART"
    reads: list[str] = field(default_factory=list)  # features that an epoch starts with
    updates: list[str] = field(default_factory=list)  # what the start of an epoch changes
    numbers: list[str] = field(default_factory=list)  # what it writes into the history


class _Run:
    """What the loop lends a stage, in the middle of training, with features of noise."""

    epoch, epochs, steps = 1, 3, 1
    val_recall: Tensor | None = None

    def __init__(self, width: Callable[[], int]) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.width = width
        self.asked: list[str] = []

    def features(
        self, drawn: str = "natural", part: str = "train", view: str = "eval"
    ) -> tuple[Tensor, Tensor]:
        self.asked.append(f"{part} images, {view} view, {drawn}")
        labels = torch.arange(len(COUNTS)).repeat_interleave(6)
        noise = torch.randn(len(labels), self.width(), generator=self.generator)
        return noise + labels[:, None], labels


class _Probe:
    """Records the calls of all networks of a stage, and changes or replaces their outputs."""

    def __init__(self, stage: Stage) -> None:
        named = stage.named_modules(remove_duplicate=False)
        unique = {id(m): (n, m) for n, m in named if isinstance(m, Model) and n != "part"}
        self.networks = dict(unique.values())
        self.calls: list[Call] = []
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.change: int | None = None
        self.replay: dict[int, Tensor] = {}
        for name, model in self.networks.items():
            for part in ("encoder", "classifier"):
                getattr(model, part).register_forward_hook(self._hook(name, part))

    def _hook(self, name: str, part: Any) -> Callable[..., Tensor]:
        def hook(_: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
            index = len(self.calls)
            self.calls.append(Call(self.named(name), part, torch.is_grad_enabled()))
            self.inputs.append(given[0].detach().clone())
            if index in self.replay:
                output = self.replay[index]
            elif index == self.change:
                noise = torch.Generator().manual_seed(7)
                output = output + 0.1 * torch.randn(output.shape, generator=noise)
            self.outputs.append(output.detach().clone())
            return output

        return hook

    def named(self, name: str) -> str:
        """The trained network beside a teacher is the student; one alone has no name."""
        if "teacher" in self.networks:
            return "student" if name == "model" else name
        return "" if len(self.networks) == 1 else name.removesuffix(".model")


def trace_stages(method: Method, settings: Mapping[str, Any]) -> list[Trace]:
    """A trace of every stage; nothing is trained between them but one step of each."""
    model, _ = build_model("resnet8", "none", len(COUNTS), head=method.head, image_size=SIZE)
    task = Task(torch.tensor(COUNTS), model.classifier.in_features)
    found: list[Trace] = []
    with torch.random.fork_rng(devices=[]):
        try:
            for stage, title in zip(
                method.stages_for(model, task, settings), method.stages, strict=False
            ):
                found.append(_trace(stage, _title(stage, title), model))
        except (NotImplementedError, RuntimeError) as error:
            raise LmdError(
                f"method {method.key!r}: stage {len(found) + 1} cannot be drawn, because it does "
                f"not compute its loss from one batch in `loss` ({error or 'it has no loss'})"
            ) from error
    return found


def _title(stage: Stage, title: str) -> str:
    """Of a title such as "label loss or RRL", what the stage is, or the first of them."""
    kinds = title.split(" or ")
    return next((kind for kind in kinds if kind.lower() == stage.name.lower()), kinds[0])


def _trace(stage: Stage, title: str, model: Model) -> Trace:
    about = (type(stage).__doc__ or "").strip().split("\n\n")[0]
    trace = Trace(title, " ".join(about.replace("``", "").split()))
    groups = prepare(stage)
    optimizer = torch.optim.SGD(groups, lr=0.1) if groups else None
    run = _Run(lambda: model.classifier.in_features)
    before = _state(stage)
    numbers = stage.start_epoch(run, optimizer)
    trace.reads = list(dict.fromkeys(run.asked))
    trace.numbers = list(numbers or ())
    moved = [name for name in _changed(before, _state(stage)) if "." in name]
    trace.updates = list(dict.fromkeys(_owner(name) for name in moved))
    streams = len(stage.class_weights(run))
    names = stage.view_names()
    if not streams or not names or optimizer is None:
        return trace
    probe = _Probe(stage)
    views = {n: torch.rand(IMAGES, 3, SIZE, SIZE) for n in names}
    labels = torch.arange(len(COUNTS)).repeat(IMAGES // len(COUNTS))

    def terms(changed: str | None = None) -> dict[str, Tensor]:
        """One evaluation of the loss from the same state, perhaps with one view changed."""
        probe.calls, probe.inputs, probe.outputs = [], [], []
        kept, drawn = _state(stage), run.generator.get_state()
        seen = {n: v + 0.1 * (n == changed) for n, v in views.items()}
        torch.manual_seed(0)
        result = stage.loss(*[Batch(seen, labels)] * streams)
        stage.load_state_dict(kept, strict=False)
        run.generator.set_state(drawn)
        return {key: value.detach().clone() for key, value in result.items()}

    _edges(trace, probe, terms, list(names))
    weights = {n: m.state_dict() for n, m in _parts(probe).items()}
    weights = {n: {k: v.clone() for k, v in of.items()} for n, of in weights.items()}
    stage.step(optimizer, *[Batch(views, labels)] * streams)
    for name, part in _parts(probe).items():
        trained = any(p.requires_grad for p in part.parameters())
        moved = _changed(weights[name], part.state_dict())
        learned = {n for n, _ in part.named_parameters()}
        trace.roles[name] = "trained" if trained else "follows" if learned & set(moved) else "fixed"
    return trace


def _edges(
    trace: Trace, probe: _Probe, terms: Callable[..., dict[str, Tensor]], names: Sequence[str]
) -> None:
    base = terms()
    trace.calls, trace.views = list(probe.calls), []
    inputs, outputs = probe.inputs, probe.outputs
    trace.terms = [key for key in base if key != "loss"] or ["loss"]
    encoders = [i for i, call in enumerate(trace.calls) if call.part == "encoder"]
    classifiers = [i for i, call in enumerate(trace.calls) if call.part == "classifier"]
    for view in names:
        terms(view)
        fed = [i for i in encoders if not torch.equal(inputs[i], probe.inputs[i])]
        trace.inputs += [(view, i) for i in fed]
        trace.views += [view] if fed else []
    for i in range(len(trace.calls)):
        probe.change = i
        found = terms()
        if i in encoders:
            after = probe.outputs
            trace.passes += [(i, c) for c in classifiers if not torch.equal(outputs[c], after[c])]
            # What still changes with the classifiers' outputs held depends on features directly.
            probe.replay = {c: outputs[c] for c in classifiers}
            found = terms()
            probe.replay = {}
        probe.change = None
        trace.reaches += [(i, t) for t in trace.terms if not torch.equal(base[t], found[t])]


def _parts(probe: _Probe) -> dict[str, nn.Module]:
    return {
        f"{probe.named(name)} {part}".strip(): getattr(model, part)
        for name, model in probe.networks.items()
        for part in ("encoder", "classifier")
    }


def _state(stage: Stage) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in stage.state_dict().items()}


def _changed(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> list[str]:
    return [n for n, v in after.items() if n not in before or not torch.equal(before[n], v)]


def _owner(name: str) -> str:
    """The part of a stage that a parameter belongs to.

    >>> _owner("model.classifier.weight"), _owner("gaussians.mean")
    ('classifier', 'gaussians')
    """
    words = name.split(".")[:-1]
    return words[1] if words[0] == "model" and len(words) > 1 else words[0]
