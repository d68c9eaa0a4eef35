"""The model that every method trains and ships: an encoder and a classifier."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
        """Draw the class weights anew."""
        nn.init.normal_(self.weight)

    def cosine(self, features: Tensor) -> Tensor:
        """Cosines in [-1, 1], without the scale: ``(B, C) → (B, K)``."""
        return F.linear(F.normalize(features), F.normalize(self.weight))

    def forward(self, features: Tensor) -> Tensor:
        """Logits ``(B, K)``."""
        return self.scale * self.cosine(features)


class Model(nn.Module):
    """``encoder (B, 3, H, W) → (B, C)`` and ``classifier (B, C) → (B, K)``."""

    def __init__(self, encoder: nn.Module, classifier: nn.Linear | CosineClassifier) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier = classifier

    def features(self, images: Tensor) -> Tensor:
        """Features ``(B, C)``."""
        features: Tensor = self.encoder(images)
        return features

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``(B, K)``."""
        logits: Tensor = self.classifier(self.features(images))
        return logits
