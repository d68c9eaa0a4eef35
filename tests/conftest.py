"""Small real data and trainers that many tests share."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import SHARED, VECTORS, MakeTrainer, toy_images

from lmd.base.progress import Display
from lmd.methods.method import Method
from lmd.methods.stage import Stages, Task
from lmd.model import Normalise, build_model
from lmd.runs.protocol import Protocol
from lmd.training.checkpoint import FirstStages
from lmd.training.loop import Trainer

collect_ignore = ["campaign"]  # takes long: `make campaign`


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


@pytest.fixture(scope="session")
def vectors() -> dict[str, Any]:
    """Reference numbers of formulas, made apart from this code."""
    found: dict[str, Any] = json.loads(VECTORS.read_text(encoding="utf-8"))["vectors"]
    return found


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
        first_stages: FirstStages | None = None,
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
        cpu = torch.device("cpu")
        (tmp_path / folder / "checkpoint").mkdir(parents=True, exist_ok=True)
        return Trainer(
            model=model,
            stages=lambda: wrap(method.start(model, task, settings or {})),
            train=train,
            validation=toy_images((3,) * len(counts), seed=1),
            protocol=complete,
            normalise=Normalise(preprocessing.mean, preprocessing.std, cpu),
            folder=tmp_path / folder,
            device=cpu,
            display=display or Display(quiet=True),
            first_stages=first_stages,
        )

    return make


@pytest.fixture
def unlistable(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """``unlistable(folder)``: nobody may list it; root may list anything, so the call fails."""
    closed: list[Path] = []
    listing = {"scandir": os.scandir, "listdir": os.listdir}

    def close(folder: Path) -> None:
        closed.append(folder)
        if os.geteuid() != 0:
            folder.chmod(0o300)

    def refusing(name: str) -> Callable[[Any], Any]:
        def call(folder: Any = ".") -> Any:
            if Path(folder) in closed:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
            return listing[name](folder)

        return call

    for name in listing:
        monkeypatch.setattr(os, name, refusing(name))
    return close
