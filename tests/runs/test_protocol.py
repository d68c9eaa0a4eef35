from pathlib import Path

import pytest

from lmd.base.errors import LmdError
from lmd.runs.protocol import Protocol, load_protocol, shipped_protocols


@pytest.mark.parametrize("name", shipped_protocols())
def test_shipped_protocols_load(name: str) -> None:
    assert isinstance(load_protocol(name), Protocol)


def test_the_older_name_of_tiers_still_loads(tmp_path: Path) -> None:
    path = tmp_path / "old.toml"
    path.write_text('groups = "head>1000,tail<180"\n')
    assert load_protocol(path).tiers == "head>1000,tail<180"
    assert load_protocol(path, {"tiers": "thirds"}).tiers == "thirds"
    assert load_protocol("isic-archive-lt", {"groups": "thirds"}).tiers == "thirds"
    assert Protocol.model_validate({"groups": "head>9,tail<3"}).tiers == "head>9,tail<3"
    assert "groups" not in Protocol(tiers="thirds").model_dump()


def test_an_unknown_setting_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(LmdError, match=r"unknown setting 'teirs': did you mean 'tiers'\?"):
        load_protocol(None, {"teirs": "thirds"})


@pytest.mark.parametrize("factor", [100, 300, 500])
def test_earlier_names_of_a_protocol_still_work(factor: int) -> None:
    name = f"isic2019-lt-r{factor}"
    assert name not in shipped_protocols()
    found = load_protocol(name, {"seed": 3})
    assert found == load_protocol("isic2019-lt", {"seed": 3})
    assert (found.backbone, found.stage2_epochs, found.seed) == ("resnet18", 200, 3)
