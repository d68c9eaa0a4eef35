import numpy as np
import pytest

from lmd.base.errors import LmdError
from lmd.scoring.tiers import assign_tiers

# ISIC-Archive-LT: images of each class, of which 70 % are for training.
ARCHIVE = {
    **{"NV": 12875, "MEL": 4522, "BCC": 3393, "SK": 1464, "AK": 869, "SCC": 656, "BKL": 384},
    **{"SL": 270, "VASC": 253, "DF": 246, "LK": 32, "LS": 27, "AN": 15, "AMP": 14},
}


def test_thresholds_give_the_tiers_of_isic_archive_lt():
    counts = np.array([int(0.7 * n) for n in ARCHIVE.values()])
    tiers = assign_tiers(counts, list(ARCHIVE), "head>1000,tail<180")
    names, of = np.array(list(ARCHIVE)), np.array(tiers.assignment)
    assert names[of == "head"].tolist() == ["NV", "MEL", "BCC", "SK"]
    assert names[of == "medium"].tolist() == ["AK", "SCC", "BKL", "SL"]
    assert names[of == "tail"].tolist() == ["VASC", "DF", "LK", "LS", "AN", "AMP"]


def test_a_list_gives_the_same_tiers_as_the_thresholds():
    counts = [int(0.7 * n) for n in ARCHIVE.values()]
    by_list = assign_tiers(
        counts,
        list(ARCHIVE),
        "head=NV,MEL,BCC,SK; medium = AK,SCC, BKL,SL; tail=VASC,DF,LK,LS,AN,AMP",
    )
    by_count = assign_tiers(counts, list(ARCHIVE), "tail<180, head>1000")
    assert by_list.assignment == by_count.assignment
    assert "head NV, MEL, BCC, SK" in by_list.rule
    assert "at least 1001" in by_count.rule
    assert "at most 179" in by_count.rule


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([5, 9], "tail head"),
        ([5, 5], "head tail"),
        ([1, 100, 10], "tail head medium"),
        ([10, 10, 10], "head medium tail"),
        ([7, 6, 5, 4], "head head medium tail"),
        ([3, 1, 2, 2, 9, 8, 7], "medium tail medium tail head head head"),
        ([8, 7, 6, 5, 4, 3, 2, 1], "head head head medium medium medium tail tail"),
    ],
)
def test_thirds(counts, expected):
    tiers = assign_tiers(counts, [f"c{k}" for k in range(len(counts))], "thirds")
    assert tiers.assignment == tuple(expected.split())
    assert "rank of training count" in tiers.rule


def test_thresholds_are_strict_or_not_as_written():
    counts, classes = [100, 99, 50, 20, 19], list("abcde")
    strict = assign_tiers(counts, classes, "head>99,tail<20").assignment
    loose = assign_tiers(counts, classes, "head>=99,tail<=20").assignment
    assert strict == ("head", "medium", "medium", "medium", "tail")
    assert loose == ("head", "head", "medium", "tail", "tail")
    halves = assign_tiers(counts, classes, "head>=50,tail<50").assignment
    assert halves == ("head", "head", "head", "tail", "tail")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("quarters", "'quarters' is not a rule; write \"thirds\""),
        ("", "is not a rule"),
        ("head>100", "no threshold for tail"),
        ("tail<100", "no threshold for head"),
        ("head<100,tail<10", "head classes are the frequent ones"),
        ("head>100,tail>10", "head classes are the frequent ones"),
        ("head>100,tail<many", "'tail<many' is not a threshold"),
        ("head>100,tail<10,head>50", "head has two thresholds"),
        ("head>100,tail<200", "a class with 101 training images would be head and tail"),
        ("head=A;tail=B", "no tier for C"),
        ("head=A,A;tail=B,C", "class 'A' is listed twice"),
        ("head=A;medium=B;tail=C,B", r"'B' is listed twice \(medium and tail\)"),
        ("head=A;tail=B,C,X", "unknown class 'X'; choose one of A, B, C"),
        ("head=A;rest=B,C", "'rest=B,C' is not TIER=CLASS"),
        ("head=A;head=B;tail=C", "head is given twice"),
    ],
)
def test_errors_name_what_is_wrong(rule, message):
    with pytest.raises(LmdError, match=message):
        assign_tiers([300, 100, 10], ["A", "B", "C"], rule)


def test_one_class_has_no_tiers():
    with pytest.raises(LmdError, match="at least two classes"):
        assign_tiers([3], ["A"], "thirds")
