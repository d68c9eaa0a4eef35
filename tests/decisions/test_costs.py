"""Decisions by expected cost against a naive loop, and every way a table of costs can be wrong."""

from pathlib import Path

import numpy as np
import pytest

from lmd.base.errors import LmdError
from lmd.decisions.policy import Costs, parse_costs

CLASSES = ["nv", "mel", "df"]
TABLE = "true,nv,mel,df,refer\nnv,0,1,1,0.5\nmel,20,0,20,0.5\ndf,1,1,0,0.5\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "costs.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_cheapest_class_by_a_loop() -> None:
    rng = np.random.default_rng(0)
    p, table, refer = rng.dirichlet(np.ones(3), 40), rng.uniform(0, 5, (3, 3)), rng.uniform(0, 3, 3)
    chosen, referred = Costs(table, refer).decide(p)
    for row, k, away in zip(p, chosen, referred, strict=True):
        costs = [sum(row[i] * table[i, j] for i in range(3)) for j in range(3)]
        assert k == costs.index(min(costs))
        assert away == (sum(row * refer) < min(costs))
    assert 0 < referred.sum() < 40


def test_equal_costs_decide_for_the_most_probable_class() -> None:
    p = np.random.default_rng(1).dirichlet(np.ones(3), 100)
    chosen, referred = parse_costs(dict.fromkeys(CLASSES, 2), CLASSES).decide(p)
    assert (chosen == p.argmax(1)).all()
    assert not referred.any()


def test_a_dear_mistake_moves_the_threshold_to_its_share() -> None:
    """With two classes and costs 1 and 9, the dear one is decided from a probability of 0.1 on."""
    costs = parse_costs({"nv": 1, "mel": 9}, ["nv", "mel"])
    p = np.array([[0.91, 0.09], [0.89, 0.11]])
    assert costs.decide(p)[0].tolist() == [0, 1]


def test_both_kinds_of_file(tmp_path: Path) -> None:
    weights = parse_costs(written(tmp_path, "class,cost\nmel,20\nnv,1\ndf,1\n"), CLASSES)
    assert weights.table.tolist() == [[0, 1, 1], [20, 0, 20], [1, 1, 0]]
    assert weights.refer is None
    table = parse_costs(written(tmp_path, TABLE), CLASSES)
    np.testing.assert_array_equal(table.table, weights.table)
    assert table.refer is not None
    assert table.refer.tolist() == [0.5] * 3
    nested = {n: dict(zip(CLASSES, row, strict=True)) for n, row in
              zip(CLASSES, table.table.tolist(), strict=True)}  # fmt: skip
    np.testing.assert_array_equal(parse_costs(nested, CLASSES).table, table.table)


def test_a_class_may_be_called_refer(tmp_path: Path) -> None:
    found = parse_costs(written(tmp_path, "t,a,refer\na,0,1\nrefer,2,0\n"), ["a", "refer"])
    assert found.refer is None
    assert found.table.tolist() == [[0, 1], [2, 0]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("class,cost\nnv,1\nmel,2\n", "no value for df"),
        ("class,cost\nnv,1\nmel,2\ndf,1\nscc,1\n", "unknown class 'scc'"),
        ("class,cost\nnv,1\nmel,-2\ndf,1\n", "the value of mel must be a number of at least 0"),
        ("class,cost\nnv,1\nnv,2\ndf,1\n", "class 'nv' is given twice"),
        ("class,cost\nnv,0\nmel,0\ndf,0\n", "all costs are 0"),
        (
            TABLE.replace("20,0,20", "20,0,"),
            "cell of true mel and predicted df must be a number of",
        ),
        (TABLE.replace("20,0,20", "20,0,-1"), "cell of true mel and predicted df"),
        (TABLE.replace("20,0,20,0.5", "20,0"), "the row of 'mel' has 3"),
        (TABLE.replace("df,1,1,0,0.5\n", ""), "no value for df"),
        (TABLE.replace("mel,df", "mel,scc"), "row of nv: unknown class 'scc'"),
        (TABLE.replace("nv,mel,df", "nv,mel,mel"), "class 'mel' is given twice"),
        ("", "must have the columns class,cost"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(LmdError) as error:
        parse_costs(written(tmp_path, text), CLASSES)
    assert words in str(error.value)
    assert "costs" in str(error.value)
    assert "\n" not in str(error.value)


def test_mappings_are_checked_as_files_are(tmp_path: Path) -> None:
    with pytest.raises(LmdError, match="not a mixture"):
        parse_costs({"nv": 1, "mel": {"nv": 1}, "df": 1}, CLASSES)
    row = dict.fromkeys(CLASSES, 1)
    with pytest.raises(LmdError, match="row of mel: no value for refer"):
        parse_costs({"nv": row | {"refer": 1}, "mel": row, "df": row}, CLASSES)
    with pytest.raises(LmdError, match=r"nowhere\.csv cannot be read"):
        parse_costs(tmp_path / "nowhere.csv", CLASSES)
