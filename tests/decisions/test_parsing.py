"""Every way to state a mix of classes, also wrongly."""

from pathlib import Path

import numpy as np
import pytest

from lmd.base.errors import LmdError
from lmd.decisions.policy import parse_prevalence

CLASSES = ["nv", "mel", "df"]
COUNTS = [90, 9, 1]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("uniform", [1 / 3] * 3),
        ("training", [0.9, 0.09, 0.01]),
        ("df=0.1, nv=0.6,mel=0.3", [0.6, 0.3, 0.1]),
        ({"mel": 0.3, "df": 0.1, "nv": 0.6}, [0.6, 0.3, 0.1]),
        ("nv=0.6004,mel=0.3,df=0.1", [0.6004 / 1.0004, 0.3 / 1.0004, 0.1 / 1.0004]),
    ],
)
def test_ways_to_state_a_mix(given: object, expected: list[float]) -> None:
    found = parse_prevalence(given, CLASSES, COUNTS)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, expected)


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mix.csv"
    path.write_text("class,prevalence\n\nmel, 0.3\nnv,0.6\ndf,0.1\n", encoding="utf-8-sig")
    np.testing.assert_allclose(parse_prevalence(path, CLASSES, COUNTS), [0.6, 0.3, 0.1])
    path.write_text("class,share\nnv,1\n")
    with pytest.raises(LmdError, match=r"class,prevalence.*begins with 'class,share'"):
        parse_prevalence(str(path), CLASSES, COUNTS)
    path.write_bytes(b"class,prevalence\n\xff\xfe,1\n")
    with pytest.raises(LmdError, match="is not a CSV file in UTF-8"):
        parse_prevalence(path, CLASSES, COUNTS)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("nv=0.5,mel=0.5", "no value for df; give one for every class"),
        ("nv=0.5,mel=0.3,df=0.1,scc=0.1", "unknown class 'scc'; choose one of nv, mel, df"),
        ("nv=1.2,mel=-0.3,df=0.1", "the value of mel must be a number of at least 0; it is '-0.3'"),
        ("nv=nan,mel=0.3,df=0.1", "the value of nv must be a number"),
        ("nv=,mel=0.3,df=0.1", "the value of nv must be a number of at least 0; it is empty"),
        ("nv=70,mel=20,df=10", "must sum to 1 within 0.001; they sum to 100"),
        ("nv=0.7,nv=0.2,df=0.1", "class 'nv' is given twice"),
        ("everywhere", "prevalence must be uniform, training, a .csv file"),
        ("", "prevalence must be uniform, training, a .csv file"),
        ("nowhere.csv", "nowhere.csv cannot be read"),
    ],
)
def test_mistakes_are_one_line(given: str, words: str) -> None:
    with pytest.raises(LmdError) as error:
        parse_prevalence(given, CLASSES, COUNTS)
    assert words in str(error.value)
    assert "prevalence" in str(error.value)
    assert "\n" not in str(error.value)
