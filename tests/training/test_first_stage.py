"""A first stage that runs have in common is trained once, and nothing else changes."""

from functools import partial
from pathlib import Path
from threading import Thread

import pytest
from grids import bytes_of, quiet_board, write_grid
from toys import MakeTrainer, assert_same, quick, weights_of

from lmd.base.files import waiting_for
from lmd.benchmark.backends import Local, first_stages
from lmd.benchmark.planning import plan_grid
from lmd.benchmark.run import run_plan
from lmd.methods import METHODS
from lmd.methods.method import Method
from lmd.methods.stage import Stages, Task
from lmd.methods.supervised import Supervised
from lmd.runs.folder import Run
from lmd.training.checkpoint import FirstStages
from lmd.training.loop import Trainer

ALIKE = {
    "ce": ["decoupling", "tau_norm", "lws", "ncm", "fs_crt", "logit_adjust_posthoc"],
    "rs_strong": ["lmd"],
    "lmd": ["lmd_wo_vfc", "lmd_wo_levels", "lmd_with_icc"],
}
PAIRS = [(first, other) for first, others in ALIKE.items() for other in others]


def trained(
    make_trainer: MakeTrainer, key: str, folder: str, shared: FirstStages | None, **protocol: object
) -> Trainer:
    trainer = make_trainer(
        METHODS[key], folder=folder, settings=quick(key), first_stages=shared, **protocol
    )
    trainer.fit()
    return trainer


@pytest.mark.parametrize(("first", "other"), PAIRS)
def test_a_stage_taken_over_leads_to_the_same_weights(
    first: str, other: str, make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    shared = FirstStages(tmp_path / "shared", {"data": 1})
    assert trained(make_trainer, first, first, shared).progress.taken_from is None
    alone = trained(make_trainer, other, "alone", None)
    taking = trained(make_trainer, other, other, shared)
    assert taking.progress.taken_from == first
    assert_same(weights_of(taking.model), weights_of(alone.model))
    for row in (*alone.progress.history, *taking.progress.history):
        del row["seconds"]
    assert taking.progress.history == alone.progress.history
    assert len(list(shared.folder.glob("*.safetensors"))) == 1


def test_a_run_waits_for_the_one_that_trains_its_first_stage(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    shared = FirstStages(tmp_path / "shared", {})
    first = make_trainer(METHODS["ce"], folder="ce", first_stages=shared)
    other = make_trainer(METHODS["decoupling"], folder="crt", first_stages=shared)
    place = shared.place(next(first.stages()), first.model)
    assert place is not None
    with waiting_for(place.with_suffix(".lock")):
        waiting = Thread(target=other.fit)
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        assert other.progress.history == []
        trained(make_trainer, "ce", "elsewhere", None)
        shared.keep(tmp_path / "elsewhere" / "checkpoint" / "state.safetensors", place)
    waiting.join(60)
    assert other.progress.taken_from == "elsewhere"


def test_resuming_remembers_where_stage_1_came_from(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    shared = FirstStages(tmp_path / "shared", {})
    trained(make_trainer, "ce", "ce", shared)
    trained(make_trainer, "decoupling", "crt", shared)
    again = make_trainer(METHODS["decoupling"], folder="crt", first_stages=shared)
    again.fit(resume=True)
    assert again.progress.taken_from == "ce"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ce", {}, {}), ("rs", {}, {})),
        (("ce", {}, {}), ("ce_strong", {}, {})),
        (("ce", {}, {}), ("focal", {}, {})),
        (("focal", {"gamma": 1.0}, {}), ("focal", {"gamma": 2.0}, {})),
        (("ldam_rs", {}, {}), ("ldam_drw", {}, {})),
        (("lmd_with_rrl", {"lambda_1": 1.0}, {}), ("lmd_with_rrl", {"lambda_1": 2.0}, {})),
        (("lmd_with_rrl", {"teacher": "copy"}, {}), ("lmd_with_rrl", {"teacher": "own"}, {})),
        (("lmd", {}, {}), ("lmd_with_rrl", {}, {})),
        (("lmd", {}, {}), ("lmd", {"tau": 1.0}, {})),
        (("lmd", {}, {}), ("lmd", {"sam": 0.1}, {})),
        (("ce", {}, {"backbone": "resnet8"}), ("ce", {}, {"backbone": "resnet18"})),
    ],
)
def test_stages_that_differ_are_told_apart(
    one: tuple[str, dict, dict],  # type: ignore[type-arg]
    other: tuple[str, dict, dict],  # type: ignore[type-arg]
    make_trainer: MakeTrainer,
    tmp_path: Path,
) -> None:
    shared = FirstStages(tmp_path / "shared", {})
    places = []
    for key, settings, protocol in (one, other):
        trainer = make_trainer(METHODS[key], settings=settings, **protocol)
        places.append(shared.place(next(trainer.stages()), trainer.model))
    assert None not in places
    assert places[0] != places[1]


def test_other_data_or_protocol_have_other_stages(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    trainer = make_trainer(METHODS["ce"])
    stage = next(trainer.stages())
    places = {
        FirstStages(tmp_path, context).place(stage, trainer.model)
        for context in ({"lr": 0.1}, {"lr": 0.2}, {"data": "a"})
    }
    assert len(places) == 3


def test_a_stage_that_cannot_be_described_is_trained_alone(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    def make(model: object, task: Task) -> Stages:
        yield Supervised(model, lambda logits, labels: logits.square().mean())  # type: ignore[arg-type]

    shared = FirstStages(tmp_path / "shared", {})
    method = Method("own", "Own", make, "", ("own",))
    for folder in ("a", "b"):
        trainer = make_trainer(method, folder=folder, first_stages=shared)
        trainer.fit()
        assert trainer.progress.taken_from is None
    assert not shared.folder.exists()


GRID = """
methods = ["ce", "decoupling", "rs", "lmd", "lmd_wo_icc"]
profile = "corrected"
PROTOCOL
[settings]
virtual_features = 200
stage2_epochs = 2
"""


def test_a_grid_trains_common_first_stages_once_with_the_same_result(tmp_path: Path) -> None:
    grid = write_grid(tmp_path, GRID, epochs=2)
    plan = plan_grid(grid)
    for share in (True, False):
        folder = tmp_path / str(share)
        folder.mkdir()
        start = partial(Local, folder, 2, share=share)
        outcome = run_plan(plan, folder, start, quiet_board())
        assert not outcome.failed
        assert not first_stages(folder).exists()
    sources = {}
    for run in plan.runs:
        assert bytes_of(tmp_path / "True" / run.name) == bytes_of(tmp_path / "False" / run.name)
        record = Run(tmp_path / "True" / run.name).record
        sources[run.method] = record.stage_1_from
        alone = Run(tmp_path / "False" / run.name).record
        assert alone.stage_1_from is None
        # What is known of a stage does not depend on who trained it.
        for mine, other in zip(record.stages, alone.stages, strict=True):
            assert mine.model_dump(exclude={"seconds"}) == other.model_dump(exclude={"seconds"})
            assert mine.seconds > 0
        assert record.method.chosen == alone.method.chosen
        assert [row["epoch"] for row in record.history] == [row["epoch"] for row in alone.history]
    assert sources == {
        "ce": None,
        "decoupling": "ce-seed0",
        "rs": None,
        "lmd": sources["lmd"],
        "lmd_wo_icc": sources["lmd_wo_icc"],
    }
    # Whichever of the two was first, the other took over from it.
    assert {sources["lmd"], sources["lmd_wo_icc"]} in (
        {None, "lmd-corrected-seed0"},
        {None, "lmd_wo_icc-corrected-seed0"},
    )


def test_one_run_of_every_kind_of_first_stage_comes_first(tmp_path: Path) -> None:
    plan = plan_grid(write_grid(tmp_path, 'methods = ["ce", "decoupling", "lmd"]\nPROTOCOL\n'))
    assert [run.method for run in plan.runs] == ["ce", "lmd", "decoupling"]
    assert [row.key for row in plan.rows] == ["ce", "decoupling", "lmd"]


def test_a_benchmark_of_two_rows_shares_their_first_stage(tmp_path: Path) -> None:
    grid = write_grid(tmp_path, 'methods = ["rs_strong", "lmd"]\nPROTOCOL\n')
    plan, out = plan_grid(grid), tmp_path / "out"
    out.mkdir()
    assert not run_plan(plan, out, lambda: Local(out, 1), quiet_board()).failed
    assert Run.open(out / "lmd-seed0").record.stage_1_from == "rs_strong-seed0"
