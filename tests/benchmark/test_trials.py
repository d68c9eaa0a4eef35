"""Equal tuning: the rule, the plan, the choices and what the table says of them."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from runs_on_disk import as_planned, edited_arrays, write_hits
from toys import ROOT

from lmd.base.errors import LmdError
from lmd.benchmark.plan import Plan, read_plan, write_plan
from lmd.benchmark.planning import plan_grid
from lmd.benchmark.results import read_results
from lmd.benchmark.tables import make_tables
from lmd.benchmark.trials import (
    RULE,
    Score,
    gain,
    make_choices,
    pick,
    read_choices,
    settled,
    trial_runs,
    undecided,
)

TRIALS = """
methods = ["ce", "rs", "lmd_wo_fdc", "lmd"]
seeds = [0, 1]
[trials.settings]
ce = { lr = [0.003, 0.01, 0.03] }
lmd = { lambda_1 = [3, 10.0, 30] }
"""


def planned(folder: Path, text: str = TRIALS) -> Plan:
    path = folder / "grid.toml"
    path.write_text('data = "a.csv"\n' + text)
    return plan_grid(path)


def write_trials(plan: Plan, folder: Path, hits: dict[str, tuple[int, int]]) -> None:
    for name, each in hits.items():
        assert name in {run.name for run in plan.runs}
        write_hits(folder / name, each)
    as_planned(plan, folder)


def scores(*given: tuple[float, float] | None) -> list[Score]:
    """Candidates 0, 1, … with gain and standard error; the first is the default."""
    return [
        Score(label=str(i), value=i, run="", balanced_accuracy=0.5 + g[0], gain=g[0], se=g[1])
        if g
        else Score(label=str(i), value=i, run="")
        for i, g in enumerate(given)
    ]


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ([(0, 0), (0.05, 0.049), (-0.1, 0.01)], "1"),
        ([(0, 0), (0.05, 0.051), (0.02, 0.03)], "0"),
        ([(0, 0), (0.05, 0.05), (0, 0)], "0"),  # not more than one standard error
        ([(0, 0), (0.05, 0.01), (0.06, 0.02)], "2"),
        ([(0, 0), (0.06, 0.2), (0.05, 0.02)], "2"),  # the best of those that pass
        ([(0, 0), (0.05, 0.01), (0.05, 0.02)], "1"),  # equal: the first
        ([(0, 0), None, (0.0, 0.0)], "0"),
    ],
)
def test_the_default_stays_within_one_standard_error(given: Any, chosen: str) -> None:
    assert pick(scores(*given), "0") == chosen


def test_a_default_that_diverged_loses() -> None:
    others = [
        Score(label=s, value=s, run="", balanced_accuracy=b) for s, b in (("1", 0.4), ("2", 0.5))
    ]
    assert pick([*scores(None), *others], "0") == "2"
    with pytest.raises(LmdError, match="could be trained"):
        pick(scores(None, None), "0")


def test_the_standard_error_is_that_of_paired_images(tmp_path: Path) -> None:
    default = write_hits(tmp_path / "default", (30, 10))
    better = write_hits(tmp_path / "better", (32, 14))
    value, se = gain(better, default)
    # Recall rises by 2/40 and 4/20; the variance of each difference comes from these images only.
    assert value == pytest.approx((2 / 40 + 4 / 20) / 2)
    shares = ((2 / 40, 40), (4 / 20, 20))
    assert se == pytest.approx(0.5 * sum(p * (1 - p) / n for p, n in shares) ** 0.5, rel=0.1)
    assert gain(default, default) == (0.0, 0.0)
    # The same gain from fewer independent lesions is less certain.
    grouped = [
        write_hits(tmp_path / f"g{i}", hits, groups=4)
        for i, hits in enumerate(((32, 14), (30, 10)))
    ]
    assert gain(*grouped)[1] > 1.1 * se


def test_every_candidate_is_checked_and_the_default_is_the_run_without_trials(
    tmp_path: Path,
) -> None:
    plan = planned(tmp_path)
    first = [run.name for trial in plan.trials for run in trial_runs(plan, trial)]
    assert first == [
        *("ce-lr=0.003-seed0", "ce-seed0", "ce-lr=0.03-seed0"),
        *("lmd-lambda_1=3-seed0", "lmd-seed0", "lmd-lambda_1=30-seed0"),
    ]
    plain = planned(tmp_path, TRIALS.split("[trials", maxsplit=1)[0])
    assert settled(plan, {}).runs != plain.runs  # these have labels
    by_name = {run.name: run for run in plan.runs}
    for run in plain.runs:
        assert by_name[run.name].request == run.request
        assert by_name[run.name].command == run.command
    assert by_name["ce-lr=0.03-seed1"].request["protocol"]["lr"] == 0.03
    assert by_name["lmd_wo_fdc-lambda_1=3-seed1"].request["settings"]["lambda_1"] == 3.0
    assert {key: list(t.values) for t in plan.trials for key in t.rows} == {
        "ce": ["0.003", "0.01", "0.03"],
        "lmd": ["3", "10", "30"],
        "lmd_wo_fdc": ["3", "10", "30"],
    }
    write_plan(plan, tmp_path)
    assert read_plan(tmp_path) == plan


def test_an_own_entry_or_an_own_value_is_not_inherited(tmp_path: Path) -> None:
    own = TRIALS + "lmd_wo_fdc = { lr = [0.003, 0.01, 0.03] }\n"
    assert [trial.rows for trial in planned(tmp_path, own).trials] == [
        ["ce"],
        ["lmd_wo_fdc"],
        ["lmd"],
    ]
    vfc = 'methods = ["lmd_wo_vfc", "lmd"]\n[trials.settings]\nlmd = { vfc = [true, false] }\n'
    assert [trial.rows for trial in planned(tmp_path, vfc).trials] == [["lmd"]]


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8")
    (example,) = (block for block in page.split("```")[1::2] if "[trials.settings]" in block)
    (tmp_path / "skin.toml").write_text(example.removeprefix("toml"))
    plan = plan_grid(tmp_path / "skin.toml")
    assert [len(trial_runs(plan, trial)) for trial in plan.trials] == [3, 3, 3]
    assert {trial.method: trial.rows for trial in plan.trials}["lmd"] == ["lmd", "lmd_wo_levels"]
    assert RULE.split(" (", maxsplit=1)[0] in " ".join(page.split())


def test_the_shipped_trials_cover_the_rows() -> None:
    plan = plan_grid("ham10000-lt")
    tuned = {key for trial in plan.trials for key in trial.rows}
    assert {row.key for row in plan.rows} == tuned
    assert {len(trial.values) for trial in plan.trials} == {3}


def test_a_seed_for_trials_alone(tmp_path: Path) -> None:
    plan = planned(tmp_path, TRIALS.replace("[trials.", "[trials]\nseed = 7\n[trials."))
    assert {run.seed for t in plan.trials for run in trial_runs(plan, t)} == {7}
    assert {run.seed for run in settled(plan, {}).runs} == {0, 1}
    assert {run.method for run in plan.runs if run.seed == 7} == {"ce", "lmd"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ce = { lr = [0.1, 0.2] }", "must contain the one that is used without trials, 0.01"),
        ("ce = { lr = [0.01, 0.02] }\nrs = { lr = [0.01, 0.02, 0.03] }", "ce has 2, rs has 3"),
        ("ce = { lr = [0.01] }", "at least two values"),
        ("ce = { lr = [0.01, 0.01] }", "differ from one another"),
        ("ce = { lr = [0.01, 0.1], momentum = [0.9, 0.8] }", "exactly one setting"),
        ("ce = { seed = [0, 1] }", "'seed' cannot be tuned"),
        ("focal = { gamma = [1.0, 2.0] }", "unknown method 'focal'"),
        ("ce = { gamma = [1.0, 2.0] }", "ce: unknown setting 'gamma'"),
        ("ce = { lr = [0.01, -1.0] }", "'lr'"),
        ("ce = { lr = [0.01, 0.1] }\n[sweep]\nlr = [0.1]", "cannot be in one grid"),
        ("", "must be a table with one or more entries"),
    ],
)
def test_mistakes_are_found_before_training(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(LmdError, match=said):
        planned(tmp_path, f'methods = ["ce", "rs"]\n[trials.settings]\n{text}\n')


def test_an_unknown_key_of_trials_is_named(tmp_path: Path) -> None:
    with pytest.raises(LmdError, match=r"trials: unknown key 'sed': did you mean 'seed'\?"):
        planned(tmp_path, 'methods = ["ce"]\n[trials]\nsed = 1\nsettings.ce.lr = [0.01, 0.1]\n')


LMD_AT_30 = {
    "lmd-lambda_1=3-seed0": (30, 11),
    "lmd-seed0": (30, 10),
    "lmd-lambda_1=30-seed0": (30, 16),
}


def test_a_choice_needs_all_its_trials_and_ablations_take_it_over(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    write_trials(plan, tmp_path, {"ce-seed0": (30, 10), "ce-lr=0.03-seed0": (30, 19)})
    assert make_choices(plan, tmp_path) == {}
    assert not (tmp_path / "choices.json").exists()
    write_trials(plan, tmp_path, LMD_AT_30)
    choices = make_choices(plan, tmp_path)
    assert {key: each.chosen for key, each in choices.items()} == {"lmd": "30"}
    assert list(undecided(plan, choices)) == ["ce"]
    names = [run.name for run in settled(plan, choices).runs if run.seed == 1]
    assert names == [
        "ce-seed1",
        "rs-seed1",
        "lmd_wo_fdc-lambda_1=30-seed1",
        "lmd-lambda_1=30-seed1",
    ]
    # A trial that diverged counts as tried, and cannot be chosen.
    choices = make_choices(plan, tmp_path, diverged=["ce-lr=0.003-seed0"])
    assert choices["ce"].chosen == "0.03"
    assert choices["ce"].trials[0].balanced_accuracy is None
    assert choices["ce"].trials[2].gain == pytest.approx(9 / 20 / 2)
    assert read_choices(plan, tmp_path) == choices
    # Other trials ask another question.
    assert read_choices(planned(tmp_path, TRIALS.replace("30]", "50]")), tmp_path).keys() == {"ce"}
    assert read_choices(planned(tmp_path, TRIALS + "[settings]\nepochs = 7\n"), tmp_path) == {}


def test_test_images_have_no_part_in_the_choice(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    write_trials(plan, tmp_path, LMD_AT_30)
    before = make_choices(plan, tmp_path)
    (tmp_path / "choices.json").unlink()
    for name in LMD_AT_30:
        with edited_arrays(tmp_path / name) as arrays:
            arrays["test_probabilities"] = arrays["test_probabilities"][:, ::-1]
    assert make_choices(plan, tmp_path) == before


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    (tmp_path / "choices.json").write_text("{")
    with pytest.raises(LmdError, match=r"choices.json cannot be read.*delete it"):
        read_choices(plan, tmp_path)


def test_the_table_says_what_was_chosen(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    write_trials(plan, tmp_path, LMD_AT_30 | {"ce-seed0": (30, 10), "rs-seed0": (20, 10)})
    make_choices(plan, tmp_path)
    # Who has the choices and the chosen runs needs no trial runs.
    for file in (tmp_path / "lmd-seed0").iterdir():
        file.unlink()
    results = read_results(plan, tmp_path, resamples=20)
    said = "LMD: lambda_1 30 of 3, 10, 30"
    for form in ("text", "markdown", "latex"):
        text = " ".join(make_tables(results, format=form).split()).replace(r"\_", "_")
        assert (
            "Chosen on validation with seed 0: CE: lr 0.01 (default; trials not finished)" in text
        )
        assert "RS: not tuned" in text
        assert said in text
        assert "by more than one standard error" in text
    rows = list(csv.DictReader(io.StringIO(make_tables(results, format="csv"))))
    assert [row["chosen on validation"] for row in rows[1:]] == [
        "not tuned",
        *["lambda_1 30 of 3, 10, 30"] * 2,
    ]
    # The numbers are those of the chosen run.
    assert float(rows[-1]["balanced_accuracy"]) == pytest.approx((30 / 40 + 16 / 20) / 2)
    assert "lmd_wo_fdc-lambda_1=30-seed1" in make_tables(results)
