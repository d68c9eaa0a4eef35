"""The plain stage that most methods are made of: one loss on one view."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from lmd.contract.stage import Batch, Rate, Run, Schedule, Stage, Terms
from lmd.model import Model

Criterion = Callable[[Tensor, Tensor], Tensor]


class PerClass(nn.Module):
    """``loss(logits, labels, values, **settings)``; ``values (K,)`` move with the model."""

    values: Tensor

    def __init__(self, loss: Callable[..., Tensor], values: Tensor, **settings: float) -> None:
        super().__init__()
        self.loss, self.settings = loss, settings
        self.register_buffer("values", values, persistent=False)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of ``(B, K)`` and ``(B,)``."""
        return self.loss(logits, labels, self.values, **self.settings)


class Supervised(Stage):
    """``criterion(logits (B, K), labels (B,))`` on the label view.

    ``draw(run)`` gives the weights of each epoch in place of ``weights``. A criterion that is a
    module may hold buffers: they are in the checkpoint.
    """

    def __init__(
        self,
        model: Model,
        criterion: Criterion = F.cross_entropy,
        *,
        part: nn.Module | None = None,
        weights: Tensor | None = None,
        weight_decay: float | None = None,
        epochs: int | None = None,
        lr: Rate | None = None,
        schedule: Schedule | None = None,
        draw: Callable[[Run], Tensor | None] | None = None,
    ) -> None:
        super().__init__(
            part,
            weights=weights,
            weight_decay=weight_decay,
            epochs=epochs,
            lr=lr,
            schedule=schedule,
        )
        self.model, self.criterion, self.draw = model, criterion, draw

    def class_weights(self, run: Run) -> list[Tensor | None]:
        """One stream."""
        return [self.weights if self.draw is None else self.draw(run)]

    def loss(self, *batches: Batch) -> Terms:
        """The criterion on the logits of the label view."""
        (batch,) = batches
        return {"loss": self.criterion(self.model(batch.views["label"]), batch.labels)}
