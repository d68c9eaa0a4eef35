"""From a grid's TOML file to its runs."""

import json
import tomllib
from pathlib import Path

import pytest

from lmd.base.command import parse_settings
from lmd.base.errors import LmdError
from lmd.base.text import as_toml
from lmd.benchmark.plan import (
    differences,
    grid_hash,
    load_grid,
    read_plan,
    shipped_grids,
    write_plan,
)
from lmd.benchmark.planning import plan_grid
from lmd.benchmark.run import progress
from lmd.fit.spec import resolve
from lmd.methods import METHODS, PAPER
from lmd.runs.protocol import load_protocol

BASE = 'data = "toy.npz"\nprotocol = "demo"\n'


def write(folder: Path, text: str, name: str = "grid.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_all_methods_of_a_seed_come_first(tmp_path: Path) -> None:
    plan = plan_grid(write(tmp_path, BASE + 'methods = ["lmd", "ce", "vs_loss"]\nseeds = [3, 1]'))
    # The order of the paper's table; other methods come before LMD's own rows.
    assert [run.name for run in plan.runs] == [
        *("ce-seed3", "vs_loss-seed3", "lmd-seed3"),
        *("ce-seed1", "vs_loss-seed1", "lmd-seed1"),
    ]
    assert [row.key for row in plan.rows] == ["ce", "vs_loss", "lmd"]
    assert plan.name == "grid"
    assert {run.request["data"] for run in plan.runs} == {str(tmp_path / "toy.npz")}
    assert plan.runs[0].request["protocol"]["seed"] == 3
    assert plan.runs[0].request["protocol"]["epochs"] == load_protocol("demo").epochs


def test_a_sweep_is_a_product_and_skips_methods_without_the_setting(tmp_path: Path) -> None:
    grid = """methods = ["ce", "lmd"]
[sweep]
lambda_1 = [0.5, 1.0]
gram = ["raw", "normalised"]
"""
    plan = plan_grid(write(tmp_path, BASE + grid))
    assert [run.name for run in plan.runs] == [
        "ce-seed0",
        "lmd-lambda_1=0.5-gram=raw-seed0",
        "lmd-lambda_1=0.5-gram=normalised-seed0",
        "lmd-lambda_1=1-gram=raw-seed0",
        "lmd-lambda_1=1-gram=normalised-seed0",
    ]
    values = [
        (r.request["settings"]["lambda_1"], r.request["settings"]["gram"]) for r in plan.runs[1:]
    ]
    assert values == [(0.5, "raw"), (0.5, "normalised"), (1.0, "raw"), (1.0, "normalised")]
    # The demo protocol gives LMD lambda_1 = 1, and rows are normalised unless asked otherwise.
    assert [point.usual for point in plan.points] == [False, False, False, True]


def test_data_can_be_swept_under_labels(tmp_path: Path) -> None:
    grid = 'methods = ["ce"]\n[sweep.data]\n"r = 10" = "a.csv"\n"r = 20" = "sub/b.csv"\n'
    plan = plan_grid(write(tmp_path, grid))
    assert [run.request["data"] for run in plan.runs] == [
        str(tmp_path / "a.csv"),
        str(tmp_path / "sub" / "b.csv"),
    ]
    assert [point.title for point in plan.points] == ["r = 10", "r = 20"]
    assert [run.name for run in plan.runs] == ["ce-data=r_=_10-seed0", "ce-data=r_=_20-seed0"]


def test_listed_data_of_one_name_need_labels(tmp_path: Path) -> None:
    text = 'methods = ["ce"]\n[sweep]\ndata = ["r100/train.csv", "r500/train.csv"]\n'
    with pytest.raises(LmdError, match="more than one is called 'train'"):
        plan_grid(write(tmp_path, text))


def test_an_inline_protocol_changes_its_base(tmp_path: Path) -> None:
    grid = 'data = "synthetic"\nmethods = ["lmd"]\n[protocol]\nbase = "demo"\nepochs = 2\n'
    request = plan_grid(write(tmp_path, grid + "[settings]\nlambda_e = 0.5\n")).runs[0].request
    assert request["data"] == "synthetic"
    assert (request["protocol"]["epochs"], request["protocol"]["image_size"]) == (2, 32)
    assert (request["settings"]["lambda_e"], request["settings"]["lambda_1"]) == (0.5, 1.0)


def test_the_command_says_the_same_as_the_request(tmp_path: Path) -> None:
    grid = """methods = ["lmd"]
profile = "paper"
[protocol]
base = "demo"
split = [0.6, 0.2, 0.2]
[protocol.methods.lmd]
lambda_1 = 3.0
[columns]
label_column = "dx"
allow_outside = true
"""
    run = plan_grid(write(tmp_path, 'data = "a.csv"\n' + grid)).runs[0]
    words = run.command
    assert words[:3] == ["lmd", "train", str(tmp_path / "a.csv")]
    assert words[words.index("--label-column") + 1] == "dx"
    assert "--allow-outside" in words
    given = parse_settings([words[i + 1] for i, w in enumerate(words) if w == "--set"])
    asked = resolve(METHODS["lmd"], words[words.index("--protocol") + 1], given, "paper")
    assert asked.protocol.model_dump(mode="json") == run.request["protocol"]
    assert asked.values == run.request["settings"]
    assert asked.values["lambda_1"] == 3.0


def test_all_rows_differ(tmp_path: Path) -> None:
    same = {"lmd_wo_rrl", "lmd_wo_icc", "lmd_wo_fdc"}
    grid = BASE.replace('"demo"', '"small"') + 'methods = "all"\n'
    plan = plan_grid(write(tmp_path, grid))
    assert {row.key for row in plan.rows} == METHODS.keys() - same
    plan = plan_grid(write(tmp_path, BASE + 'methods = "all"\nprofile = "corrected"\n'))
    more = {"lmd_wo_levels", "lmd_wo_views", "lmd_wo_shrunk_means", "lmd_wo_strong"}
    more |= {"lmd_with_rrl", "lmd_with_icc"}
    assert {row.key for row in plan.rows} == METHODS.keys() - more


def test_profiles_can_be_compared(tmp_path: Path) -> None:
    sweep = '[sweep]\nprofile = ["default", "official"]\n'
    plan = plan_grid(write(tmp_path, BASE + 'methods = ["ce", "lmd"]\n' + sweep))
    found = {run.name: run.request for run in plan.runs}
    assert list(found) == ["ce-seed0", "lmd-profile=default-seed0", "lmd-profile=official-seed0"]
    assert [request["profile"] for request in found.values()] == ["default", "default", "official"]
    assert found["lmd-profile=official-seed0"]["settings"]["label_loss"] == "gce"
    assert [point.usual for point in plan.points] == [True, False]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('methods = ["ce"]', "'data' is missing"),
        (BASE + 'method = ["ce"]', "unknown key 'method': did you mean 'methods'"),
        (BASE + 'methods = ["nope"]', "unknown method 'nope'"),
        (
            BASE + 'methods = ["ce"]\n[settings]\nlambda_1 = 3',
            "unknown setting 'lambda_1'",
        ),
        (BASE + 'methods = ["ce"]\nseeds = [0, 0]', "'seeds' must differ"),
        (BASE + 'methods = ["ce"]\n[sweep]\nseed = [1, 2]', "use 'seeds'"),
        (BASE + 'methods = ["ce"]\n[sweep]\nlr = [0.1, 0.1]', "values that differ"),
        (BASE + 'methods = ["ce"]\n[settings]\nlr = 1.0\n[sweep]\nlr = [0.1]', "choose one"),
        (BASE + 'methods = ["ce"]\n[sweep]\nlr = [0.1, -1.0]', "'lr'"),
        (BASE + 'methods = ["ce"]\nreference = "x"', "unknown method 'x'"),
        (
            BASE + 'methods = ["ce", "lmd"]\nprofile = "x"',
            "unknown profile 'x'; choose one of corrected, default, official, paper",
        ),
        (
            BASE + 'methods = ["ce", "lmd"]\n[sweep]\nprofile = ["paper", "papre"]',
            "unknown profile 'papre': did you mean 'paper'",
        ),
        (
            BASE + 'methods = ["lmd"]\nprofile = "paper"\n[sweep]\nprofile = ["official"]',
            "'profile' is given twice",
        ),
        (BASE + "methods = [", "not valid TOML"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(LmdError, match=said.replace("[", r"\[")):
        plan_grid(write(tmp_path, text))


def test_labels_that_would_share_a_folder_are_refused(tmp_path: Path) -> None:
    grid = 'methods = ["ce"]\n[sweep.lr]\n"a b" = 0.1\n"a/b" = 0.2\n'
    with pytest.raises(LmdError, match="two runs"):
        plan_grid(write(tmp_path, BASE + grid))


def test_a_plan_survives_the_disk_and_knows_its_grid(tmp_path: Path) -> None:
    path = write(tmp_path, BASE + 'methods = ["ce"]\n[sweep]\nlr = [0.1, 0.2]\n')
    plan = plan_grid(path)
    assert read_plan(tmp_path) is None
    write_plan(plan, tmp_path)
    assert read_plan(tmp_path) == plan
    assert plan.source == grid_hash(path)
    write(tmp_path, BASE + 'methods = ["ce"]\n')
    assert plan.source != grid_hash(path)
    # A plan of another version is made again.
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 1}))
    assert read_plan(tmp_path) is None


def test_requests_are_compared_but_for_loader_workers() -> None:
    before = {"data": "a", "protocol": {"lr": 0.1, "workers": 0}, "settings": {}}
    now = {"data": "a", "protocol": {"lr": 0.2, "workers": 3}, "settings": {"gamma": 2}}
    assert differences(before, before | {"protocol": {"lr": 0.1, "workers": 3}}) == []
    assert differences(before, now) == ["lr: 0.1 → 0.2", "gamma: None → 2"]


def test_progress_counts_the_epochs_of_a_classifier_s_own_budget(tmp_path: Path) -> None:
    rows = 'methods = ["decoupling", "cicl", "lmd", "lmd_with_icc", "ce"]\n'
    rows += "[settings]\nclassifier_epochs = 7\n"
    plan = plan_grid(write(tmp_path, BASE + rows))
    totals = {run.method: progress(run, tmp_path).total for run in plan.runs}
    protocol = plan.runs[0].request["protocol"]
    first, last = protocol["epochs"], protocol["stage2_epochs"]
    assert totals == {
        "decoupling": first + 7,
        "cicl": first + 1 + 7,
        "lmd": first + 1,  # one calibration
        "lmd_with_icc": first + last,
        "ce": first,
    }


@pytest.mark.parametrize("value", [1e-5, True, 'a "b"', [1, [2.5]], {"a b": {"c": 1}}])
def test_values_as_toml(value: object) -> None:
    assert tomllib.loads(f"x = {as_toml(value)}")["x"] == json.loads(json.dumps(value))


def test_grids_that_ship() -> None:
    names = shipped_grids()
    assert len(names) == 31
    for name in names:
        grid = load_grid(name)
        needed = PAPER if grid.methods in ("paper", "all") else grid.methods
        missing = [key for key in needed if key not in METHODS]
        assert not missing, f"{name} needs methods that are not there: {missing}"
        plan = plan_grid(name)
        assert plan.runs
        assert plan.title
    factors = plan_grid("isic2019-lt")
    assert (len(factors.runs), len(factors.points)) == (19 * 3 * 3, 3)
    sampling = plan_grid("sweep-sampling")
    assert [point.usual for point in sampling.points] == [False, True, False, False]
    studies = ("iterations", "lambda-e", "lambda-1", "virtual-features", "sampling")
    repeated = [f"{data}-{of}" for data in ("synthetic", "ham10000") for of in studies]
    for name in [*(f"sweep-{of}" for of in studies[1:4]), *repeated]:
        assert sum(point.usual for point in plan_grid(name).points) == 1, name
    virtual = plan_grid("sweep-virtual-features")
    assert len([r for r in virtual.runs if r.method == "decoupling"]) == 3


def test_settings_of_a_grid_leave_what_defines_a_row(tmp_path: Path) -> None:
    text = 'methods = ["lmd", "lmd_wo_rrl"]\n[settings]\nrrl = true\nlambda_1 = 3.0\n'
    plan = plan_grid(write(tmp_path, BASE + text))
    found = {run.method: run.request["settings"] for run in plan.runs}
    assert {key: (of["rrl"], of["lambda_1"]) for key, of in found.items()} == {
        "lmd": (True, 3.0),
        "lmd_wo_rrl": (False, 3.0),
    }


def test_a_sweep_leaves_what_defines_a_row(tmp_path: Path) -> None:
    text = 'methods = ["lmd", "lmd_wo_levels"]\n[sweep]\nlevels = [0, 5]\n'
    plan = plan_grid(write(tmp_path, BASE + text))
    assert {run.name: run.request["settings"]["levels"] for run in plan.runs} == {
        "lmd-levels=0-seed0": 0,
        "lmd-levels=5-seed0": 5,
        "lmd_wo_levels-seed0": 0,
    }


def test_names_and_files_of_a_grid(tmp_path: Path) -> None:
    text = 'methods = ["ce"]\n[sweep]\nweights = ["none", "w.safetensors"]\n'
    plan = plan_grid(write(tmp_path, BASE + text, "skin 2024.toml"))
    assert plan.name == "skin_2024"
    weights = [run.request["protocol"]["weights"] for run in plan.runs]
    assert weights == ["none", str(tmp_path / "w.safetensors")]
    for wrong, said in (
        ('form = ["tiers"]', "form"),
        ('name = "a b"', "letters, digits"),
    ):
        with pytest.raises(LmdError, match=said):
            plan_grid(write(tmp_path, BASE + f'methods = ["ce"]\n{wrong}\n'))


def test_a_manifest_that_is_a_link_keeps_its_place(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "XYZ").write_text("image,label\n")
    (tmp_path / "m.csv").symlink_to(tmp_path / "store" / "XYZ")
    plan = plan_grid(write(tmp_path, 'data = "m.csv"\nmethods = ["ce"]\n'))
    assert plan.runs[0].request["data"] == str(tmp_path / "m.csv")
