"""Settings of ICC, stage 2 of LMD."""

from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from lmd.base.errors import LmdError
from lmd.contract.settings import BelowOne, Count, NonNegative, Positive, Settings, Share
from lmd.methods.lmd.gaussians import MOST_VIRTUAL_FEATURES, Distance
from lmd.methods.lmd.rrl import Sampling
from lmd.model import Model

Depth = Annotated[int, Field(ge=0)]
Moments = Literal["ema", "raw"]
Seen = Literal["eval", "all"]
Classifier = Literal["averaged", "kept", "fresh"]
MStep = Literal["argmin", "sgd"]
LabelLoss = Literal["ce", "gce"]
Form = Literal["difference", "bounded"]
Chosen = Literal["validation"]


class ICCSettings(Settings):
    """Settings of stage 2; the rows are those of ``docs/paper-vs-code.md``.

    Those "with icc" have no effect without it, as there is then one M step and no E step.
    """

    iterations: Annotated[
        Count | None, "With icc: EM iterations (J); null: the protocol's stage2_epochs."
    ] = None
    levels: Annotated[Depth, "Inner levels of the encoder among the features (row 31)."] = 5
    classifier: Annotated[
        Classifier, "Average with stage 1's classifier, correct it, or drop it (row 32)."
    ] = "fresh"
    m_views: Annotated[Seen, "Moments of the eval view, or of all views (row 33)."] = "all"
    mean_images: Annotated[NonNegative, "Images that pull a class mean to the centre (row 34)."] = (
        30.0
    )
    covariance_images: Annotated[
        NonNegative, "Images that pull a covariance to the pooled one (row 34)."
    ] = 0.0
    mean_error: Annotated[bool, "Add the uncertainty of the mean (row 34)."] = False
    m_sampling: Annotated[Sampling, "How the M step draws images (row 11)."] = "balanced"
    m_drop_partial: Annotated[Count | None, "Drop partial batches of this size (row 11)."] = None
    ridge: Annotated[NonNegative, "Added to the diagonal of each covariance (row 12)."] = 1e-2
    virtual_moments: Annotated[Moments, "With icc: draw from averaged or new moments (row 12)."] = (
        "ema"
    )
    moments_decay: Annotated[Share, "With icc: largest decay of the averaged moments (row 13)."] = (
        0.0
    )
    virtual_features: Annotated[
        Count, "Virtual features of each class; argmin: at most 4096 (row 14)."
    ] = 50_000
    m_step: Annotated[MStep, "Solve the M step, or make one pass of SGD (row 15)."] = "argmin"
    shrinkage: Annotated[
        Share | Chosen, "Shrinkage towards the pooled covariance; argmin only (row 15)."
    ] = "validation"
    weight_penalty: Annotated[
        NonNegative | Chosen, "Penalty on weights, in units of the variance; argmin only (row 15)."
    ] = "validation"
    m_lr: Annotated[NonNegative, "Learning rate of the M step; sgd only (row 15)."] = 1e-5
    m_momentum: Annotated[BelowOne, "Momentum of the M step; sgd only (row 15)."] = 0.9
    m_weight_decay: Annotated[NonNegative, "Weight decay of the M step; sgd only (row 15)."] = 1e-4
    m_batch: Annotated[Count, "Batch size of the M step; sgd only (row 15)."] = 352
    e_sampling: Annotated[Sampling, "With icc: how the E step draws images."] = "natural"
    e_tau: Annotated[
        NonNegative, "With icc: its label loss sees z + e_tau ln(prior); 0 is plain (row 26)."
    ] = 1.0
    e_statistics: Annotated[
        bool, "With icc: let the E step update BatchNorm statistics (row 35)."
    ] = False
    label_loss: Annotated[LabelLoss, "With icc: plain or generalised cross-entropy (row 16)."] = (
        "ce"
    )
    label_gradient: Annotated[
        bool, "With icc: whether the label loss reaches the encoder (row 16)."
    ] = True
    lambda_e: Annotated[
        NonNegative, "With icc and fdc: weight of feature distribution consistency."
    ] = 0.1
    fdc_form: Annotated[Form, "With icc and fdc: Psi - Phi, or bounded cross-entropy (row 36)."] = (
        "bounded"
    )
    fdc_temperature: Annotated[
        Positive, "With icc and fdc: temperature of the bounded form (row 36)."
    ] = 10.0
    fdc_sign: Annotated[
        Literal[1, -1], "With icc and fdc: 1 is Psi - Phi, -1 the opposite (row 17)."
    ] = 1
    distance: Annotated[
        Distance, "With icc and fdc: Mahalanobis, or the printed formula (row 18)."
    ] = "mahalanobis"
    encoder_lr: Annotated[NonNegative, "With icc: learning rate of the encoder (row 20)."] = 1e-3
    encoder_weight_decay: Annotated[
        NonNegative | None, "With icc: the encoder's weight decay; null: the protocol's (row 20)."
    ] = None
    last_e_step: Annotated[bool, "With icc: whether the last iteration has an E step (row 21)."] = (
        False
    )


def check_model(model: Model, settings: ICCSettings) -> None:
    """The M step solves for the weight and bias of a linear classifier of two or more classes."""
    classifier = model.classifier
    if not isinstance(classifier, nn.Linear) or classifier.bias is None:
        raise LmdError(
            "model.classifier: LMD needs a linear classifier with a bias, but this is "
            f"{classifier!r}; make the model with head='linear'"
        )
    classes = classifier.out_features
    if classes < 2:
        raise LmdError(
            f"model.classifier: LMD needs at least 2 classes, but the classifier has {classes}"
        )
    most = (MOST_VIRTUAL_FEATURES - 1) // classes
    if settings.virtual_features > most:
        raise LmdError(
            f"setting 'virtual_features' must be at most {most} with {classes} classes; "
            f"it is {settings.virtual_features}"
        )
