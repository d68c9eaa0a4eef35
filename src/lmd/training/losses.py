"""The loss terms of an epoch, kept on the device and read every ``READ_EVERY`` steps."""

from math import isfinite
from pathlib import Path

import torch
from torch import Tensor

from lmd.base.distributed import check_same
from lmd.base.errors import DivergedError
from lmd.contract.stage import Terms

# Reading a number waits for all work queued on the GPU.
READ_EVERY = 50  # steps


class LossTerms:
    """Sums and checks the loss terms of an epoch without waiting for the device in each step."""

    def __init__(self, epoch: int, checkpoint: Path) -> None:
        self.epoch, self.checkpoint = epoch, checkpoint
        self.batches = 0  # that have been read
        self.sums: dict[str, float] = {}
        self._unread: list[dict[str, Tensor]] = []
        self._newest: dict[str, Tensor] = {}

    def add(self, terms: Terms) -> None:
        """Add the terms of the next batch; the loss comes first."""
        loss = terms["loss"]
        self._newest = {
            key: value.detach().reshape(()).to(loss.device, torch.float64, copy=True)
            for key, value in {"loss": loss, **terms}.items()
        }
        self._unread.append(self._newest)
        # The first batch is read at once, as it shows most mistakes.
        if self.batches == 0 or len(self._unread) == READ_EVERY:
            check_same(self.read())

    def read(self) -> list[float]:
        """Sum and check the terms added since the last call; returns the loss of each batch."""
        rows, self._unread = self._unread, []
        if not rows:
            return []
        numbers = iter(torch.stack([value for row in rows for value in row.values()]).tolist())
        losses = []
        for row in rows:
            values = {key: next(numbers) for key in row}
            for key, value in values.items():
                if not isfinite(value):
                    raise self._error(key, value)
                self.sums[key] = self.sums.get(key, 0.0) + value
            self.batches += 1
            losses.append(values["loss"])
        return losses

    def newest(self) -> dict[str, float]:
        """The terms of the last batch."""
        return {key: float(value) for key, value in self._newest.items()}

    def means(self) -> dict[str, float]:
        """The mean of every term over the epoch."""
        check_same(self.read())
        return {key: value / self.batches for key, value in self.sums.items()}

    def _error(self, term: str, value: float) -> DivergedError:
        kept = (
            f"the last good checkpoint is kept in {self.checkpoint.parent}"
            if self.checkpoint.exists()
            else "there is no checkpoint yet"
        )
        return DivergedError(
            f"loss term {term!r} is {value} in epoch {self.epoch + 1}, batch {self.batches + 1}: "
            f"training stopped; {kept}. Try a smaller learning rate (--set lr=…)."
        )
