"""The laboratory: its rule, and how decisions build on one another."""

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest
from scripts import script
from toys import ROOT

from lmd.methods import find_method

SCRIPT = ROOT / "studies" / "laboratory.py"


@pytest.fixture(scope="module")
def laboratory() -> ModuleType:
    return script("laboratory", "studies")


def blocks(*points: float) -> dict[tuple[int, int], float]:
    return {(1 + i % 3, i // 3): value / 100 for i, value in enumerate(points)}


BEFORE = blocks(50, 50, 50, 50, 50, 50)


@pytest.mark.parametrize(
    ("after", "adopted"),
    [
        (blocks(52, 53, 51, 52, 53, 51), True),
        (blocks(50, 50, 50, 50, 50, 50), False),  # no gain
        (blocks(60, 41, 52, 58, 43, 52), False),  # the second task loses eight points
        (blocks(58, 49, 49, 50, 50, 50), False),  # one lucky run: the error is as large
        (blocks(54, 49.2, 52, 54, 49.2, 52), True),  # a task loses less than a point
    ],
)
def test_a_change_is_adopted_by_the_rule(
    laboratory: ModuleType, after: dict[tuple[int, int], float], adopted: bool
) -> None:
    assert laboratory.gain(BEFORE, after)["adopted"] is adopted


def test_gain_error_and_tasks(laboratory: ModuleType) -> None:
    found = laboratory.gain(BEFORE, blocks(51, 52, 53, 53, 52, 51))
    assert found["gain"] == pytest.approx(2)
    assert found["error"] == pytest.approx((4 / 5) ** 0.5 / 6**0.5)
    assert found["tasks"] == pytest.approx([2, 2, 2])


def test_later_changes_build_on_what_was_adopted(
    laboratory: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {"{}": 50.0, '{"a": 1}': 53.0, '{"a": 1, "b": 2}': 52.0, '{"a": 1, "c": 3}': 55.0}
    asked = []

    class Known(laboratory.Laboratory):  # type: ignore[name-defined, misc]
        def scores(self, method: str, settings: dict[str, int]) -> dict[tuple[int, int], float]:
            asked.append(json.dumps(settings, sort_keys=True))
            value = known[asked[-1]]
            return blocks(*(value + 0.1 * i for i in range(6)))

    changes = [{"name": key, "settings": {key: i}} for i, key in enumerate("abc", start=1)]
    plan = {"method": "lmd", "start": {}, "change": changes, "seeds": [0, 1], "tasks": 3}
    Known(plan, Namespace(out=tmp_path, known=None)).decide()
    assert asked == list(known)
    written = json.loads((tmp_path / "decisions.json").read_text())
    assert written["settings"] == {"a": 1, "c": 3}
    assert [change["adopted"] for change in written["changes"]] == [True, False, True]
    assert "b: -1.00" in capsys.readouterr().out

    # On another machine, with one change more: what was decided stays, what was adopted is trained.
    asked.clear()
    known['{"a": 1, "c": 3, "d": 4}'] = 54.0
    plan["change"].append({"name": "d", "settings": {"d": 4}})
    (tmp_path / "there").mkdir()
    there = Namespace(out=tmp_path / "there", known=tmp_path / "decisions.json")
    Known(plan, there).decide()
    assert asked == ['{"a": 1, "c": 3}', '{"a": 1, "c": 3, "d": 4}']
    again = json.loads((there.out / "decisions.json").read_text())
    assert again["changes"][:3] == written["changes"]
    assert [change["adopted"] for change in again["changes"]] == [True, False, True, False]


@pytest.mark.parametrize(
    ("without", "adopted"),
    [
        (48.0, False),  # the piece earns two points, and stays
        (50.0, True),  # it earns nothing, and goes; what needs it is passed over
        (53.0, True),
    ],
)
def test_a_piece_must_earn_its_place(
    laboratory: ModuleType, tmp_path: Path, without: float, adopted: bool
) -> None:
    asked = []

    class Known(laboratory.Laboratory):  # type: ignore[name-defined, misc]
        def scores(self, method: str, settings: dict[str, bool]) -> dict[tuple[int, int], float]:
            asked.append(settings)
            value = without if settings.get("piece") is False else 50.0
            return blocks(*(value + 0.1 * i * ("piece" in settings) for i in range(6)))

    changes = [
        {"name": "without", "settings": {"piece": False}, "removes": True},
        {"name": "kind", "settings": {"kind": 2}, "needs": {"piece": True}},
        {"name": "other", "settings": {"other": 3}},
    ]
    plan = {"method": "lmd", "start": {}, "change": changes, "seeds": [0, 1], "tasks": 3}
    Known(plan, Namespace(out=tmp_path, known=None)).decide()
    found = json.loads((tmp_path / "decisions.json").read_text())["changes"]
    assert found[0]["adopted"] is adopted
    assert ("passed_over" in found[1]) is adopted
    assert len(asked) == (3 if adopted else 4)
    assert ("piece" in asked[-1]) is adopted


def test_what_a_change_needs_may_be_one_of_several_values(laboratory: ModuleType) -> None:
    needs = {"view": ["strong", "both"], "piece": True}
    assert laboratory.allowed({"view": "both", "piece": True}, needs)
    assert laboratory.allowed({}, needs)  # not known: the change is tried
    assert not laboratory.allowed({"view": "weak"}, needs)
    assert not laboratory.allowed({"view": "both", "piece": False}, needs)


def test_settings_for_all_runs_reach_every_run(laboratory: ModuleType, tmp_path: Path) -> None:
    asked = []

    class Known(laboratory.Laboratory):  # type: ignore[name-defined, misc]
        def _train(self, method: str, settings: dict[str, int], block: object, out: Path) -> None:
            asked.append((method, settings))
            out.mkdir(parents=True)
            metrics = {"test": {"balanced_accuracy": {"value": 0.5}}}
            (out / "record.json").write_text(json.dumps({"metrics": metrics}))

    plan = {"protocol": "small", "seeds": [0], "tasks": 1, "training": {"epochs": 16}}
    study = Known(plan, Namespace(out=tmp_path, jobs=1))
    assert study.scores("lmd", {"tau": 1}) == study.scores("rs_strong", {}) == {(1, 0): 0.5}
    assert asked == [("lmd", {"epochs": 16, "tau": 1}), ("rs_strong", {"epochs": 16})]


def test_references_are_trained_last_and_decide_nothing(
    laboratory: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    class Known(laboratory.Laboratory):  # type: ignore[name-defined, misc]
        def scores(self, method: str, settings: dict[str, int]) -> dict[tuple[int, int], float]:
            asked.append((method, settings))
            value = {"lmd": 50.0, "rs_strong": 60.0}[method] + settings.get("a", 0)
            return blocks(*(value + 0.1 * i * len(settings) for i in range(6)))

    plan = {"method": "lmd", "start": {}, "seeds": [0, 1], "tasks": 3, "references": ["rs_strong"]}
    plan["change"] = [{"name": "a", "settings": {"a": 1}}]
    Known(plan, Namespace(out=tmp_path, known=None)).decide()
    assert asked == [("lmd", {}), ("lmd", {"a": 1}), ("rs_strong", {})]
    written = json.loads((tmp_path / "decisions.json").read_text())
    assert written["settings"] == {"a": 1}
    assert written["start"]["task 2, seed 1"] == pytest.approx(0.5)
    assert written["references"]["rs_strong"]["task 2, seed 1"] == pytest.approx(0.6)
    assert "rs_strong: 60.00; adopted: 51.25" in capsys.readouterr().out


def test_decisions_are_known_up_to_the_first_change_that_differs(
    laboratory: ModuleType, tmp_path: Path
) -> None:
    changes = [{"name": key, "settings": {key: 1}} for key in "abc"]
    path = tmp_path / "decisions.json"
    path.write_text(json.dumps({"changes": changes}))
    plan = {"change": [changes[0], {"name": "b", "settings": {"b": 2}}, changes[2]]}
    assert laboratory.decided(plan, path) == changes[:1]


@pytest.mark.parametrize("name", ["decisions", "decisions-2", "decisions-3", "decisions-4"])
def test_the_decisions_of_the_study_are_settings_of_the_method(name: str) -> None:
    import tomllib

    plan = tomllib.loads((ROOT / "studies" / "ham10000" / f"{name}.toml").read_text())
    method, settings = find_method(plan["method"]), dict(plan["start"])
    method.settings(settings)
    for change in plan["change"]:
        assert change["settings"].keys() <= method.settings().keys()
        assert change.get("needs", {}).keys() <= method.settings().keys()
        method.settings(settings | change["settings"])


def test_the_study_starts_from_the_papers_method_whatever_the_default_is() -> None:
    import tomllib

    plan = tomllib.loads((ROOT / "studies" / "ham10000" / "decisions.toml").read_text())
    method = find_method(plan["method"])
    corrected = method.profiles["corrected"]
    assert corrected.keys() <= plan["start"].keys()
    assert {k: plan["start"][k] for k in corrected} == dict(corrected) | {"icc": False}
    e_step = next(c for c in plan["change"] if c["name"].startswith("E step"))
    assert method.settings(plan["start"] | e_step["settings"])["fdc"] is True


def test_decisions_as_a_table() -> None:
    path = ROOT / "studies" / "ham10000" / "decisions.json"
    done = subprocess.run(
        [sys.executable, SCRIPT, "--table", path], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2 + len(json.loads(path.read_text())["changes"])
    assert "inner levels of the encoder among the features | +1.67 ± 0.33 | " in done.stdout


def test_missing_options_are_named() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--manifest and --out are needed" in done.stderr
