"""LMD: Relation-aware Representation Learning, then Iterative Classifier Calibration.

The default is what a study on pseudo-tails found to earn something (``studies/ham10000``). The
profile ``corrected`` is the paper's method with its slips corrected, ``paper`` follows the
equations to the letter, and ``official`` behaves like the released code. Each difference is a
setting, with the number of its row in ``docs/paper-vs-code.md``.
"""

from typing import Annotated, Any

from torch.nn import functional as F

from lmd.methods.lmd import PAPER
from lmd.methods.lmd.icc import ICC, ICCSettings, check_model
from lmd.methods.lmd.rrl import RRL, RRLSettings, sampling_weights
from lmd.methods.method import Method, Needs
from lmd.methods.stage import Stage, Stages, Task
from lmd.methods.supervised import Criterion, PerClass, Supervised, View, balanced_softmax_loss
from lmd.model import Model


def _plain(model: Model, task: Task, settings: RRLSettings) -> Stage:
    """Stage 1 without RRL: its label loss alone, with sharpness-aware steps if asked for."""
    criterion: Criterion = F.cross_entropy
    if settings.tau:
        criterion = PerClass(balanced_softmax_loss, task.class_counts, tau=settings.tau)
    # The weak view is the protocol's, as for every other row.
    view: View = "label" if settings.ce_view == "weak" else settings.ce_view
    weights = sampling_weights(settings.ce_sampling, task.class_counts)
    average, rho = settings.average or None, settings.sam or None
    return Supervised(model, criterion, weights=weights, view=view, average=average, rho=rho)


def lmd(
    model: Model,
    task: Task,
    *,
    rrl: Annotated[bool, "Stage 1 is RRL; without it, its label loss alone."] = False,
    icc: Annotated[bool, "Stage 2 iterates; without it, it calibrates once."] = False,
    vfc: Annotated[bool, "The M step has virtual features; without it, real ones."] = True,
    fdc: Annotated[
        bool, "the E step has feature distribution consistency.", Needs(icc=True)
    ] = False,
    stage_1: RRLSettings,
    stage_2: ICCSettings,
) -> Stages:
    """Two stages: RRL (or its label loss alone), then ICC.

    Without ICC the encoder is frozen after stage 1 and the classifier calibrated once.
    """
    check_model(model, stage_2)
    if rrl:
        first = RRL(model, task, stage_1)
        yield first
        if stage_1.keep == "teacher":
            model.load_state_dict(first.teacher.state_dict())
    else:
        yield _plain(model, task, stage_1)
    if stage_2.levels and model.inner:
        model.widen(list(model.inner)[-stage_2.levels :])
    if stage_2.classifier == "fresh":
        model.classifier.reset_parameters()
    yield ICC(model, task, stage_2, vfc=vfc, fdc=fdc, e_step=icc)


# The paper's method with its slips corrected. The paper and the released code have these values in
# common, unless they say otherwise below.
_CORRECTED: dict[str, Any] = {
    "rrl": True,
    "icc": True,
    "fdc": True,
    "tau": 0.0,
    "ce_view": "label",
    "ce_sampling": "natural",
    "average": 0.0,
    "centre": False,
    "relations": 1.0,
    "probabilities": 0.5,
    "sam": 0.0,
    "keep": "student",
    "levels": 0,
    "classifier": "fresh",
    "m_views": "eval",
    "mean_images": 0.0,
    "covariance_images": 0.0,
    "mean_error": False,
    "m_sampling": "balanced",
    "moments_decay": 0.999,
    "e_tau": 0.0,
    "e_statistics": True,
    "lambda_e": 1e-4,
    "fdc_form": "difference",
    "encoder_lr": 1e-6,
    "last_e_step": True,
}

# The equations of the paper. It names no decay for the teacher; a constant 0.999 is the value of
# the work that it cites for the average.
_PAPER: dict[str, Any] = _CORRECTED | {
    "ce_view": "weak",
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
_OFFICIAL: dict[str, Any] = _CORRECTED | {
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


def _row(key: str, title: str, stages: tuple[str, str], **preset: Any) -> Method:
    return Method(
        key,
        title,
        lmd,
        PAPER,
        stages,
        ablation=bool(preset),
        note="Shrinkage and weight penalty are chosen on the validation part (but not with profile "
        "paper or official), so validation scores are optimistic.",
        preset=preset,
        profiles={"corrected": _CORRECTED, "paper": _PAPER, "official": _OFFICIAL},
    )


_EITHER = ("label loss or RRL", "calibration or ICC")

METHODS = (
    _row("lmd", "LMD", _EITHER),
    _row("lmd_wo_rrl", "LMD w/o RRL", ("label loss", _EITHER[1]), rrl=False),
    _row("lmd_wo_icc", "LMD w/o ICC", (_EITHER[0], "calibration"), icc=False),
    _row("lmd_wo_vfc", "LMD w/o VFC", _EITHER, vfc=False),
    _row("lmd_wo_fdc", "LMD w/o FDC", _EITHER, fdc=False),
    _row("lmd_wo_levels", "LMD w/o inner levels", _EITHER, levels=0),
    _row("lmd_wo_views", "LMD w/o views in moments", _EITHER, m_views="eval"),
    _row("lmd_wo_shrunk_means", "LMD w/o shrunk means", _EITHER, mean_images=0.0),
    _row(
        "lmd_wo_strong",
        "LMD w/o balanced strong views",
        _EITHER,
        ce_sampling="natural",
        ce_view="label",
    ),
    _row("lmd_with_rrl", "LMD with RRL", ("RRL", _EITHER[1]), rrl=True),
    _row("lmd_with_icc", "LMD with ICC", (_EITHER[0], "ICC"), icc=True, fdc=True),
)
