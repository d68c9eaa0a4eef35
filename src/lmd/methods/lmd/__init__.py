"""LMD: Relation-aware Representation Learning, then Iterative Classifier Calibration.

It has three profiles: the default is the paper's method with its slips corrected, ``paper`` follows
the equations to the letter, and ``official`` behaves like the released code. Each difference is a
setting, with the number of its row in ``docs/paper-vs-code.md``.
"""

from typing import Annotated, Any

from lmd.contract.method import Method
from lmd.contract.stage import Stages, Task
from lmd.contract.supervised import Supervised
from lmd.methods.lmd.icc import ICC, ICCSettings, check_model
from lmd.methods.lmd.rrl import RRL, RRLSettings
from lmd.model import Model


def lmd(
    model: Model,
    task: Task,
    *,
    rrl: Annotated[bool, "Stage 1 is RRL; without it, cross-entropy."] = True,
    icc: Annotated[bool, "Stage 2 iterates; without it, it calibrates once."] = True,
    vfc: Annotated[bool, "The M step has virtual features; without it, real ones."] = True,
    fdc: Annotated[bool, "The E step has feature distribution consistency."] = True,
    stage_1: RRLSettings,
    stage_2: ICCSettings,
) -> Stages:
    """Two stages: RRL (or cross-entropy), then ICC with a newly initialised classifier.

    Without ICC the encoder is frozen after stage 1 and the classifier calibrated once.
    """
    check_model(model, stage_2)
    yield RRL(model, stage_1) if rrl else Supervised(model)
    model.classifier.reset_parameters()
    yield ICC(model, task, stage_2, vfc=vfc, fdc=fdc, e_step=icc)


# The equations of the paper. It names no decay for the teacher; a constant 0.999 is the value of
# the work that it cites for the average.
_PAPER: dict[str, Any] = {
    "warmup": 0.0,
    "gram": "raw",
    "kl": "student_teacher",
    "ema_horizon": None,
    "ema_ramp": False,
    "ridge": 0.0,
    "m_step": "sgd",
    "shrinkage": 0.0,
    "weight_penalty": 0.0,
    "distance": "literal",
}

# The released code. Consistency is off for the first 21 of 100 epochs. The loader of the M step
# drops the last partial batch; batches of 128 are assumed.
_OFFICIAL: dict[str, Any] = {
    "ce_view": "strong",
    "warmup": 0.21,
    "channel_divisor": "samples",
    "teacher": "own",
    "ema_horizon": None,
    "m_drop_partial": 128,
    "virtual_moments": "raw",
    "m_step": "sgd",
    "shrinkage": 0.0,
    "weight_penalty": 0.0,
    "label_loss": "gce",
    "label_gradient": False,
    "fdc_sign": -1,
    "encoder_weight_decay": 1e-4,
    "last_e_step": False,
}

_CITATION = (
    "Pan et al., Long-tailed Medical Diagnosis with Relation-aware Representation Learning and "
    "Iterative Classifier Calibration"
)


def _row(key: str, title: str, stages: tuple[str, str], **preset: bool) -> Method:
    return Method(
        key,
        title,
        lmd,
        _CITATION,
        stages,
        family="lmd",
        ablation=bool(preset),
        note="Shrinkage and weight penalty are chosen on the validation part (default profile), so "
        "validation scores are optimistic.",
        preset=preset,
        profiles={"paper": _PAPER, "official": _OFFICIAL},
        first_settings=tuple(RRLSettings.model_fields) if preset.get("rrl", True) else (),
    )


METHODS = (
    _row("lmd", "LMD", ("RRL", "ICC")),
    _row("lmd_wo_rrl", "LMD w/o RRL", ("cross-entropy", "ICC"), rrl=False),
    _row("lmd_wo_icc", "LMD w/o ICC", ("RRL", "calibration"), icc=False),
    _row("lmd_wo_vfc", "LMD w/o VFC", ("RRL", "ICC"), vfc=False),
    _row("lmd_wo_fdc", "LMD w/o FDC", ("RRL", "ICC"), fdc=False),
)
