"""The answers of a shipped model for several images."""

import csv
import io
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.files import atomic_write
from lmd.base.text import no_formula
from lmd.deploy.decisions import extra_columns
from lmd.scoring.conformal import Guarantee
from lmd.scoring.rules import Decided, Rule

SHOWN = 5  # images in the representation


@dataclass(frozen=True, repr=False)
class Prediction:
    """``probabilities (N, K)`` of the images ``names (N,)``, in the order of ``classes (K,)``.

    ``skipped`` says which images could not be read, and why. ``decided`` has what follows from the
    ``rule``: classes, prediction sets and referrals. ``unlike_training (N,)`` flags images unlike
    the training images; it is ``None`` if the model cannot tell. ``notes`` say what else is worth
    knowing, such as files with several frames; ``passed_over`` are the files in given folders that
    are not images.
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    probabilities: NDArray[np.floating[Any]]
    decided: Decided
    rule: Rule
    skipped: tuple[str, ...] = ()
    unlike_training: NDArray[np.bool_] | None = None
    notes: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        """The classes and probabilities of the first images."""
        chosen = zip(self.names, self.labels, self.probabilities, self.decided.chosen, strict=True)
        rows = [f"  {name}: {label} {p[k]:.3f}" for name, label, p, k in islice(chosen, SHOWN)]
        more = [f"  and {len(self) - SHOWN} more"] if len(self) > SHOWN else []
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        return "\n".join([f"<prediction of {len(self)} images{skipped}", *rows, *more]) + ">"

    @property
    def labels(self) -> tuple[str, ...]:
        """The most probable class of each image, or the cheapest one if there are costs."""
        return tuple(self.classes[k] for k in self.decided.chosen)

    @property
    def sets(self) -> tuple[tuple[str, ...], ...] | None:
        """The prediction set of each image, if a coverage was asked for."""
        if self.decided.sets is None:
            return None
        return tuple(
            tuple(name for name, inside in zip(self.classes, row, strict=True) if inside)
            for row in self.decided.sets
        )

    @property
    def guarantees(self) -> dict[str, Guarantee]:
        """What the coverage of each class means; empty without prediction sets."""
        return dict(zip(self.classes, self.rule.sets or (), strict=False))

    def write_csv(self, path: str | Path) -> None:
        """Write one row per image: name, class, its probability, decisions, all probabilities.

        The column ``unlike_training`` (true or false) is there if it is known. Cells that a
        spreadsheet would compute have an apostrophe before them.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        extra = dict(extra_columns(self.decided, self.rule, self.classes))
        if self.unlike_training is not None:
            extra["unlike_training"] = [str(bool(flag)).lower() for flag in self.unlike_training]
        every = (f"p:{name}" for name in self.classes)
        writer.writerow(["image", "predicted", "probability", *extra, *every])
        for i, (name, k) in enumerate(zip(self.names, self.decided.chosen, strict=True)):
            row = [f"{p:.6f}" for p in self.probabilities[i]]
            cells = [column[i] for column in extra.values()]
            words = [no_formula(str(cell)) for cell in (name, self.classes[k], row[k], *cells)]
            writer.writerow([*words, *row])
        atomic_write(Path(path), text.getvalue().encode(), parents=True)
