"""The network that methods train: an encoder and a classifier."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from lmd.base.errors import LmdError
from lmd.base.text import MAX_IMAGE_SIZE
from lmd.model.backbones import Backbone, build

Head = Literal["linear", "cosine"]
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


class CosineClassifier(nn.Module):
    """Scaled cosine between feature and class weight: ``(B, C) → (B, K)``; the scale is inside."""

    scale: Tensor

    def __init__(self, in_features: int, out_features: int, scale: float = 30.0) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.register_buffer("scale", torch.tensor(float(scale)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new class weights of length 1.

        The length does not change the cosine, but it divides the gradient: weights of length √C
        would turn C times more slowly.
        """
        nn.init.normal_(self.weight)
        with torch.no_grad():
            self.weight.copy_(F.normalize(self.weight))

    def cosine(self, features: Tensor) -> Tensor:
        """Cosines in [-1, 1], without the scale: ``(B, C) → (B, K)``."""
        # In bfloat16, a cosine times a scale of 30 would be off by a tenth of a logit.
        with torch.autocast(features.device.type, enabled=False):
            return F.linear(F.normalize(features.float()), F.normalize(self.weight))

    def forward(self, features: Tensor) -> Tensor:
        """Logits ``(B, K)``."""
        return self.scale * self.cosine(features)


class Model(nn.Module):
    """``encoder (B, 3, H, W) → (B, C)`` and ``classifier (B, C) → (B, K)``.

    ``inner`` are the widths of the levels inside the encoder that ``widen`` can add.
    """

    def __init__(
        self,
        encoder: nn.Module,
        classifier: nn.Linear | CosineClassifier,
        inner: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier = classifier
        self.inner = dict(inner or {})

    @property
    def levels(self) -> tuple[str, ...]:
        """The inner levels whose averages follow the encoder's last features."""
        return getattr(self.encoder, "levels", ())

    @property
    def widths(self) -> list[int]:
        """Widths of the last features and of each level; their sum is C."""
        inner = [self.inner[name] for name in self.levels]
        return [self.classifier.in_features - sum(inner), *inner]

    @torch.no_grad()
    def widen(self, levels: Sequence[str]) -> None:
        """Append the averages of these levels to the features.

        The linear classifier gets a weight of zero for each of them, so the logits do not change.
        """
        if not levels:
            return
        old = self.classifier
        unknown = sorted({*levels} - {*self.inner})
        if unknown or self.levels or not isinstance(old, nn.Linear):
            raise LmdError(
                f"levels: cannot add {', '.join(levels)} to this model; its levels are: "
                f"{', '.join(self.inner) or 'none'}"
            )
        ordered = tuple(name for name in self.inner if name in levels)
        width = old.in_features + sum(self.inner[name] for name in ordered)
        new = nn.Linear(width, old.out_features, bias=old.bias is not None).to(old.weight)
        new.weight.zero_()
        new.weight[:, : old.in_features] = old.weight
        if old.bias is not None:
            new.bias.copy_(old.bias)
        self.encoder.levels = ordered  # type: ignore[assignment]
        self.classifier = new

    def features(self, images: Tensor) -> Tensor:
        """Features ``(B, C)``."""
        features: Tensor = self.encoder(images)
        return features

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``(B, K)``."""
        logits: Tensor = self.classifier(self.features(images))
        return logits


class Normalise:
    """uint8 ``(B, S, S, 3)`` to normalised float ``(B, 3, S, S)``, channels last in memory."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], device: torch.device) -> None:
        """Take channel means and standard deviations of intensities in [0, 1]."""
        self.mean, self.std = (
            torch.tensor(v, device=device).mul(255).view(1, 3, 1, 1) for v in (mean, std)
        )

    def __call__(self, images: Tensor) -> Tensor:
        """Move to the device of ``mean``, as bytes, and normalise there."""
        moved = images.to(self.mean.device, non_blocking=True).permute(0, 3, 1, 2)
        return moved.float().sub_(self.mean).div_(self.std)


_Mean = Annotated[float, Field(ge=-100, le=100)]
_Std = Annotated[float, Field(gt=1e-6, le=100)]


@dataclass(frozen=True, config=STRICT)
class Preprocessing:
    """Square images of ``image_size`` pixels; values in 0..1 become ``(x - mean) / std``, RGB.

    ``resize`` names the rule of decoding and resizing.
    """

    image_size: Annotated[int, Field(gt=0, le=MAX_IMAGE_SIZE)]
    mean: tuple[_Mean, _Mean, _Mean]
    std: tuple[_Std, _Std, _Std]
    resize: Literal["v2"]


def build_model(
    backbone: str,
    weights: str,
    classes: int,
    head: Head = "linear",
    *,
    image_size: int = 224,
    seed: int = 0,
) -> tuple[Model, Preprocessing]:
    """Return a model for K = ``classes``, drawn from ``seed``, and how to prepare its images."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, base = assemble(backbone, weights, classes, head)
    model.eval()
    try:
        with torch.no_grad():  # some backbones accept only a single size
            features = model.features(torch.zeros(1, 3, image_size, image_size))
    except (RuntimeError, AssertionError, ValueError) as error:
        raise LmdError(
            f"image_size: backbone {backbone} cannot encode images of {image_size} pixels ({error})"
        ) from error
    assert features.shape == (1, model.classifier.in_features), features.shape
    return model.train(), Preprocessing(image_size, base.mean, base.std, "v2")


def assemble(backbone: str, weights: str, classes: int, head: Head) -> tuple[Model, Backbone]:
    """Return encoder and classifier, without a check of the image size."""
    base = build(backbone, weights)
    classifier = CosineClassifier if head == "cosine" else nn.Linear
    return Model(base.encoder, classifier(base.feature_dim, classes), base.levels), base
