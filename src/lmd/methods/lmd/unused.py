"""Which settings of LMD have no effect because the part that they belong to is off."""

from collections.abc import Mapping
from typing import Any

from lmd.methods.lmd.rrl import RRLSettings

# Without RRL, stage 1 is its label loss alone.
_LABEL_LOSS = {"tau", "ce_view", "ce_sampling", "average", "sam"}
_RRL = tuple(RRLSettings.model_fields.keys() - _LABEL_LOSS)
_FDC = ("lambda_e", "fdc_form", "fdc_temperature", "fdc_sign", "distance")
# Without ICC there is one M step and no E step, so moments are never averaged either.
_ICC = (
    *("iterations", "virtual_moments", "moments_decay", "e_sampling", "e_tau", "e_statistics"),
    *("label_loss", "label_gradient", "fdc", *_FDC),
    *("encoder_lr", "encoder_weight_decay", "last_e_step"),
)
_NEEDS: tuple[tuple[str, object, tuple[str, ...]], ...] = (
    ("rrl", True, _RRL),
    ("rrl", False, ("average",)),
    ("icc", True, _ICC),
    ("fdc", True, _FDC),
    ("fdc_form", "bounded", ("fdc_temperature",)),
    ("fdc_form", "difference", ("fdc_sign", "distance")),
    ("vfc", True, ("virtual_features", "virtual_moments", "shrinkage")),
    ("m_step", "argmin", ("shrinkage", "weight_penalty")),
    ("m_step", "sgd", ("m_lr", "m_momentum", "m_weight_decay", "m_batch")),
)


def unused(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings without effect, each with those that it needs."""
    found: dict[str, dict[str, Any]] = {}
    for switch, value, names in _NEEDS:
        if settings[switch] != value:
            for name in names:
                found.setdefault(name, {})[switch] = value
    return found
