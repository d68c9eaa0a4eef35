"""VS loss: its scales (its values are in test_losses.py)."""

import torch
from toys import COUNTS

from lmd.methods.logit_adjustment import vs_scales


def test_vs_scales_are_the_recorded_ones() -> None:
    expected = torch.tensor([1.0, 1.3163822, 1.9952623, 2.6265278])
    torch.testing.assert_close(vs_scales(COUNTS, 0.3), expected)
