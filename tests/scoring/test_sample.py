import numpy as np
import pytest
from toys import toy_predictions

from lmd.base.errors import LmdError
from lmd.scoring.metrics import ECE_BINS, Sample


def test_rows_are_sorted_by_class_and_keep_what_belongs_to_them():
    labels, probabilities = toy_predictions((5, 0, 7, 3))
    groups = np.arange(len(labels))
    sample = Sample(labels, probabilities, groups=groups)
    np.testing.assert_array_equal(sample.labels, np.sort(labels))
    np.testing.assert_array_equal(sample.labels, labels[sample.groups])
    np.testing.assert_array_equal(sample.probabilities, probabilities[sample.groups])
    assert [rows.stop - rows.start for rows in sample.rows] == [5, 0, 7, 3]
    for k, rows in enumerate(sample.rows):
        assert (sample.labels[rows] == k).all()


def test_the_first_of_equally_probable_classes_is_predicted():
    sample = Sample(np.array([1]), np.array([[0.2, 0.4, 0.4]]))
    assert sample.predicted.tolist() == [1]


def test_a_bin_holds_its_right_edge():
    edges = np.arange(1, ECE_BINS + 1) / ECE_BINS
    top = np.concatenate([edges, edges - 1e-6, edges[:-1] + 1e-6])
    sample = Sample(np.zeros(len(top), int), np.stack([top, np.zeros_like(top)], axis=1))
    places = np.arange(ECE_BINS)
    expected = np.concatenate([places, places, places[1:]])
    np.testing.assert_array_equal(sample.bins, expected)


def test_rankings_count_pairs_as_a_loop_does():
    labels, probabilities = toy_predictions((6, 4, 3), seed=1)
    sample = Sample(labels, np.round(probabilities, 1))
    for k, (_, _, starts, below, up_to) in enumerate(sample.rankings):
        scores = sample.probabilities[:, k]
        others = scores[sample.labels != k]
        for i, own in enumerate(scores[sample.labels == k]):
            ends = [*starts, len(others)]
            assert ends[below[i]] == sum(other < own for other in others)
            assert ends[up_to[i]] == sum(other <= own for other in others)


def test_members():
    labels, probabilities = toy_predictions((4, 3, 2))
    sample = Sample(labels, probabilities, ("head", "tail", "tail"), np.where(labels == 0, 7, 9))
    assert sample.members("tail").tolist() == [False, True, True]
    assert sample.members("medium").tolist() == [False] * 3
    assert sample.members(None).tolist() == [True] * 3


def test_errors():
    labels, probabilities = toy_predictions()
    with pytest.raises(LmdError, match="one row per image"):
        Sample(labels[:-1], probabilities)
    with pytest.raises(LmdError, match="one row per image"):
        Sample(labels[:0], probabilities[:0])
