"""The plain stage that most methods are made of: one loss on one view."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from lmd.contract.stage import Batch, ParameterGroups, Run, Stage, Terms
from lmd.model import Model

Criterion = Callable[[Tensor, Tensor], Tensor]


class Supervised(Stage):
    """``criterion(logits (B, K), labels (B,))`` on the weak view.

    ``weights (K,)`` draws an image of class k with that weight; ``part`` trains only that part of
    the model. A criterion that is a module may hold buffers: they are in the checkpoint.
    """

    weights: Tensor | None

    def __init__(
        self,
        model: Model,
        criterion: Criterion = F.cross_entropy,
        *,
        weights: Tensor | None = None,
        part: nn.Module | None = None,
        epochs: int | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.criterion = criterion
        self.part = part if part is not None else model
        self.epochs = epochs
        self.register_buffer("weights", weights, persistent=False)

    def trainable(self) -> ParameterGroups:
        """The parameters of ``part``."""
        return list(self.part.parameters())

    def class_weights(self, run: Run) -> list[Tensor | None]:
        """One stream, drawn with ``weights``."""
        return [self.weights]

    def loss(self, *batches: Batch) -> Terms:
        """The criterion on the logits of the weak view."""
        (batch,) = batches
        return {"loss": self.criterion(self.model(batch.views["weak"]), batch.labels)}
