"""The training loop and its checkpoints."""

from lmd.training.first_stage import FirstStages
from lmd.training.trainer import Trainer

__all__ = ["FirstStages", "Trainer"]
