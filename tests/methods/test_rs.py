"""RS: how often each class is drawn."""

import torch
from toys import World


def test_rs_draws_every_class_alike_even_one_of_one_image() -> None:
    world = World([97, 2, 1])
    (stage,) = world.start("rs")
    (weights,) = stage.class_weights(world.at())
    assert weights is not None
    labels = world.train[1]
    generator = torch.Generator().manual_seed(1)
    drawn = torch.multinomial(weights[labels], 30000, True, generator=generator)
    share = torch.bincount(labels[drawn]) / 30000
    torch.testing.assert_close(share, torch.full((3,), 1 / 3), atol=0.015, rtol=0)
