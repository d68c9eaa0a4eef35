from pathlib import Path

import pytest

from lmd.base.errors import LmdError
from lmd.protocol import Protocol, load_protocol, shipped_protocols


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
    with pytest.raises(LmdError, match=r"unknown setting 'teirs'.* tiers,"):
        load_protocol(None, {"teirs": "thirds"})
