"""The training loop, its checkpoints and its progress display."""

from lmd.base.progress import Display
from lmd.training.first_stage import FirstStages
from lmd.training.loop import Trainer

__all__ = ["Display", "FirstStages", "Trainer"]
