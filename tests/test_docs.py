"""Every page with Python is run by a test, and those that no other test runs are run here."""

import csv
import re
from pathlib import Path

import pytest
import torch
from documentation import blocks, page, run_python
from explained import LABELS, SETTINGS, skin, skin_run
from PIL import Image
from toys import ROOT, small_model

from lmd.methods.stage import Task
from lmd.methods.supervised import Supervised
from lmd.runs.folder import Run

QUICK = "\n".join(f"{key} = {str(value).lower() if isinstance(value, bool) else value!r}"
                  for key, value in SETTINGS.items())  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return skin_run(tmp_path_factory.mktemp("docs"))


@pytest.fixture
def place(trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the runs that the pages speak of."""
    (tmp_path / "runs").mkdir()
    for name in ("NAME", "skin-lmd-seed0"):
        (tmp_path / "runs" / name).symlink_to(trained.path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pages() -> list[str]:
    found = [path.name for path in sorted((ROOT / "docs").glob("*.md"))]
    return [name for name in (*found, "README.md") if blocks(name)]


@pytest.mark.parametrize("name", pages())
def test_every_page_with_python_is_run(name: str) -> None:
    tests = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    quoted = re.compile(rf"""(run_python|run_page|blocks|PAGE = ).*["']{re.escape(name)}["']""")
    assert any(quoted.search(text) for text in tests), f"no test runs the Python of {name}"


def test_external(place: Path) -> None:
    with (place / "clinic.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "label"])
        for k, label in enumerate(LABELS):
            for i, pixels in enumerate(skin(label, 3, 700)):
                Image.fromarray(pixels).save(f"{k}-{i}.png")
                rows.writerow([f"{k}-{i}.png", k])
    found = run_python("external.md")
    assert found["there"].path == Path("runs/run-on-clinic")
    assert found["external"].classes[0].here == pytest.approx(1 / 3)


def test_model_card(place: Path, trained: Run) -> None:
    found = run_python("model-card.md")
    assert found["html"] == (trained.path / "model-card.html").read_text("utf-8")


def test_record(place: Path, trained: Run) -> None:
    assert run_python("record.md")["record"] == trained.record


def test_design(place: Path) -> None:
    method = run_python("design.md", {"Supervised": Supervised})["decoupling"]
    model = small_model()
    stages = list(method(model, Task(torch.tensor([4, 2, 1]), 16)))
    assert [type(stage) for stage in stages] == [Supervised, Supervised]
    assert stages[1].part is model.classifier


def test_readme(place: Path, trained: Run) -> None:
    (place / "quick.toml").write_text(QUICK)
    (place / "new").mkdir()
    for i in (1, 2):
        Image.fromarray(skin(0, 1, i)[0]).save(place / "new" / f"{i}.jpg")
    data = str(trained.path.parent / "skin.npz")
    replaced = {'"FOLDER"': repr(data), '"small"': '"quick.toml"', 'method="lmd"': 'method="ce"'}
    found = run_python("README.md", replaced=replaced)
    assert found["run"].record.status == "finished"
    assert "lmd.load(run).predict" in page("README.md")
