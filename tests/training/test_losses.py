"""Loss terms: exact sums, precise errors, and no wait for the device in a step."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch.utils._python_dispatch import TorchDispatchMode
from toys import MakeTrainer

from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.methods import METHODS
from lmd.methods.method import Method
from lmd.methods.stage import Batch, Stage, Stages, Task, Terms
from lmd.model import Model
from lmd.training.checkpoint import Checkpoint
from lmd.training.loop import READ_EVERY, LossTerms

NAN, INF = float("nan"), float("inf")
# Operations that hand a value or a shape from the device to Python.
WAITS = ("_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2")


class CountWaits(TorchDispatchMode):
    """Counts the operations for which a GPU would have to finish first."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ in WAITS
        return func(*args, **(kwargs or {}))


class Noting(Display):
    """Nobody watches; notes how many waits there were up to each step."""

    def __init__(self, waits: CountWaits) -> None:
        super().__init__(quiet=True)
        self.waits, self.counts = waits, list[int]()

    def step(
        self,
        done: int,
        total: int | None = None,
        terms: Callable[[], Mapping[str, float]] | None = None,
    ) -> None:
        self.counts.append(self.waits.count)
        super().step(done, total, terms)


@pytest.mark.parametrize("key", ["ce", "seesaw", "cicl", "lmd"])
def test_a_step_of_stage_1_never_waits_for_the_device(key: str, make_trainer: MakeTrainer) -> None:
    waits = CountWaits()
    display = Noting(waits)
    trainer = make_trainer(
        METHODS[key], display=display, wrap=lambda s: iter([next(s)]), epochs=1, batch_size=4
    )
    with waits:
        trainer.fit()
    assert waits.count > 0, "the counter itself must work"
    assert len(display.counts) == 6
    assert display.counts == [display.counts[0]] * 6


def test_sums_are_those_of_the_numbers_in_their_order() -> None:
    values = torch.rand(130, 2, generator=torch.Generator().manual_seed(0))
    losses = LossTerms(0, Path("none"))
    expected = {"loss": 0.0, "late": 0.0}
    read = []
    for b, (loss, late) in enumerate(values):
        # A term may be absent at first; "loss" is first whatever the order.
        losses.add({"late": late, "loss": loss} if b > 9 else {"loss": loss})
        expected["loss"] += float(loss)
        expected["late"] += float(late) if b > 9 else 0.0
        read.append(losses.batches)
    assert sorted(set(read)) == [1, 1 + READ_EVERY, 1 + 2 * READ_EVERY]
    assert losses.newest() == {"loss": float(values[-1, 0]), "late": float(values[-1, 1])}
    assert losses.means() == {key: value / 130 for key, value in expected.items()}
    assert list(losses.sums) == ["loss", "late"]


def test_values_are_those_of_the_step_even_if_the_stage_changes_them_later() -> None:
    losses, loss = LossTerms(0, Path("none")), torch.zeros(1, dtype=torch.float64)
    for _ in range(4):
        losses.add({"loss": loss})
        loss += 1
    assert losses.means() == {"loss": 1.5}


@pytest.mark.parametrize("first", [0, 1, 7, READ_EVERY, READ_EVERY + 1, 119])
def test_the_first_bad_batch_and_term_are_named(first: int) -> None:
    losses = LossTerms(2, Path("none"))
    good = torch.tensor(1.0)

    def epoch() -> None:
        for b in range(120):
            bad = {first: -INF, first + 1: NAN}.get(b, 2.0)
            losses.add({"ce": torch.tensor(bad), "loss": good, "other": torch.tensor(bad)})
        losses.means()

    with pytest.raises(LmdError, match=rf"'ce' is -inf in epoch 3, batch {first + 1}: .*no checkp"):
        epoch()


class Breaks(Stage):
    """A loss that is not a number in the 13th step; ``then`` is raised two steps later."""

    step_number: torch.Tensor

    def __init__(self, model: Model, then: Exception | None = None) -> None:
        super().__init__()
        self.model, self.then = model, then
        self.register_buffer("step_number", torch.zeros((), dtype=torch.long))

    def loss(self, *batches: Batch) -> Terms:
        self.step_number += 1
        if self.then is not None and self.step_number == 15:
            raise self.then
        logits = self.model(batches[0].views["label"])
        part = logits.square().mean() * (NAN if self.step_number == 13 else 1.0)
        return {"loss": logits.mean() + part, "square": part}


@pytest.mark.parametrize("then", [None, RuntimeError("not positive definite"), LmdError("broken")])
def test_a_non_finite_loss_stops_the_run_and_names_it(
    make_trainer: MakeTrainer, then: Exception | None
) -> None:
    """Also where a later step fails because of it."""

    def probe(model: Model, task: Task) -> Stages:
        yield Breaks(model, then)

    method = Method("probe", "Probe", probe, "none", ("one",))
    trainer = make_trainer(method, epochs=3, batch_size=2)
    with pytest.raises(LmdError, match=r"'loss' is nan in epoch 2, batch 2.*last good checkpoint"):
        trainer.fit()
    saved = Checkpoint.load(trainer.folder / "checkpoint" / "state.safetensors")
    assert saved is not None
    assert saved.progress.epoch == 1
    assert all(torch.isfinite(v).all() for v in saved.part("model").values())


def test_a_failing_step_without_a_bad_term_keeps_its_error(make_trainer: MakeTrainer) -> None:
    class Fails(Stage):
        def __init__(self, model: Model) -> None:
            super().__init__()
            self.model = model

        def loss(self, *batches: Batch) -> Terms:
            raise RuntimeError("of its own")

    def probe(model: Model, task: Task) -> Stages:
        yield Fails(model)

    with pytest.raises(RuntimeError, match="of its own"):
        make_trainer(Method("probe", "Probe", probe, "none", ("one",))).fit()


def test_terms_are_read_for_the_display_only_when_someone_watches() -> None:
    calls = []

    def terms() -> dict[str, float]:
        calls.append(1)
        return {"loss": 0.125}

    for console, expected in ((Console(quiet=True), 0), (Console(force_terminal=True), 1)):
        calls.clear()
        with Display(console, quiet=console.quiet) as display:
            display.start("stage", 1000)
            for done in range(1000):
                display.step(done, 1000, terms)
        assert len(calls) == expected
