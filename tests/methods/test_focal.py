"""Focal loss: the slope of a sure prediction (its values are in test_losses.py)."""

import pytest
import torch
from toys import gradient

from lmd.methods.focal import focal_loss


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_slope_of_a_sure_prediction_is_zero_and_not_nan(gamma: float) -> None:
    # 1 - p_y rounds to 0 here, where the slope of its square root is infinite.
    logits = torch.tensor([[40.0, 0.0]], requires_grad=True)
    loss = focal_loss(logits, torch.tensor([0]), gamma)
    torch.testing.assert_close(gradient(loss, logits), torch.zeros(1, 2))
