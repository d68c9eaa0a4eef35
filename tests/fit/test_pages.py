"""The Python of docs/small-data.md and docs/integrations.md runs as it is printed."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from toys import ROOT, toy_images

from lmd.runs.folder import Run

# What is quick enough for a test; the pages say "small" and "lmd".
QUICK = """
backbone = "resnet8"
weights = "none"
image_size = 16
epochs = 1
stage2_epochs = 1
batch_size = 8
workers = 0
[methods.lmd]
virtual_features = 200
"""


@pytest.fixture
def skin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str]]:
    """A folder of images in the working folder: their paths and labels."""
    images = toy_images((12, 8, 6))
    names = np.array(["nevus", "melanoma", "keratosis"])[images.labels]
    paths = []
    for i, (pixels, name) in enumerate(zip(images.pixels, names, strict=True)):
        number = i - int(np.argmax(names == name)) + 1
        path = tmp_path / "skin" / name / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        paths.append(str(path))
    (tmp_path / "quick.toml").write_text(QUICK)
    monkeypatch.chdir(tmp_path)
    return paths, names.tolist()


def run_page(name: str, names: dict[str, Any]) -> dict[str, Any]:
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    code = "\n".join(blocks).replace('"small"', '"quick.toml"')
    assert code.count("quick.toml") >= 1
    exec(compile(code, name, "exec"), names)
    return names


def test_small_data(skin: tuple[list[str], list[str]]) -> None:
    found = run_page("small-data.md", {})
    record = Run.open(Path("runs/cv")).record
    assert found["record"] == record
    assert record.data.counts["test"] == [6, 8, 12]


@pytest.mark.filterwarnings("default")
def test_integrations(skin: tuple[list[str], list[str]]) -> None:
    paths, labels = skin
    found = run_page("integrations.md", {"paths": paths, "labels": labels})
    assert found["classifier"].classes_.tolist() == ["keratosis", "melanoma", "nevus"]
    assert list(Path("runs/logged/tensorboard").glob("events.*"))
    assert Path("model/model.json").is_file()
