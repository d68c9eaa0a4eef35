"""Equal tuning: trial runs, and the choice of each row's value on the validation part; no torch."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import ValidationError

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.benchmark.plan import Plan, PlannedRun, Trial
from lmd.runs.folder import Run, paired
from lmd.scoring.estimates import Plain
from lmd.scoring.metrics import Sample
from lmd.scoring.scores import bootstrap

HEADLINE = "balanced_accuracy"
CHOICES = "choices.json"
RESAMPLES = 1000
RULE = (
    "The default stays unless the balanced accuracy of another value on the validation part is "
    "higher by more than one standard error of the difference (same images; stratified bootstrap "
    "of images, or of patients or lesions); of several such values, the best."
)


class Score(Plain):
    """One candidate on the validation part; ``gain`` and ``se`` compare it with the default.

    All are ``None`` if training diverged, ``gain`` and ``se`` also if the default diverged.
    """

    label: str
    value: Any
    run: str
    balanced_accuracy: float | None = None
    gain: float | None = None
    se: float | None = None


class Choice(Plain):
    """The value that was chosen for a row; ``asked`` is a hash of the requests of its trials."""

    method: str
    setting: str
    default: str
    chosen: str
    seed: int
    asked: str
    trials: list[Score]

    @property
    def sentence(self) -> str:
        """The setting, the chosen value and all candidates, as a table shows them."""
        return f"{self.setting} {self.chosen} of {', '.join(score.label for score in self.trials)}"


class _File(Plain):
    format: Literal[1] = 1
    rule: str = RULE
    resamples: int = RESAMPLES
    choices: list[Choice]


Choices = dict[str, Choice]  # by the key of the tuned row


def pick(scores: Sequence[Score], default: str) -> str:
    """Return the label that ``RULE`` chooses; if the default diverged, the best other.

    >>> a = Score(label="1", value=1, run="a", balanced_accuracy=0.5, gain=0.0, se=0.0)
    >>> b = Score(label="2", value=2, run="b", balanced_accuracy=0.6, gain=0.1, se=0.08)
    >>> pick([a, b], "1"), pick([a, b.model_copy(update={"se": 0.1})], "1")
    ('2', '1')
    """
    trained = [s for s in scores if s.balanced_accuracy is not None]
    if not trained:
        raise LmdError(f"no value of the trials {[s.label for s in scores]} could be trained")
    if any(s.label == default for s in trained):
        # Treat a gain equal to its standard error as no gain (rounding).
        trained = [s for s in trained if (s.gain or 0.0) > (s.se or 0.0) + 1e-12]
    best = max(trained, key=lambda s: s.balanced_accuracy or 0.0, default=None)
    return default if best is None else best.label


def gain(run: Run, default: Run) -> tuple[float, float]:
    """Return how much better a run is than the default on validation, and the standard error."""
    value = _score(run) - _score(default)
    mine, theirs = paired(run, default, "validation")
    samples = [
        Sample(mine.labels, probabilities, groups=mine.groups)
        for probabilities in (mine.probabilities, theirs)
    ]
    a, b = (bootstrap(sample, [HEADLINE], resamples=RESAMPLES)[HEADLINE] for sample in samples)
    return value, float(np.std(a - b, ddof=1))


def trial_runs(plan: Plan, trial: Trial) -> list[PlannedRun]:
    """Return the runs of one trial, in the order of its values."""
    by_label = {
        run.tuned: run for run in plan.runs if (run.method, run.seed) == (trial.method, trial.seed)
    }
    return [by_label[label] for label in trial.values if label in by_label]


def undecided(plan: Plan, choices: Choices) -> dict[str, Trial]:
    """Return the rows that wait for a choice, with their trials."""
    return {key: t for t in plan.trials if t.method not in choices for key in t.rows}


def settled(plan: Plan, choices: Choices) -> Plan:
    """Return the plan with the chosen runs of each row; one without a choice has its default."""
    labels = {
        key: choices[trial.method].chosen if trial.method in choices else trial.default
        for trial in plan.trials
        for key in trial.rows
    }
    runs = [run for run in plan.runs if run.tuned == labels.get(run.method, "")]
    return replace(plan, runs=[run for run in runs if run.seed in plan.seeds])


def read_choices(plan: Plan, folder: Path) -> Choices:
    """Read the choices in a benchmark's folder that were made from the trials of this plan."""
    path = folder / CHOICES
    if not plan.trials or not path.exists():
        return {}
    try:
        file = _File.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise LmdError(
            f"{path} cannot be read: {str(error).splitlines()[0]}; delete it, and it will be "
            "written again from the trial runs"
        ) from None
    hashes = {trial.method: _hash(trial_runs(plan, trial)) for trial in plan.trials}
    return {c.method: c for c in file.choices if c.asked == hashes.get(c.method)}


def make_choices(plan: Plan, folder: Path, diverged: Collection[str] = ()) -> Choices:
    """Return all choices that can be made now or were made in earlier sessions; write new ones.

    A row whose trial runs are not all finished, or named in ``diverged``, is left for later.
    """
    choices = read_choices(plan, folder)
    before = len(choices)
    for trial in plan.trials:
        if trial.method not in choices and (choice := _choose(plan, trial, folder, diverged)):
            choices[trial.method] = choice
    if len(choices) > before:
        ordered = [choices[trial.method] for trial in plan.trials if trial.method in choices]
        text = _File(choices=ordered).model_dump_json(indent=1)
        atomic_write(folder / CHOICES, (text + "\n").encode())
    return choices


def _choose(plan: Plan, trial: Trial, folder: Path, diverged: Collection[str]) -> Choice | None:
    planned = trial_runs(plan, trial)
    runs = {run.tuned: Run(folder / run.name) for run in planned}
    finished = {label: run for label, run in runs.items() if run.is_finished()}
    if not finished or any(r.tuned not in finished and r.name not in diverged for r in planned):
        return None
    default = finished.get(trial.default)
    scores = []
    for run in planned:
        values: dict[str, float | None] = {}
        if mine := finished.get(run.tuned):
            better, se = gain(mine, default) if default is not None else (None, None)
            values = {"balanced_accuracy": _score(mine), "gain": better, "se": se}
        scores.append(Score(label=run.tuned, value=trial.values[run.tuned], run=run.name, **values))
    return Choice(
        method=trial.method,
        setting=trial.setting,
        default=trial.default,
        chosen=pick(scores, trial.default),
        seed=trial.seed,
        asked=_hash(planned),
        trials=scores,
    )


def _score(run: Run) -> float:
    estimate = run.record.metrics.get("validation", {}).get(HEADLINE)
    if estimate is None or estimate.value is None:
        raise LmdError(
            f"{run.path} has no balanced accuracy on a validation part, which [trials] needs: "
            "give the data a validation part, or remove [trials] from the grid"
        )
    return estimate.value


def _hash(runs: Sequence[PlannedRun]) -> str:
    """Hash the trials' requests, ignoring where the data lives."""
    requests: list[Mapping[str, Any]] = []
    for run in runs:
        protocol = {k: v for k, v in run.request["protocol"].items() if k != "workers"}
        columns = {k: v for k, v in run.request["columns"].items() if k != "root"}
        data = Path(run.request["data"]).name
        requests.append(run.request | {"protocol": protocol, "columns": columns, "data": data})
    return hashlib.sha256(json.dumps(requests, sort_keys=True).encode()).hexdigest()
