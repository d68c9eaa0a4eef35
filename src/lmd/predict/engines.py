"""Compute a shipped model by torch."""

import numpy as np
import torch
from numpy.typing import NDArray

from lmd.model import Model, Normalise
from lmd.model.files import ModelSpec

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]


class Engine:
    """Compute the model that ``spec`` describes; ``no_heat_maps`` says why an engine has none."""

    no_heat_maps = ""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.classes, self.image_size = spec.classes, spec.preprocessing.image_size

    def answer(self, pixels: Pixels) -> tuple[Floats, Floats | None]:
        """Return probabilities ``(B, K)`` and features ``(B, C)``, if any, of ``(B, S, S, 3)``."""
        raise NotImplementedError


class TorchEngine(Engine):
    """The shipped model of a run folder."""

    def __init__(self, model: Model, spec: ModelSpec, device: torch.device | str = "cpu") -> None:
        super().__init__(spec)
        self.device = torch.device(device)
        # The memory layout in which convolutions are fastest.
        self.model: Model = model.to(self.device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
        pre = spec.preprocessing
        self.normalise = Normalise(pre.mean, pre.std, self.device)

    def answer(self, pixels: Pixels) -> tuple[Floats, Floats]:
        """Return probabilities ``(B, K)`` and features ``(B, C)`` of resized ``(B, S, S, 3)``."""
        with torch.inference_mode():
            features = self.model.features(self.normalise(torch.from_numpy(pixels))).float()
            logits = self.model.classifier(features)
            probabilities = (logits.float() / self.spec.temperature).softmax(1)
        return probabilities.cpu().numpy(), features.cpu().numpy()
