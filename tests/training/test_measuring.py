"""Small tools of the loop."""

import torch

from lmd.training.loop import evaluating


def test_evaluating_puts_every_mode_back() -> None:
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Dropout())
    module[1].eval()
    with evaluating(module):
        assert not any(m.training for m in module.modules())
    assert [m.training for m in module.modules()] == [True, True, False]
