import csv
import io

import pytest

from lmd.base.text import csv_text, near_miss, text_table, unknown


def test_a_table_has_lines_across_and_no_empty_rows():
    rows = [
        ("class", "tier", "n"),
        None,
        ("a", "head", "10"),
        ("", "", ""),
        ("b", "tail", ""),
        None,
    ]
    assert text_table(rows, "llr").splitlines() == [
        "class  tier   n",
        "---------------",
        "a      head  10",
        "b      tail",
        "---------------",
    ]


def test_a_long_cell_keeps_both_ends_within_its_limit():
    assert text_table([("synthetic-lmd-seed0", "x" * 30)], "l", limits=(12,)) == (
        f"synthe…seed0  {'x' * 30}"
    )


NAMES = ["=1+1", "@sum(a1)", "+cmd|' /C calc'!a0", "-hyperlink(1)", "\t=1"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_no_formula_in_the_header_and_in_a_cell_alike(name):
    header, row = csv.reader(io.StringIO(csv_text([name], [[name]]), newline=""))
    assert header == row == [f"'{name}"]
    assert csv_text([name], [[name]], exact=True) == csv_text([name], [], exact=True) * 2


@pytest.mark.parametrize("name", ["+ve", "-ve", "@x", "-12.png", "-1.5e-3", "a=b", "", "nevus (1)"])
def test_a_harmless_name_is_exact_in_a_csv_file(name):
    rows = list(csv.reader(io.StringIO(csv_text(["image", "n"], [[name, -0.5]]), newline="")))
    assert rows == [["image", "n"], [name, "-0.5"]]


def test_cells_that_a_row_lacks_are_empty():
    assert csv_text(["a", "b"], [{"b": 1, "c": 2}, [None, 0.1]]) == "a,b\n,1\n,0.1\n"


def test_near_misses() -> None:
    assert near_miss("Melanom", ["nevus", "melanoma"]) == "melanoma"
    assert near_miss("batchsize", ["batch_size", "head_size"]) == "batch_size"
    assert near_miss("x", ["nevus", "melanoma"]) is None
    assert unknown("class", "x", []) == "unknown class 'x'; choose one of none"
