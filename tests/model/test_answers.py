"""The prior and the validation probabilities in ``model.json``: kept and checked."""

import dataclasses
import json
from pathlib import Path

import pytest

from lmd.base.errors import LmdError
from lmd.model import build_model
from lmd.model.files import HeldOut, ModelSpec, Prior, load_model, save_model

PRIOR = Prior("training", (0.7, 0.2, 0.1))
HELD_OUT = HeldOut(("head", "medium", "tail"), ((0.25, 0.5), (0.1,), ()))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model, preprocessing = build_model("resnet8", "none", 3, "linear", image_size=16, seed=0)
    width = model.classifier.in_features
    spec = ModelSpec(
        ("a", "[1,\n2]", "c"), "resnet8", "linear", width, preprocessing, "CE", (7, 2, 1)
    )
    save_model(model, tmp_path, spec)
    return tmp_path


def edit(folder: Path, **changes: object) -> None:
    path = folder / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_they_are_in_the_file(saved: Path) -> None:
    model, spec = load_model(saved)
    assert spec.prior is None
    assert spec.held_out is None
    save_model(model, saved, dataclasses.replace(spec, prior=PRIOR, held_out=HELD_OUT))
    found = load_model(saved)[1]
    assert found == dataclasses.replace(spec, prior=PRIOR, held_out=HELD_OUT)
    text = (saved / "model.json").read_text(encoding="utf-8")
    assert "[ 0.25, 0.5 ]" in text  # on one line
    assert found.classes[1] == "[1,\n2]"  # and no name is touched


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prior": {"kind": "uniform", "shares": [0.5, 0.5]}}, "prior.shares has 2 entries for 3"),
        ({"prior": {"kind": "flat", "shares": [0.4, 0.3, 0.3]}}, "prior.kind"),
        ({"prior": {"kind": "uniform", "shares": [0.4, 0.4, 0.4]}}, "must sum to 1"),
        ({"prior": {"kind": "uniform", "shares": [0.5, 0.5, 0.0]}}, "greater than 0"),
        ({"held_out": {"tiers": ["head"] * 3, "probabilities": [[]]}}, "has 1 entries for 3"),
        (
            {"held_out": {"tiers": ["head"] * 3, "probabilities": [[0.5, 0.2], [], []]}},
            "must be sorted",
        ),
        ({"held_out": {"tiers": ["head"] * 3, "probabilities": [[1.5], [], []]}}, "less than or"),
    ],
)
def test_damage_is_named(saved: Path, changes: dict[str, object], words: str) -> None:
    edit(saved, **changes)
    with pytest.raises(LmdError, match=r"model\.json is not valid") as error:
        load_model(saved)
    assert words in str(error.value)
