"""What a run is asked to do: protocol, settings, and what a protocol changes in a profile."""

import subprocess
import sys
from pathlib import Path

import pytest
from toys import write_npz

import lmd
from lmd.base.errors import LmdError
from lmd.evaluation.evaluate import rescore
from lmd.fit.spec import resolve
from lmd.methods import METHODS

PROTOCOL = """image_size = 16
backbone = "resnet8"
weights = "none"
epochs = 1
stage2_epochs = 1
batch_size = 8
workers = 0
[methods.lmd]
lambda_1 = 1.0
virtual_features = 40
m_step = "sgd"
"""


def test_a_protocol_that_changes_a_profile_says_so() -> None:
    asked = resolve(METHODS["lmd"], "small", {}, "paper")
    assert asked.values["lambda_1"] == 1
    assert asked.notes == ("Protocol small sets lambda_1 = 1; profile paper has 10.",)
    # Without a profile the protocol's values are the ones that are meant.
    assert resolve(METHODS["lmd"], "small", {}).notes == ()
    # What is set by hand is no longer the protocol's.
    assert resolve(METHODS["lmd"], "small", {"lambda_1": 3}, "paper").notes == ()


def test_settings_of_parts_that_are_off_are_told() -> None:
    given = {"lambda_1": 3, "lambda_e": 1, "tau": 1}
    assert resolve(METHODS["lmd"], "small", given).notes == (
        "Setting lambda_1 has no effect here: it needs rrl=true.",
        "Setting lambda_e has no effect here: it needs icc=true and fdc=true.",
    )
    assert resolve(METHODS["lmd_with_rrl"], "small", {"lambda_1": 3}).notes == ()
    assert resolve(METHODS["lmd"], "small", {"lambda_1": 3, "rrl": True}).notes == ()
    (note,) = resolve(METHODS["lmd_wo_rrl"], None, {"lambda_1": 3}, "corrected").notes
    assert note.endswith("needs rrl=true.")
    (note,) = resolve(METHODS["lmd"], None, {"m_lr": 0.1}).notes
    assert note.endswith("needs m_step=sgd.")


def test_settings_go_to_the_protocol_or_to_the_method() -> None:
    asked = resolve(METHODS["focal"], None, {"epochs": 3, "gamma": 1})
    assert (asked.protocol.epochs, asked.values) == (3, {"gamma": 1.0})
    with pytest.raises(LmdError, match=r"unknown setting 'gama': did you mean 'gamma'\?"):
        resolve(METHODS["focal"], None, {"gama": 1})


def test_the_run_prints_and_records_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    protocol = tmp_path / "short.toml"
    protocol.write_text(PROTOCOL)
    data, out = write_npz(tmp_path / "toy.npz"), tmp_path / "run"
    run = lmd.train(data, method="lmd", protocol=protocol, profile="official", out=out)
    notes = [
        f"Protocol {protocol} sets lambda_1 = 1; profile official has 10.",
        f"Protocol {protocol} sets virtual_features = 40; profile official has 50000.",
    ]
    assert [note for note in run.record.notes if note in notes] == notes
    assert "sets lambda_1 = 1" in " ".join(capsys.readouterr().err.split())
    assert [note for note in rescore(out, resamples=20).notes if note in notes] == notes
    # A resumed run is asked for nothing, and keeps what its record says.
    run.write_record(run.record.replaced(status="running", notes=[]))
    again = lmd.train(out=out, resume=True, quiet=True)
    assert [note for note in again.record.notes if note in notes] == notes


def test_settings_of_a_family_leave_what_defines_a_row(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text("[methods.lmd]\nrrl = true\nicc = true\nlambda_1 = 3.0\n")
    rows = {key: resolve(METHODS[key], path, {}).values for key in ("lmd", "lmd_wo_rrl")}
    assert {key: (of["rrl"], of["icc"], of["lambda_1"]) for key, of in rows.items()} == {
        "lmd": (True, True, 3.0),
        "lmd_wo_rrl": (False, True, 3.0),
    }
    # A table of the row itself is meant.
    path.write_text(path.read_text() + "[methods.lmd_wo_rrl]\nrrl = true\n")
    assert resolve(METHODS["lmd_wo_rrl"], path, {}).values["rrl"] is True
    assert resolve(METHODS["lmd_wo_rrl"], None, {"rrl": True}).values["rrl"] is True


def test_settings_of_a_method_that_does_not_exist_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text("[methods.lmdd]\nlambda_1 = 3.0\n")
    with pytest.raises(LmdError, match=r"methods.lmdd.*did you mean 'lmd'"):
        resolve(METHODS["ce"], path, {})


ALONE = """
import sys
from lmd.fit.spec import resolve
from lmd.methods import METHODS
resolve(METHODS["ce"], "small", {"epochs": 1})
print([name for name in ("gcl", "fcd", "seesaw", "lmd") if f"lmd.methods.{name}" in sys.modules])
"""


def test_a_request_imports_no_method_but_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
