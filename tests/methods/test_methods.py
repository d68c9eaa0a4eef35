"""The table of methods: its order and roles, and what many rows have in common."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from toys import ROOT, FakeEpoch, World, optimise

from lmd.base.errors import LmdError
from lmd.methods import DEFAULT, DEMO, METHODS, PAPER, find_method, in_paper_order, related
from lmd.methods.stage import Batch, Stage, Task, prepare
from lmd.model import CosineClassifier, Model

ONE_STAGE = (
    *("rs", "focal", "cb_focal", "ldam_rs", "ldam_drw", "seesaw", "bal_mixup"),
    *("seesaw_norm", "balanced_softmax", "balanced_softmax_ema", "logit_adjust_posthoc", "vs_loss"),
)
# LMD solves for its classifier: it moves without an optimiser.
WHOLE = [key for key in METHODS if METHODS[key].family != "lmd"]
WIDTH = 16


def test_rows_of_the_paper_stand_in_its_order_and_others_before_lmd() -> None:
    keys = [method.key for method in in_paper_order(["lmd", "vs_loss", "lmd_wo_fdc", "ce", "ncm"])]
    assert keys == ["ce", "vs_loss", "ncm", "lmd_wo_fdc", "lmd"]
    assert {*PAPER, DEFAULT, *DEMO} <= set(METHODS)
    assert [m.key for m in in_paper_order(reversed(PAPER))] == list(PAPER)
    with pytest.raises(LmdError, match="unknown method 'nonsense'; choose one of ce, ce_strong"):
        find_method("nonsense")


def test_the_class_mix_of_a_row_is_that_of_its_training() -> None:
    found = {key for key, row in METHODS.items() if row.mix({}) == "training"}
    assert found == {"ce", "ce_strong", "focal", "bal_mixup", "fs", "fs_crt"}


def test_an_ablation_is_related_to_its_method() -> None:
    own = [key for key in METHODS if related(key, "lmd")]
    pieces = ("rrl", "icc", "vfc", "fdc", "levels", "views", "shrunk_means", "strong")
    without = [f"lmd_wo_{piece}" for piece in pieces]
    assert own == ["lmd", *without, "lmd_with_rrl", "lmd_with_icc"]
    assert [key for key in METHODS if related(key, "ldam_rs")] == ["ldam_rs"]


@dataclass
class Data:
    """Separable images ``(N, 3, 4, 4)``: each class has its own mean."""

    counts: list[int]
    images: Tensor = field(init=False)
    labels: Tensor = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        centres = 3 * torch.randn(len(self.counts), 3, 4, 4, generator=generator)
        self.labels = torch.repeat_interleave(
            torch.arange(len(self.counts)), torch.tensor(self.counts)
        )
        noise = torch.randn(len(self.labels), 3, 4, 4, generator=generator)
        self.images = centres[self.labels] + 0.3 * noise


def build(classes: int, head: str = "linear") -> Model:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(48, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())
    classifier = (
        CosineClassifier(WIDTH, classes, scale=1.0)
        if head == "cosine"
        else nn.Linear(WIDTH, classes)
    )
    return Model(encoder, classifier)


def draw_batches(data: Data, stage: Stage, epoch: FakeEpoch, size: int) -> list[list[Batch]]:
    streams = []
    for weights in stage.class_weights(epoch):
        n = len(data.labels)
        if weights is None:
            order = torch.randperm(n, generator=epoch.generator)
        else:
            order = torch.multinomial(weights[data.labels], n, True, generator=epoch.generator)
        cuts = [c for c in order.split(size) if len(c) > 1]
        streams.append([Batch({"label": data.images[c]}, data.labels[c]) for c in cuts])
    return [list(batches) for batches in zip(*streams, strict=True)]


def train(key: str, counts: list[int], size: int) -> tuple[Model, Data]:
    model, data = build(len(counts), METHODS[key].head), Data(counts)
    for stage in METHODS[key].start(model, Task(torch.tensor(counts), WIDTH), {}):
        groups = prepare(stage)
        optimizer = SGD(groups, lr=0.02, momentum=0.9) if groups else None
        length = stage.epochs or 40
        for index in range(length):
            epoch = FakeEpoch(model, data.images, data.labels, index=index, total=length)
            stage.start_epoch(epoch)
            for batches in draw_batches(data, stage, epoch, size):
                assert optimizer is not None
                assert stage.step(optimizer, *batches)["loss"].isfinite()
    return model.eval(), data


def recalls(model: Model, data: Data) -> list[float]:
    with torch.no_grad():
        hits = (model(data.images).argmax(1) == data.labels).float()
    return [hits[data.labels == k].mean().item() for k in range(len(data.counts))]


@pytest.mark.parametrize("key", ONE_STAGE)
# Two classes, one image in a class, and batches with fewer images than classes.
@pytest.mark.parametrize(("counts", "size"), [([30, 1], 8), ([24, 8, 3, 2, 2, 1], 4)])
def test_one_stage_learns_separable_classes(key: str, counts: list[int], size: int) -> None:
    model, data = train(key, counts, size)
    found = recalls(model, data)
    assert sum(found) / len(found) > 0.95
    with torch.no_grad():
        probabilities = model(data.images).softmax(1)
    assert probabilities.isfinite().all()


@pytest.mark.parametrize("key", ONE_STAGE)
def test_the_first_stage_gives_each_parameter_a_gradient(key: str) -> None:
    model, data = build(3, METHODS[key].head), Data([20, 6, 1])
    stage = next(METHODS[key].start(model, Task(torch.tensor([20, 6, 1]), WIDTH), {}))
    prepare(stage)
    epoch = FakeEpoch(model, data.images, data.labels)
    stage.start_epoch(epoch)
    stage.loss(*draw_batches(data, stage, epoch, 27)[0])["loss"].backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        if name != "encoder.1.bias":  # BatchNorm takes this one's effect away
            assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize(
    "key", ["focal", "cb_focal", "seesaw", "balanced_softmax", "seesaw_norm", "vs_loss"]
)
def test_a_loss_that_balances_draws_images_as_they_come(key: str) -> None:
    world = World([9, 1])
    (stage,) = world.start(key)
    assert stage.class_weights(world.at()) == [None]


@pytest.mark.parametrize("key", WHOLE)
def test_only_what_is_trainable_moves(key):
    world = World([14, 5, 3, 2, 1, 1])
    for stage in world.start(key):
        if type(stage).__name__ == "Statistics":
            continue  # it moves BatchNorm's statistics alone (test_cicl.py)
        optimizer = optimise(stage)
        stage.start_epoch(world.at(0))
        before = {n: p.detach().clone() for n, p in stage.named_parameters()}
        trained = {
            id(p) for g in (optimizer.param_groups if optimizer else []) for p in g["params"]
        }
        for batches in world.batches(stage, stage.class_weights(world.at(0))):
            stage.step(optimizer, *batches)
        for name, p in stage.named_parameters():
            if name.startswith("average."):
                continue  # it follows what is trained (test_averaging.py)
            assert (id(p) in trained) != torch.equal(p, before[name]), name


def test_the_page_on_fairness_has_every_row_once() -> None:
    page = (ROOT / "docs" / "fairness.md").read_text(encoding="utf-8")
    firsts = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    keys = [key for first in firsts for key in re.findall(r"`(\w+)`", first)]
    assert sorted(keys) == sorted(METHODS)
    count = (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8")
    assert f'or "all" ({len(METHODS)};' in count


def test_no_method_is_named_outside_methods() -> None:
    """Order and roles are in ``lmd.methods``; ``frozen`` says whose formulas its candidates are.

    The package's own name is allowed as such.
    """
    found = []
    for path in sorted((ROOT / "src" / "lmd").rglob("*.py")):
        if not {"methods", "frozen"} & set(path.parts):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found += [f"{path.name}: {key}" for key in named(tree) if key in METHODS]
    assert found == []


def named(tree: ast.AST) -> Iterator[str]:
    """Strings of a module; ``"lmd"`` only as a default, an index, or one of several names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != "lmd":
            yield node.value
        places: list[Any] = []
        if isinstance(node, ast.arguments):
            places = [*node.defaults, *node.kw_defaults]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            places = [node.value]
        elif isinstance(node, ast.Subscript):
            places = [node.slice]
        elif isinstance(node, ast.Tuple) and all(isinstance(e, ast.Constant) for e in node.elts):
            places = list(node.elts)
        yield from (p.value for p in places if isinstance(p, ast.Constant) and p.value == "lmd")
