"""Settings of methods: what is accepted, what is refused and in which words."""

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import torch
from toys import small_model

import lmd
from lmd.base.errors import LmdError
from lmd.methods import METHODS
from lmd.methods.method import Candidates, Method, NonNegative, Settings, Share
from lmd.methods.stage import Task

PROFILES = [(key, name) for key, row in METHODS.items() for name in ("default", *row.profiles)]


@pytest.mark.parametrize(
    ("key", "given", "message"),
    [
        ("lmd", {"warmup": "abc"}, "'warmup' of method 'lmd' must be a number from 0 to 1; it is"),
        ("focal", {"gamma": -1}, "'gamma' of method 'focal' must be a number of at least 0; it"),
        ("focal", {"gamma": True}, "must be a number of at least 0; it is true"),
        ("focal", {"gamma": None}, "must be a number of at least 0; it is null"),
        ("focal", {"gamma": float("nan")}, "must be a number of at least 0; it is NaN"),
        ("cb_focal", {"beta": 1.0}, "must be a number of at least 0 and below 1; it is 1.0"),
        ("ldam_rs", {"rule": "both"}, "must be one of rs, drs, drw; it is \"both\""),
        ("ldam_rs", {"scale": 0}, "must be a number above 0; it is 0"),
        ("logit_adjust_posthoc", {"grid": []}, "must be a list of one or more values, each a"),
        ("logit_adjust_posthoc", {"grid": [1, "a"]}, r"a number of at least 0; it is \[1, .a.\]"),
        ("lmd", {"iterations": 2.5}, "must be a whole number of at least 1, or null; it is 2.5"),
        ("lmd", {"shrinkage": "auto"}, 'must be a number from 0 to 1, or validation; it is "auto"'),
        ("lmd_wo_rrl", {"icc": 1}, "'icc' of method 'lmd_wo_rrl' must be true or false; it is 1"),
    ],
)  # fmt: skip
def test_a_bad_setting_is_named_with_its_rule_and_value(
    key: str, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(LmdError, match=message):
        METHODS[key].settings(given)


def test_all_bad_settings_are_named_at_once() -> None:
    with pytest.raises(LmdError) as error:
        METHODS["lmd"].settings({"warmup": 2, "gram": "cosine", "lambda_1": 1})
    found = [each.split("'")[1] for each in str(error.value).split("; setting")]
    assert found == ["warmup", "gram"]


def test_an_unknown_setting_or_profile_lists_the_known_ones() -> None:
    with pytest.raises(LmdError, match=r"method 'lmd': .* 'lamda_1': did you mean 'lambda_1'\?"):
        METHODS["lmd"].settings({"lamda_1": 1})
    with pytest.raises(LmdError, match="unknown setting 'depth'; choose one of average, ce_"):
        METHODS["lmd"].settings({"depth": 1})
    with pytest.raises(LmdError, match="method 'ce': unknown profile 'x'; choose one of default"):
        METHODS["ce"].settings({}, "x")


def test_training_with_a_bad_setting_decodes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "1.png").write_bytes(b"an image that cannot be decoded")
    with pytest.raises(LmdError, match="'warmup' of method 'lmd' must be a number from 0 to 1"):
        lmd.train(tmp_path / "data", settings={"warmup": "abc"}, out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == [tmp_path / "data"]
    assert not list(Path(os.environ["LMD_CACHE"]).iterdir())


@pytest.mark.parametrize(("key", "profile"), PROFILES)
def test_settings_survive_json_and_are_complete(key: str, profile: str) -> None:
    """A record holds them, and a resumed run compares them."""
    settings = METHODS[key].settings({}, profile)
    assert json.loads(json.dumps(settings)) == settings
    assert METHODS[key].settings(settings) == settings
    assert list(settings) == [setting.name for setting in METHODS[key].describe()]
    expected = {**METHODS[key].profiles.get(profile, {}), **METHODS[key].preset}
    assert expected.items() <= settings.items()
    assert all(setting.description.endswith(".") for setting in METHODS[key].describe())


def test_what_is_kindly_accepted() -> None:
    settings = METHODS["lmd"].settings({"lambda_1": 1, "ema_horizon": "none", "shrinkage": 0})
    assert (settings["lambda_1"], settings["ema_horizon"], settings["shrinkage"]) == (1.0, None, 0)
    assert METHODS["tau_norm"].settings({"taus": (0, 1)})["taus"] == [0.0, 1.0]


class Part(Settings):
    depth: Annotated[Share, "How deep."] = 0.5
    width: Annotated[NonNegative | None, "How wide."] = None


def grouped(
    model: Any, task: Any, *, kind: Annotated[Literal["a", "b"], "Which."] = "a", part: Part
) -> Any:
    return kind, part


def test_a_settings_class_is_flattened_and_put_together_again() -> None:
    method = Method("x", "X", grouped, "paper", ("one",))
    values = method.check({"width": 3, "kind": "b"})
    assert values.model_dump() == {"kind": "b", "depth": 0.5, "width": 3.0}
    assert method.start(small_model(), Task(torch.ones(2), 16), values) == ("b", Part(width=3.0))
    assert [setting.rule for setting in method.describe()] == [
        "one of a, b",
        "a number from 0 to 1",
        "a number of at least 0, or null",
    ]


def clash(model: Any, task: Any, *, depth: Annotated[float, "X."] = 1.0, part: Part) -> Any: ...
def endless(model: Any, task: Any, *, taus: Annotated[Candidates, "X."]) -> Any: ...
def silent(model: Any, task: Any, *, q: Share = 0.5) -> Any: ...


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (clash, "clash has two settings named 'depth'"),
        (endless, "endless: the setting 'taus' needs a default"),
        (silent, "silent: the setting 'q' needs a description"),
    ],
)
def test_a_mistake_in_a_signature_is_an_error_at_import(make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Method("x", "X", make, "paper", ("one",))
