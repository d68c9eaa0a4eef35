"""Where in an image the evidence for a class is: gradient times activation of feature maps."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lmd.base.errors import LmdError
from lmd.model import Model


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
