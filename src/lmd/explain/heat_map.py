"""Explain one prediction: heat maps, nearest training images, and the flag."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lmd.base.errors import LmdError
from lmd.data.images import resize
from lmd.explain.neighbours import FILE, NEAREST, Neighbour, Neighbours, load_neighbours
from lmd.model import Model
from lmd.predict.engines import TorchEngine
from lmd.predict.images import Image, as_pixels
from lmd.predict.predictor import Predictor


def evidence(model: Model, images: Tensor, classes: Tensor) -> Tensor:
    """Maps ``(B, n, h, w)`` for the classes ``(B, n)`` of ``images (B, 3, H, W)``.

    Each is ``Σ_c A_c ∂s / ∂A_c`` on the last feature map A: HiResCAM (Draelos and Carin 2020). With
    a global average and a linear classifier it is CAM (Zhou et al. 2016) and Grad-CAM (Selvaraju et
    al. 2017) without their scale, and the sum of a map is s without the classifier's bias. s is the
    logit of the class minus the mean of all logits: adding a number to all logits changes no
    probability, so it must not change a map.

    If averages of inner levels are among the features, their part of s is added where it comes
    from, on the grid of the finest level, so that the sum stays the same.
    """
    widths = model.widths
    with torch.enable_grad(), _last_map(model.encoder) as found, _levels(model) as inner:
        # Frozen models have gradients too, because the input wants one.
        features = model.features(images.detach().requires_grad_())
        last, layout = found.chosen()
        logits = model.classifier(features).float()
        scores = (logits - logits.mean(1, keepdim=True)).gather(1, classes)
        slopes = [torch.autograd.grad(s.sum(), features, retain_graph=True)[0] for s in scores.T]
        own = features[:, : widths[0]]
        gradients = [
            torch.autograd.grad(own, last, slope[:, : widths[0]], retain_graph=True)[0]
            for slope in slopes
        ]
    maps = torch.stack([layout(last.detach() * gradient) for gradient in gradients], 1).float()
    if not inner:
        return maps
    _, *parts = torch.stack(slopes, 1).split(widths, 2)
    levels = [
        torch.einsum("bnc,bchw->bnhw", part, level).float() / level[0, 0].numel()
        for part, level in zip(parts, inner, strict=True)
    ]
    finest = max((one.shape[2:] for one in (maps, *levels)), key=lambda size: size.numel())
    return sum((_spread(one, finest) for one in levels), _spread(maps, finest))


def _spread(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Maps ``(…, h, w)`` on a grid that is at least as fine, smoothly and with the same sum."""
    high, wide = (
        _shares(before, after).to(maps) for before, after in zip(maps.shape[-2:], size, strict=True)
    )
    return high @ maps @ wide.T


def _shares(before: int, after: int) -> Tensor:
    """The share of each of ``before`` places that goes to each of ``after``: ``(after, before)``.

    They are the weights of linear interpolation, scaled so that each place gives all it has.

    >>> _shares(2, 4)
    tensor([[0.5000, 0.0000],
            [0.3750, 0.1250],
            [0.1250, 0.3750],
            [0.0000, 0.5000]])
    """
    places = ((torch.arange(after) + 0.5) * before / after - 0.5).clamp(0, before - 1)
    weights = (1 - (places[:, None] - torch.arange(before)).abs()).clamp_min(0)
    return weights / weights.sum(0)


@contextmanager
def _levels(model: Model) -> Iterator[list[Tensor]]:
    """The outputs of the model's levels, in their order."""
    found: list[Tensor] = []

    def keep(module: nn.Module, _: Any, output: Tensor) -> None:
        found.append(output.detach())

    level: Any = getattr(model.encoder, "level", None)  # of backbones that have levels
    handles = [level(name).register_forward_hook(keep) for name in model.levels]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


class _Recorder:
    """Remembers the newest output that is a feature map with more than one position."""

    def __init__(self, encoder: nn.Module) -> None:
        self.encoder = encoder
        self.newest: Tensor | None = None
        self.tokens = _token_layer(encoder)
        self.channels_end = getattr(encoder, "output_fmt", "NCHW") == "NHWC"

    def __call__(self, module: nn.Module, _: Any, output: Any) -> None:
        if not isinstance(output, Tensor) or not output.requires_grad:
            return
        if self.tokens is not None:
            if module is self.tokens:
                self.newest = output
            return
        if output.ndim == 4:
            high, wide = output.shape[1:3] if self.channels_end else output.shape[2:]
            if high * wide > 1:
                self.newest = output

    def chosen(self) -> tuple[Tensor, Any]:
        """The map, and how to sum its channels: ``→ (B, h, w)``."""
        if self.newest is None:
            raise LmdError(
                "explain: this model's backbone has no feature map with more than one position, "
                "so it has no heat maps"
            )
        if self.tokens is not None:
            return self.newest, self._on_grid
        axis = 3 if self.channels_end else 1
        return self.newest, lambda products: products.sum(axis)

    def _on_grid(self, products: Tensor) -> Tensor:
        """Tokens ``(B, N, C)`` to their places, without class and register tokens."""
        high, wide = self.encoder.patch_embed.grid_size  # type: ignore[union-attr, misc]
        grid: Tensor = products.sum(2)[:, -high * wide :].unflatten(1, (high, wide))
        return grid


def _token_layer(encoder: nn.Module) -> nn.Module | None:
    """In a vision transformer, the input of the last attention.

    After it, only the class token may reach the classifier, and the others have no gradient.
    """
    blocks, patches = getattr(encoder, "blocks", None), getattr(encoder, "patch_embed", None)
    if not isinstance(blocks, nn.Sequential | nn.ModuleList) or not len(blocks):
        return None
    if getattr(patches, "grid_size", None) is None or not hasattr(encoder, "num_prefix_tokens"):
        return None
    layer = getattr(blocks[-1], "norm1", None)
    return layer if isinstance(layer, nn.Module) else None


@contextmanager
def _last_map(encoder: nn.Module) -> Iterator[_Recorder]:
    recorder = _Recorder(encoder)
    handles = [module.register_forward_hook(recorder) for module in encoder.modules()]
    try:
        yield recorder
    finally:
        for handle in handles:
            handle.remove()


SMALLEST, LARGEST = 256, 768  # longest side of the picture


@dataclass(frozen=True)
class Explanation:
    """The most probable classes of one image, and where the evidence for each of them is.

    ``classes (n,)`` are sorted by ``probabilities (n,)``. ``evidence (n, h, w)`` are the maps on
    the model's grid, negative where the image speaks against the class. ``heat (n, H, W)`` is their
    positive part, smoothly enlarged to ``picture (H, W, 3)`` and divided by the largest value of
    all n, so that it lies in [0, 1]. ``unlike_training`` is ``None`` if the model cannot tell.
    """

    name: str
    classes: tuple[str, ...]
    probabilities: NDArray[np.float32]
    evidence: NDArray[np.float32]
    heat: NDArray[np.float32]
    picture: NDArray[np.uint8]
    neighbours: tuple[Neighbour, ...] = ()
    unlike_training: bool | None = None

    def peak(self, i: int) -> tuple[float, float]:
        """The place of the most evidence for class i, as fractions of width and height."""
        row, column = np.unravel_index(self.heat[i].argmax(), self.heat[i].shape)
        high, wide = self.heat[i].shape
        return (float(column) + 0.5) / wide, (float(row) + 0.5) / high


def explain(
    predictor: Predictor, image: Image, *, classes: int = 2, neighbours: int | None = None
) -> Explanation:
    """Explain one image, given as a path or as an RGB array ``(H, W, 3)`` of uint8."""
    check_explainable(predictor)
    if classes < 1:
        raise LmdError(f"classes must be at least 1; it is {classes}")
    nearest_index(predictor, neighbours)  # a mistake is found before the image is read
    name = str(image) if isinstance(image, str | Path) else "image"
    full = as_pixels(image, name)
    pixels, picture = resize(full, predictor.engine.image_size), shown(full)
    return explain_pixels(
        predictor, pixels, picture, name=name, classes=classes, neighbours=neighbours
    )


def explain_pixels(
    predictor: Predictor,
    pixels: NDArray[np.uint8],
    picture: NDArray[np.uint8],
    *,
    name: str = "image",
    classes: int = 2,
    neighbours: int | None = None,
) -> Explanation:
    """Explain an image that is resized for the model ``(S, S, 3)`` and to be shown ``(H, W, 3)``.

    The first is made by ``resize``, the second by ``shown``.
    """
    engine, novelty = check_explainable(predictor), predictor.novelty
    index = nearest_index(predictor, neighbours)
    batch = pixels[None]
    features = engine.features(batch)
    probabilities = engine.classify(features)[0]
    order = np.argsort(-probabilities, kind="stable")[:classes]
    chosen = torch.from_numpy(order[None]).to(engine.device)
    maps: NDArray[np.float32] = (
        evidence(engine.model, engine.normalised(batch), chosen)[0].cpu().numpy()
    )
    return Explanation(
        name=name,
        classes=tuple(engine.classes[k] for k in order),
        probabilities=probabilities[order],
        evidence=maps,
        heat=heat(maps, (picture.shape[0], picture.shape[1])),
        picture=picture,
        neighbours=()
        if index is None
        else tuple(index.nearest(features[0], neighbours or NEAREST)),
        unlike_training=None if novelty is None else bool(novelty.unlike(features)[0]),
    )


def check_explainable(predictor: Predictor) -> TorchEngine:
    """The engine of a model that has heat maps; an ``LmdError`` for an ONNX file or an average."""
    if not isinstance(predictor.engine, TorchEngine):
        raise LmdError(predictor.engine.no_heat_maps)
    return predictor.engine


def nearest_index(predictor: Predictor, neighbours: int | None) -> Neighbours | None:
    """The features of the training images, read once; ``None`` if they are not wanted or absent."""
    engine, folder = predictor.engine, predictor.folder
    if neighbours is not None and neighbours < 0:
        raise LmdError(f"neighbours must be at least 0; it is {neighbours}")
    if neighbours == 0 or folder is None or not isinstance(engine, TorchEngine):
        return None
    if neighbours is None and not (folder / FILE).exists():
        return None
    if predictor.index is None:
        predictor.index = load_neighbours(folder, engine.classes, engine.spec.feature_dim)
    return predictor.index


def heat(maps: NDArray[np.float32], size: tuple[int, int]) -> NDArray[np.float32]:
    """The positive part of ``maps (n, h, w)``, enlarged to ``size`` (H, W), from 0 to 1."""
    high, wide = size
    grown = np.stack(
        [
            cv2.resize(np.maximum(one, 0), (wide, high), interpolation=cv2.INTER_CUBIC)
            for one in maps
        ]
    ).clip(0)
    top = grown.max()
    return (grown / top if top > 0 else grown).astype(np.float32)


def shown(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The image with its longest side between ``SMALLEST`` and ``LARGEST`` pixels."""
    high, wide = image.shape[:2]
    longest = min(max(high, wide, SMALLEST), LARGEST)
    scale = longest / max(high, wide)
    size = max(round(wide * scale), 1), max(round(high * scale), 1)
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(image, size, interpolation=method), np.uint8)
