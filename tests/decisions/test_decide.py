"""What a run folder says about decisions."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from runs_on_disk import SKIN, edited, make_run

from lmd.base.errors import LmdError
from lmd.decisions.decide import Decide
from lmd.decisions.policy import answers_of
from lmd.evaluation.evaluate import rescore
from lmd.runs.folder import Predictions, Run
from lmd.runs.record import Part
from lmd.scoring.proportions import class_mix


@pytest.fixture
def run(tmp_path: Path) -> Run:
    make_run(tmp_path / "run", SKIN)
    return Run(tmp_path / "run")


@pytest.mark.parametrize("kind", ["uniform", "training"])
def test_the_prior_of_the_file_is_that_of_the_method(run: Run, kind: str) -> None:
    assert run.predictions is not None
    model = run.record.model.model_copy(update={"prior": kind})
    prior, held_out = answers_of(run.record.replaced(model=model), run.predictions)
    assert prior is not None
    assert prior.kind == kind
    counts = run.record.data.counts["train"]
    np.testing.assert_allclose(prior.shares, class_mix(prior.kind, counts))
    assert held_out is not None
    of = run.predictions.parts["validation"]
    for k, values in enumerate(held_out.probabilities):
        own = np.sort(of.probabilities[of.labels == k, k])
        assert (np.array(values, np.float32) == own).all()
    assert held_out.tiers == run.record.tiers.assignment


def test_without_a_prior_only_what_depends_on_it_is_missing(run: Run) -> None:
    record = rescore(run.path)
    with edited(run.path) as values:
        values["model"]["prior"] = None
    unknown = rescore(run.path)
    assert record.decisions is not None
    assert unknown.decisions is not None
    assert unknown.decisions.per_class[0].ppv.value is None
    assert unknown.decisions.per_class[0].recall == record.decisions.per_class[0].recall
    with pytest.raises(LmdError, match="prevalence needs to know the mix"):
        rescore(run.path, decide=Decide(prevalence="uniform"))


def keep_part(run: Run, predictions: Predictions, part: Part) -> None:
    """Make it a run that has this part alone beside the training part."""
    run.write_predictions(replace(predictions, parts={part: predictions.parts[part]}))
    with edited(run.path) as values:
        counts = values["data"]["counts"]
        values["data"]["counts"] = {key: counts[key] for key in ("train", part)}


def test_sets_are_scored_on_the_test_part_with_thresholds_of_validation(run: Run) -> None:
    record = rescore(run.path, decide=Decide(coverage=0.95))
    assert record.sets is not None
    assert record.sets.requested == 0.95
    predictions = run.read_predictions()
    test = predictions.parts["test"]
    for k, one in enumerate(record.sets.per_class):
        own = test.probabilities[test.labels == k, k]
        assert one.coverage.value == pytest.approx((own >= np.float32(one.threshold)).mean())
    counts = run.record.data.counts
    keep_part(run, predictions, "validation")
    with pytest.raises(LmdError, match="coverage needs a test part"):
        rescore(run.path, decide=Decide(coverage=0.95))
    assert rescore(run.path).sets is None
    with edited(run.path) as values:
        values["data"]["counts"] = counts
    keep_part(run, predictions, "test")
    assert rescore(run.path).sets is None
    with pytest.raises(LmdError, match="a run without a validation part has none"):
        rescore(run.path, decide=Decide(coverage=0.9))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("uniform", "all classes equally frequent"),
        ("training", "as in the training part"),
        (dict.fromkeys(SKIN, 1 / len(SKIN)), "as given for each class"),
    ],
)
def test_the_stated_mix_is_in_the_record(run: Run, given: object, words: str) -> None:
    record = rescore(run.path, decide=Decide(prevalence=given))  # type: ignore[arg-type]
    assert record.decisions is not None
    assert record.decisions.prevalence == words
    shares = [one.prevalence for one in record.decisions.per_class]
    assert sum(share or 0 for share in shares) == pytest.approx(1)
