import pytest

from lmd.scoring.metrics import METRICS, PER_CLASS
from lmd.scoring.scores import definitions


@pytest.mark.parametrize("grouped", [False, True])
def test_every_number_and_its_interval_are_defined(grouped):
    texts = definitions(123, grouped)
    assert list(texts) == [*METRICS, *PER_CLASS, "interval"]
    for text in texts.values():
        assert text.definition.endswith(".")
    assert "123 resamples" in texts["interval"].definition
    assert ("patients or lesions" in texts["interval"].definition) == grouped
