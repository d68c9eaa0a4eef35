"""A batch shared by several processes: each encodes its slice, then all have all features.

Whatever follows the encoder (classifier, losses, counts, relations among samples) sees the whole
batch in every process, so a stage does not need to know about processes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmd.base import distributed as dist
from lmd.base.errors import LmdError

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)

# The number of images of the current batch in each process; None outside a step.
_sizes: ContextVar[tuple[int, ...] | None] = ContextVar("sizes", default=None)


@contextmanager
def sharing(size: int) -> Iterator[None]:
    """In this context the encoder works on this process's slice of a batch of ``size``."""
    n = dist.world()
    cuts = [dist.cut(size, p, n) for p in range(n)]
    token = _sizes.set(tuple(c.stop - c.start for c in cuts))
    try:
        yield
    except IndexError as error:
        # Indexing the images by labels of the whole batch fails: images are a slice of it.
        raise dist.NotShareable(dist.TOGETHER.format(n)) from error
    finally:
        _sizes.reset(token)


@contextmanager
def split_encoder(encoder: nn.Module) -> Iterator[None]:
    """In this context and ``sharing``, the encoder returns the features of the whole batch.

    Its BatchNorm layers normalise by the whole batch too. Parameters keep their names.
    """
    for module in encoder.modules():
        if isinstance(module, _NORMS) and type(module) not in (nn.BatchNorm2d, _SharedBatchNorm):
            raise LmdError(
                f"backbone: several processes cannot share its {type(module).__name__} layers: "
                "choose another backbone, or train with one process"
            )
    # A copy of the encoder, such as an averaged teacher, keeps the shared layers and the hook.
    handle = encoder.register_forward_hook(_gather)
    _exchange(encoder, nn.BatchNorm2d, _SharedBatchNorm)
    try:
        yield
    finally:
        handle.remove()
        _exchange(encoder, _SharedBatchNorm, nn.BatchNorm2d)


def _exchange(encoder: nn.Module, old: type[nn.BatchNorm2d], new: type[nn.BatchNorm2d]) -> None:
    """Put layers of another type in place of the old ones, with the same tensors."""
    for parent in list(encoder.modules()):
        for name, norm in parent.named_children():
            if type(norm) is old:
                layer = new(norm.num_features, norm.eps, norm.momentum)
                layer.affine, layer.track_running_stats = norm.affine, norm.track_running_stats
                layer.weight, layer.bias = norm.weight, norm.bias
                layer.running_mean, layer.running_var = norm.running_mean, norm.running_var
                layer.num_batches_tracked = norm.num_batches_tracked
                setattr(parent, name, layer.train(norm.training))


def _gather(_module: nn.Module, _inputs: object, rows: Tensor) -> Tensor:
    """Return the rows ``(m n_r, …)`` of all processes as ``(m N, …)``, as one process has them.

    Process r has ``n_r`` images in m blocks, the views that are encoded together. The gradient is
    scaled by the number of processes, as ``average_gradients`` expects.
    """
    sizes = _sizes.get()
    if sizes is None:
        return rows
    images = sizes[dist.rank()]
    blocks = len(rows) // images if images else 0
    if min(sizes) == 0:
        # A process without images cannot count the blocks.
        blocks = max(int(number) for number in dist.all_gather(torch.tensor(blocks)))
    if len(rows) != blocks * images:
        raise dist.NotShareable(dist.TOGETHER.format(len(sizes)))
    gathered: Tensor = _Gather.apply(rows, sizes, blocks)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: tuple[int, ...], blocks: int) -> Tensor:
        ctx.sizes, ctx.blocks = sizes, blocks
        # Collectives need equal shapes, so short slices are padded and cut afterwards.
        padded = rows.new_zeros(blocks * max(sizes), *rows.shape[1:])
        padded[: len(rows)] = rows
        slices = [
            part[: blocks * n].unflatten(0, (blocks, n))
            for part, n in zip(dist.all_gather(padded), sizes, strict=True)
        ]
        return torch.cat(slices, 1).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        # Every process has the same loss of all features and needs the gradient of its rows.
        start = sum(ctx.sizes[: dist.rank()])
        blocks = gradient.unflatten(0, (ctx.blocks, sum(ctx.sizes)))
        rows = blocks[:, start : start + ctx.sizes[dist.rank()]].flatten(0, 1)
        return rows * len(ctx.sizes), None, None


class _SharedBatchNorm(nn.BatchNorm2d):
    """BatchNorm over the whole batch while it is shared, on CPUs and GPUs."""

    def forward(self, input: Tensor) -> Tensor:
        """``(B, C, H, W)`` normalised by the moments of the images of all processes."""
        if not self.training or _sizes.get() is None:
            return super().forward(input)
        output, mean, var, count = _Normalise.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, self.eps
        )
        if self.track_running_stats and self.running_mean is not None:
            assert self.running_var is not None
            assert self.num_batches_tracked is not None
            self.num_batches_tracked += 1
            weight = self.momentum
            if weight is None:
                weight = 1 / float(self.num_batches_tracked)
            with torch.no_grad():
                unbiased = var * (count / (count - 1))
                self.running_mean.lerp_(mean.to(self.running_mean), weight)
                self.running_var.lerp_(unbiased.to(self.running_var), weight)
        return output  # type: ignore[no-any-return]


class _Normalise(torch.autograd.Function):
    """Combines means and variances of all processes in float64."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        dims = [d for d in range(x.ndim) if d != 1]
        count = x.numel() // x.shape[1]
        local = torch.zeros(2, x.shape[1], dtype=torch.float64, device=x.device)
        if count:
            var, mean = torch.var_mean(_full(x), dims, correction=0)
            local = torch.stack([mean, var]).double()
        packed = torch.cat([local.flatten(), local.new_tensor([float(count)])])
        everyone = torch.stack(dist.all_gather(packed))
        counts = everyone[:, -1:]
        means, variances = everyone[:, :-1].unflatten(1, (2, -1)).unbind(1)
        total = counts.sum()
        mean = (counts * means).sum(0) / total
        var = (counts * (variances + (means - mean).square())).sum(0) / total
        kind = _full(x[:0]).dtype
        ctx.save_for_backward(x, weight, mean.to(kind), (var + eps).rsqrt().to(kind), total)
        output = F.batch_norm(x, mean.to(kind), var.to(kind), weight, bias, False, 0.0, eps)
        ctx.mark_non_differentiable(mean, var, total)
        return output, mean, var, total

    @staticmethod
    def backward(
        ctx: Any, gradient: Tensor, *_: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        x, weight, mean, inverse, total = ctx.saved_tensors
        dims = [d for d in range(x.ndim) if d != 1]
        shape = [-1 if d == 1 else 1 for d in range(x.ndim)]
        dy = _full(gradient)
        deviation = _full(x) - mean.view(shape)
        sums = torch.stack([dy.sum(dims), (dy * deviation).sum(dims) * inverse])
        own_bias, own_weight = sums.clone()
        dist.all_reduce(sums)
        first, second = (sums / total).to(dy.dtype)
        scale = inverse if weight is None else inverse * _full(weight)
        # dx = scale (dy - mean(dy) - x̂ mean(dy x̂)), with x̂ = deviation · inverse.
        deviation.mul_((second * inverse).neg_().view(shape)).sub_(first.view(shape)).add_(dy)
        dx = deviation.mul_(scale.view(shape)).to(x.dtype)
        if weight is None:
            return dx, None, None, None
        return dx, own_weight.to(weight.dtype), own_bias.to(weight.dtype), None


def _full(tensor: Tensor) -> Tensor:
    """At least float32: sums over a batch need more than half precision."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
