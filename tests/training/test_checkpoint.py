"""Checkpoints that do not belong to the run are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from toys import MakeTrainer, small_model

from lmd.base.errors import LmdError
from lmd.methods import METHODS
from lmd.methods.supervised import Supervised
from lmd.training.checkpoint import Checkpoint, Progress, digest


def test_a_checkpoint_of_another_method_is_refused(make_trainer: MakeTrainer) -> None:
    make_trainer(METHODS["ce"], epochs=1).fit()
    with pytest.raises(LmdError, match="another method"):
        make_trainer(METHODS["seesaw"], epochs=2).fit(resume=True)


def test_a_checkpoint_that_is_not_ours_is_refused(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(METHODS["ce"])
    (trainer.folder / "checkpoint" / "state.safetensors").write_bytes(b"\x80\x04pickle" * 9)
    with pytest.raises(LmdError, match="not a checkpoint"):
        trainer.fit(resume=True)


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Change the tensors and the payload of a checkpoint."""
    with safe_open(path, framework="pt") as file:
        payload = json.loads(file.metadata()["lmd"])
        tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
    change(tensors, payload)
    payload.pop("sha256")
    payload["sha256"] = digest(payload, tensors)
    save_file(tensors, path, metadata={"lmd": json.dumps(payload)})


def test_changed_bytes_never_give_other_weights(make_trainer: MakeTrainer) -> None:
    make_trainer(METHODS["ce"], epochs=1).fit()
    path = make_trainer(METHODS["ce"]).folder / "checkpoint" / "state.safetensors"
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")  # of the tensors, which have no checks
    for at in range(start, len(whole), (len(whole) - start) // 20):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(LmdError, match="is damaged: its checksum") as caught:
            Checkpoint.load(path)
        assert "remove it to train" in str(caught.value)
    path.write_bytes(whole)
    assert Checkpoint.load(path) is not None


def test_the_same_state_gives_the_same_bytes(tmp_path: Path) -> None:
    model, stage = small_model(), Supervised(small_model())
    progress = Progress(
        run="run", stage=0, epoch=1, best_score=0.5, history=[], stages=[], timings={},
        val_recall=[0.5],
    )  # fmt: skip
    paths = [tmp_path / f"{i}.safetensors" for i in range(6)]
    for path in paths:
        Checkpoint.save(path, model, stage, None, None, progress)
    assert len({path.read_bytes() for path in paths}) == 1


WEIGHT = "model.classifier.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda _t, p: p.pop("progress"), "field 'progress': Input should be"),
        (lambda _t, p: p["progress"].pop("epoch"), "field 'progress.epoch': Field required"),
        (lambda _t, p: p["progress"].update(epoch="two"), r"field 'progress\.epoch'"),
        (lambda _t, p: p["progress"].update(history=3), r"field 'progress\.history'"),
        (lambda _t, p: p.pop("optimizer"), "field 'optimizer' must be an object"),
        (lambda _t, p: p.update(format=1), "not a checkpoint of this version"),
        (lambda t, _p: t.pop(WEIGHT), r"of model it lacks \[classifier\.weight\]"),
        (lambda t, _p: t.update({"model.more": torch.ones(1)}), r"and has \[more\]"),
        (lambda t, _p: t.update({WEIGHT: torch.ones(2, 2)}), r"weight is torch.float32 \(2, 2\)"),
        (lambda t, _p: t.update({WEIGHT: t[WEIGHT].half()}), "is torch.float16"),
        (lambda t, _p: t.update({"optimizer.9999.x": torch.ones(1)}), "fits no parameter"),
        (lambda t, _p: t.update({"optimizer.a.b": torch.ones(1)}), "fits no parameter"),
    ],
)
def test_a_damaged_checkpoint_is_one_line(
    make_trainer: MakeTrainer, change: Any, words: str
) -> None:
    make_trainer(METHODS["ce"], epochs=1).fit()
    trainer = make_trainer(METHODS["ce"], epochs=2)
    path = trainer.folder / "checkpoint" / "state.safetensors"
    rewrite(path, change)
    with pytest.raises(LmdError, match=words) as caught:
        trainer.fit(resume=True)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "remove it to train" in str(caught.value)
