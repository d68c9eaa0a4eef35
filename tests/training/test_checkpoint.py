"""Checkpoints that do not belong to the run are refused."""

import pytest
from toys import MakeTrainer

from lmd.base.errors import LmdError
from lmd.methods import METHODS


def test_a_checkpoint_of_another_method_is_refused(make_trainer: MakeTrainer) -> None:
    make_trainer(METHODS["ce"], epochs=1).fit()
    with pytest.raises(LmdError, match="another method"):
        make_trainer(METHODS["seesaw"], epochs=2).fit(resume=True)


def test_a_checkpoint_that_is_not_ours_is_refused(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(METHODS["ce"])
    (trainer.folder / "checkpoint" / "state.safetensors").write_bytes(b"\x80\x04pickle" * 9)
    with pytest.raises(LmdError, match="not a checkpoint"):
        trainer.fit(resume=True)
