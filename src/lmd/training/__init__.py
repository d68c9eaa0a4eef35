"""The training loop and its checkpoints."""

from lmd.training.checkpoint import FirstStages
from lmd.training.loop import Trainer

__all__ = ["FirstStages", "Trainer"]
