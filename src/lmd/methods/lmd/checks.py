"""Checks of LMD's settings: the message names the setting, the rule and the value."""

from torch import nn

from lmd.base.errors import LmdError
from lmd.model import Model


def one_of(name: str, value: object, valid: tuple[str, ...]) -> None:
    """``value`` must be one of the names in ``valid``."""
    if value not in valid:
        raise LmdError(f"{name}: must be one of {', '.join(valid)}, but is {value!r}")


def between(name: str, value: float | None, low: float, high: float = float("inf")) -> None:
    """``value`` must lie in [low, high], or be ``None``."""
    if value is not None and not low <= value <= high:
        upper = "" if high == float("inf") else f" and at most {high:g}"
        raise LmdError(f"{name}: must be at least {low:g}{upper}, but is {value!r}")


def linear_classifier(model: Model) -> None:
    """The M step solves for the weight and bias of a linear classifier."""
    classifier = model.classifier
    if not isinstance(classifier, nn.Linear) or classifier.bias is None:
        raise LmdError(
            "model.classifier: LMD needs a linear classifier with a bias, but this is "
            f"{classifier!r}; make the model with head='linear'"
        )
    if classifier.out_features < 2:
        raise LmdError(
            "model.classifier: LMD needs at least 2 classes, "
            f"but the classifier has {classifier.out_features}"
        )
