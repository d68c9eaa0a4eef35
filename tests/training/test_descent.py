"""The optimiser and the schedule of the learning rate."""

import numpy as np
import pytest
from toys import MakeTrainer

from lmd.methods import METHODS
from lmd.protocol import Protocol


def test_row_08_optimiser_of_stage_1_is_the_released_codes() -> None:
    protocol = Protocol()
    assert (protocol.lr, protocol.momentum, protocol.weight_decay) == (0.01, 0.9, 0.0)
    assert (protocol.schedule, protocol.epochs, protocol.batch_size) == ("constant", 100, 128)


def test_cosine_schedule_reaches_zero_and_constant_stays(make_trainer: MakeTrainer) -> None:
    for schedule, last in (
        ("constant", 0.01),
        ("cosine", 0.01 * 0.5 * (1 + np.cos(np.pi * 2 / 3))),
    ):
        trainer = make_trainer(METHODS["ce"], folder=schedule, epochs=3, schedule=schedule)
        trainer.fit()
        assert trainer.history[-1]["lr"] == pytest.approx(last)
