"""Settings of parts of LMD that are off: none of them changes anything, and each says so."""

import pytest
import torch
from toys import World, assert_same, weights_of

from lmd.methods import METHODS
from lmd.methods.lmd.vfc import DRAWS

LMD = METHODS["lmd"]
QUICK = {"virtual_features": 40, "shrinkage": 0.5, "weight_penalty": 0.01}
# A value of each setting that is neither the default nor that of QUICK.
OTHER = {
    **{"warmup": 0.7, "gram": "raw", "centre": True, "channel_divisor": "samples"},
    **{"kl": "student_teacher", "lambda_1": 3.0, "relations": 0.3, "probabilities": 0.2},
    **{"teacher": "own", "ema_horizon": None, "ema_decay": 0.5, "ema_ramp": False},
    **{"keep": "teacher", "iterations": 3, "virtual_moments": "raw", "moments_decay": 0.9},
    **{"e_sampling": "balanced", "e_tau": 0.3, "e_statistics": True, "label_loss": "gce"},
    **{"label_gradient": False, "fdc": True, "lambda_e": 5.0, "fdc_form": "difference"},
    **{"fdc_temperature": 3.0, "fdc_sign": -1, "distance": "literal", "encoder_lr": 0.5},
    **{"encoder_weight_decay": 0.1, "last_e_step": True, "virtual_features": 77},
    **{"shrinkage": 0.3, "weight_penalty": 0.5, "m_lr": 1.0, "m_momentum": 0.1},
    **{"m_weight_decay": 0.1, "m_batch": 5, "average": 0.5},
}
PARTS = [
    {},
    {"rrl": True},
    {"icc": True},
    {"icc": True, "fdc": True},
    {"icc": True, "fdc": True, "fdc_form": "difference"},
    {"vfc": False},
    {"m_step": "sgd"},
]


def trained(settings: dict[str, object]) -> dict[str, torch.Tensor]:
    world = World([9, 4, 2])
    for stage in world.start("lmd", **settings):
        world.train_stage(stage)
    return weights_of(world.model)


@pytest.mark.parametrize("parts", PARTS)
def test_unused_settings_change_nothing(parts: dict[str, object]) -> None:
    settings = LMD.settings({**QUICK, **parts})
    idle = LMD.unused(settings)
    assert all(settings[name] != OTHER[name] for name in idle)
    assert_same(trained(settings), trained(settings | {name: OTHER[name] for name in idle}))


@pytest.mark.parametrize("switch", ["rrl", "icc", "fdc", "m_step=sgd"])
def test_the_description_names_the_part(switch: str) -> None:
    needing = {
        name
        for name, needs in LMD.unused(LMD.settings()).items()
        if switch.partition("=")[0] in needs
    }
    begins = {one.name: one.description.partition(":")[0] for one in LMD.describe()}
    words = {name: text.replace(",", "").split() for name, text in begins.items()}
    assert {name for name, said in words.items() if said[0] == "With" and switch in said} == needing


def test_with_all_its_parts_only_what_belongs_to_another_kind_is_unused() -> None:
    settings = LMD.settings({}, "corrected")
    assert LMD.unused(settings) == {
        "average": {"rrl": False},
        "fdc_temperature": {"fdc_form": "bounded"},
        **{name: {"m_step": "sgd"} for name in ("m_lr", "m_momentum", "m_weight_decay", "m_batch")},
    }


def test_more_virtual_features_than_draws_are_the_same_run() -> None:
    known = {setting.name: setting.description for setting in LMD.describe()}
    assert f"argmin: at most {DRAWS}" in known["virtual_features"]
    runs = [trained({**QUICK, "virtual_features": r}) for r in (100, DRAWS, 10_000, 50_000)]
    assert_same(runs[1], runs[2])
    assert_same(runs[2], runs[3])
    assert not torch.equal(runs[0]["classifier.weight"], runs[1]["classifier.weight"])
