"""Small real data and trainers that many tests share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmd.data.loaders import ImageSet, Normalise
from lmd.method import Method
from lmd.model import Model, build_model
from lmd.protocol import Protocol
from lmd.stage import Stages, Task
from lmd.training import Display, Trainer

SHARED = Path(__file__).parents[1].parent / "shared"


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("LMD_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def shared() -> Path:
    """The folder of real data beside the repository, or a skip that says so."""
    if not SHARED.exists():
        pytest.skip(f"no real data: {SHARED} is absent")
    return SHARED


def toy_images(counts: tuple[int, ...], size: int = 16, seed: int = 0) -> ImageSet:
    """Noise with a class-dependent colour: learnable in a few steps."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    colours = rng.integers(40, 215, (len(counts), 1, 1, 3))
    noise = rng.normal(0, 25, (len(labels), size, size, 3))
    return ImageSet(np.clip(colours[labels] + noise, 0, 255).astype(np.uint8), labels)


def write_npz(path: Path, counts: tuple[int, ...] = (16, 8, 4), size: int = 16) -> Path:
    """A data set in a file: training counts as given, 4 validation and 4 test images a class."""
    parts = {"train": counts, "val": (4,) * len(counts), "test": (4,) * len(counts)}
    arrays: dict[str, Any] = {}
    for seed, (name, of) in enumerate(parts.items()):
        images = toy_images(of, size, seed)
        arrays |= {f"{name}_images": images.pixels, f"{name}_labels": images.labels[:, None]}
    np.savez(path, **arrays)
    return path


MakeTrainer = Callable[..., Trainer]


@pytest.fixture
def make_trainer(tmp_path: Path) -> MakeTrainer:
    """``make_trainer(method, counts, **protocol)``: a trainer on toy images."""

    def make(
        method: Method,
        counts: tuple[int, ...] = (12, 6, 3, 1),
        *,
        folder: str = "run",
        settings: dict[str, Any] | None = None,
        wrap: Callable[[Stages], Stages] = lambda stages: stages,
        display: Display | None = None,
        **protocol: Any,
    ) -> Trainer:
        values = {"image_size": 16, "backbone": "resnet8", "weights": "none", "epochs": 2}
        values |= {"stage2_epochs": 2, "batch_size": 8, "workers": 0, **protocol}
        complete = Protocol(**values)
        torch.manual_seed(0)
        model, preprocessing = build_model(
            complete.backbone, complete.weights, len(counts), head=method.head, image_size=16
        )
        train = toy_images(counts)
        task = Task(torch.tensor(counts), model.classifier.in_features)
        own = method.settings(settings or {})
        cpu = torch.device("cpu")
        (tmp_path / folder / "checkpoint").mkdir(parents=True, exist_ok=True)
        return Trainer(
            model=model,
            stages=lambda: wrap(method.make(model, task, **own)),
            train=train,
            validation=toy_images((3,) * len(counts), seed=1),
            protocol=complete,
            normalise=Normalise.of(preprocessing.mean, preprocessing.std, cpu),
            folder=tmp_path / folder,
            device=cpu,
            display=display or Display(quiet=True),
        )

    return make


def weights_of(model: Model) -> dict[str, torch.Tensor]:
    """A copy of everything that a model ships."""
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    """Equal to the last bit."""
    assert a.keys() == b.keys()
    different = [k for k in a if not torch.equal(a[k], b[k])]
    assert not different, f"these differ: {different}"
