"""The training loop, its checkpoints and its progress display."""

from lmd.training.first_stage import FirstStages
from lmd.training.loop import Trainer
from lmd.training.progress import Display

__all__ = ["Display", "FirstStages", "Trainer"]
