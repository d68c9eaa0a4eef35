"""LMD: Relation-aware Representation Learning, then Iterative Classifier Calibration.

Three profiles: the default is the paper's method with its slips mended, ``paper`` follows the
equations to the letter, ``official`` behaves as the released code does. Where they differ there is
a keyword; its row in the table of differences is in the comments.
"""

from typing import Any, Literal

from lmd.contract.method import Method
from lmd.contract.stage import Stages, Task
from lmd.contract.supervised import Supervised
from lmd.methods.lmd.checks import linear_classifier
from lmd.methods.lmd.gaussians import Distance
from lmd.methods.lmd.icc import ICC, Regulariser, Sampling
from lmd.methods.lmd.rrl import RRL, Direction, Gram
from lmd.model import Model


def lmd(
    model: Model,
    task: Task,
    *,
    # What the ablations leave out.
    rrl: bool = True,
    icc: bool = True,
    vfc: bool = True,
    fdc: bool = True,
    # Stage 1, RRL.
    ce_view: Literal["weak", "strong"] = "weak",  # row 1
    warmup: float = 0.2,  # row 2: part of all steps with CE alone
    gram: Gram = "normalised",  # row 3
    channel_divisor: Literal["channels", "samples"] = "channels",  # row 4
    kl: Direction = "teacher_student",  # row 5
    lambda_1: float = 10.0,  # row 6
    teacher: Literal["copy", "own"] = "copy",  # row 7
    ema_horizon: float | None = 0.3,  # row 7: part of all steps
    ema_decay: float = 0.999,  # row 7: where there is no horizon
    ema_ramp: bool = True,  # row 7
    # Stage 2, M step.
    iterations: int | None = None,  # None: as many as the protocol has epochs
    m_sampling: Sampling = "balanced",  # row 11
    m_drop_partial: int | None = None,  # row 11: batch size of which the last, partial one is lost
    ridge: float = 1e-2,  # row 12
    virtual_moments: Literal["ema", "raw"] = "ema",  # row 12
    moments_decay: float = 0.999,  # row 13
    virtual_features: int = 50_000,  # row 14: R, for each class
    m_step: Literal["argmin", "sgd"] = "argmin",  # row 15
    shrinkage: Regulariser = "validation",  # row 15: argmin only
    weight_penalty: Regulariser = "validation",  # row 15: argmin only
    m_lr: float = 1e-5,  # row 15: this and the next three, sgd only
    m_momentum: float = 0.9,
    m_weight_decay: float = 1e-4,
    m_batch: int = 352,
    # Stage 2, E step.
    e_sampling: Sampling = "natural",
    label_loss: Literal["ce", "gce"] = "ce",  # row 16
    label_gradient: bool = True,  # row 16: does it reach the encoder
    lambda_e: float = 1e-4,
    fdc_sign: int = 1,  # row 17: 1 is Psi - Phi
    distance: Distance = "mahalanobis",  # row 18
    encoder_lr: float = 1e-6,  # row 20
    encoder_weight_decay: float | None = None,  # row 20: None is the protocol's
    last_e_step: bool = True,  # row 21
) -> Stages:
    """Two stages: RRL (or cross-entropy), then ICC with a classifier initialised anew.

    Without ICC the encoder is frozen after stage 1 and the classifier calibrated once.
    """
    linear_classifier(model)
    if rrl:
        yield RRL(
            model,
            ce_view=ce_view,
            warmup=warmup,
            gram=gram,
            channel_divisor=channel_divisor,
            kl=kl,
            lambda_1=lambda_1,
            teacher=teacher,
            ema_horizon=ema_horizon,
            ema_decay=ema_decay,
            ema_ramp=ema_ramp,
        )
    else:
        yield Supervised(model)
    model.classifier.reset_parameters()
    yield ICC(
        model,
        task,
        vfc=vfc,
        e_step=icc,
        iterations=iterations,
        m_sampling=m_sampling,
        m_drop_partial=m_drop_partial,
        ridge=ridge,
        virtual_moments=virtual_moments,
        moments_decay=moments_decay,
        virtual_features=virtual_features,
        m_step=m_step,
        shrinkage=shrinkage,
        weight_penalty=weight_penalty,
        m_lr=m_lr,
        m_momentum=m_momentum,
        m_weight_decay=m_weight_decay,
        m_batch=m_batch,
        e_sampling=e_sampling,
        label_loss=label_loss,
        label_gradient=label_gradient,
        lambda_e=lambda_e if fdc else 0.0,
        fdc_sign=fdc_sign,
        distance=distance,
        encoder_lr=encoder_lr,
        encoder_weight_decay=encoder_weight_decay,
        last_e_step=last_e_step,
    )


# The letter of the paper. It names no decay for the teacher: 0.999, constant, is the value of the
# work it cites for the average.
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

# The released code. Consistency is off up to and including epoch index 20 of 100. Its loader drops
# the last partial batch of the M step; batches of 128 are assumed.
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


_RRL = (
    *("ce_view", "warmup", "gram", "channel_divisor", "kl", "lambda_1"),
    *("teacher", "ema_horizon", "ema_decay", "ema_ramp"),
)


def _row(key: str, title: str, stages: tuple[str, str], **preset: bool) -> Method:
    return Method(
        key,
        title,
        lmd,
        _CITATION,
        stages,
        family="lmd",
        note="Shrinkage and weight penalty are chosen on the validation part (default profile), so "
        "validation scores are optimistic.",
        preset=preset,
        profiles={"paper": _PAPER, "official": _OFFICIAL},
        first_settings=_RRL if preset.get("rrl", True) else (),
    )


METHODS = (
    _row("lmd", "LMD", ("RRL", "ICC")),
    _row("lmd_wo_rrl", "LMD w/o RRL", ("cross-entropy", "ICC"), rrl=False),
    _row("lmd_wo_icc", "LMD w/o ICC", ("RRL", "calibration"), icc=False),
    _row("lmd_wo_vfc", "LMD w/o VFC", ("RRL", "ICC"), vfc=False),
    _row("lmd_wo_fdc", "LMD w/o FDC", ("RRL", "ICC"), fdc=False),
)
