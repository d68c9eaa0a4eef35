"""Heat maps: where the evidence of a model for a class is."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lmd.base.errors import LmdError
from lmd.model import Model
from lmd.predict.engines import Floats, Pixels, TorchEngine


def top_evidence(
    engine: TorchEngine, pixels: Pixels, count: int
) -> tuple[NDArray[np.intp], Floats, Floats, Floats]:
    """Return classes and probabilities ``(n,)``, maps ``(n, h, w)`` and features ``(1, C)``."""
    batch = pixels[None]
    (probabilities,), features = engine.answer(batch)
    order = np.argsort(-probabilities, kind="stable")[:count]
    chosen = torch.from_numpy(order[None]).to(engine.device)
    maps = evidence(engine.model, engine.normalise(torch.from_numpy(batch)), chosen)
    return order, probabilities[order], maps[0].cpu().numpy(), features


def evidence(model: Model, images: Tensor, classes: Tensor) -> Tensor:
    """Return maps ``(B, n, h, w)`` for the classes ``(B, n)`` of ``images (B, 3, H, W)``.

    Each is ``Σ_c A_c ∂s / ∂A_c`` on the last feature map A: HiResCAM (Draelos and Carin 2020). With
    a global average and a linear classifier it is CAM (Zhou et al. 2016) and Grad-CAM (Selvaraju et
    al. 2017) without their scale, and the sum of a map is s without the classifier's bias. s is the
    logit of the class minus the mean of all logits: adding a number to all logits changes no
    probability, so it must not change a map.

    If averages of inner levels are among the features, their part of s is added where it comes
    from, on the grid of the finest level, so that the sum stays the same.
    """
    widths, newest, inner = model.widths, list[Tensor](), list[Tensor]()
    is_map, summed = _last_map(model.encoder)

    def keep_newest(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.requires_grad and is_map(module, output):
            newest[:] = [output]

    def keep_level(_: nn.Module, __: Any, output: Tensor) -> None:
        inner.append(output.detach())

    level: Any = getattr(model.encoder, "level", None)  # of backbones that have levels
    with torch.enable_grad(), ExitStack() as stack:
        for name in model.levels:
            stack.enter_context(level(name).register_forward_hook(keep_level))
        for module in model.encoder.modules():
            stack.enter_context(module.register_forward_hook(keep_newest))
        # Frozen models have gradients too, because the input wants one.
        features = model.features(images.detach().requires_grad_())
        if not newest:
            raise LmdError(
                "explain: this model's backbone has no feature map with more than one position, "
                "so it has no heat maps"
            )
        logits = model.classifier(features).float()
        scores = (logits - logits.mean(1, keepdim=True)).gather(1, classes)
        slopes = [torch.autograd.grad(s.sum(), features, retain_graph=True)[0] for s in scores.T]
        inputs, last = features[:, : widths[0]], newest[0]
        gradients = [
            torch.autograd.grad(inputs, last, slope[:, : widths[0]], retain_graph=True)[0]
            for slope in slopes
        ]
    maps = torch.stack([summed(last.detach() * gradient) for gradient in gradients], 1).float()
    if not inner:
        return maps
    _, *parts = torch.stack(slopes, 1).split(widths, 2)
    levels = [
        torch.einsum("bnc,bchw->bnhw", part, level).float() / level[0, 0].numel()
        for part, level in zip(parts, inner, strict=True)
    ]
    finest = max((grid.shape[2:] for grid in (maps, *levels)), key=lambda size: size.numel())
    return sum((_spread(grid, finest) for grid in levels), _spread(maps, finest))


def _last_map(
    encoder: Any,
) -> tuple[Callable[[nn.Module, Tensor], bool], Callable[[Tensor], Tensor]]:
    """Return what finds feature maps among outputs, and what sums their channels: ``(B, h, w)``."""
    # In a vision transformer, only the class token has a gradient after the last attention's input.
    blocks, patches = getattr(encoder, "blocks", None), getattr(encoder, "patch_embed", None)
    placed = getattr(patches, "grid_size", None) and hasattr(encoder, "num_prefix_tokens")
    tokens = None
    if placed and isinstance(blocks, nn.Sequential | nn.ModuleList) and len(blocks):
        tokens = getattr(blocks[-1], "norm1", None)
    axis = 3 if getattr(encoder, "output_fmt", "NCHW") == "NHWC" else 1

    def is_map(module: nn.Module, output: Tensor) -> bool:
        if tokens is not None:
            return module is tokens
        return output.ndim == 4 and output.numel() > len(output) * output.shape[axis]

    def summed(products: Tensor) -> Tensor:
        if tokens is None:
            return products.sum(axis)
        high, wide = encoder.patch_embed.grid_size
        # Class and register tokens, which have no place, come first.
        grid: Tensor = products.sum(2)[:, -high * wide :].unflatten(1, (high, wide))
        return grid

    return is_map, summed


def _spread(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Return ``maps (…, h, w)`` on a grid at least as fine, smoothly and with the same sum."""
    high = _shares(maps.shape[-2], size[0]).to(maps)
    wide = _shares(maps.shape[-1], size[1]).to(maps)
    return high @ maps @ wide.T


def _shares(before: int, after: int) -> Tensor:
    """Return the share ``(after, before)`` of each place before that goes to each one after.

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


def heat(maps: Floats, size: tuple[int, int]) -> Floats:
    """Return the positive part of ``maps (n, h, w)``, enlarged to ``size`` (H, W), from 0 to 1."""
    positive = np.maximum(maps, 0)
    grown = np.stack(
        [cv2.resize(grid, size[::-1], interpolation=cv2.INTER_CUBIC) for grid in positive]
    ).clip(0)
    top = grown.max()
    return (grown / top if top > 0 else grown).astype(np.float32)
