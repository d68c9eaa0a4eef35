import pytest

from lmd.base.errors import LmdError
from lmd.runs.protocol import Protocol, load_protocol, shipped_protocols


@pytest.mark.parametrize("name", shipped_protocols())
def test_shipped_protocols_load(name: str) -> None:
    assert isinstance(load_protocol(name), Protocol)


def test_an_unknown_setting_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(LmdError, match=r"unknown setting 'teirs': did you mean 'tiers'\?"):
        load_protocol(None, {"teirs": "thirds"})
