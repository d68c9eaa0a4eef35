import pytest
from toys import toy_predictions

from lmd.scoring.definitions import definitions, format_scores
from lmd.scoring.metrics import METRICS, PER_CLASS
from lmd.scoring.scores import score
from lmd.scoring.tiers import assign_tiers

CLASSES = ("NV", "MEL", "AK", "DF", "LS", "AN")
TRAIN = [3000, 1000, 400, 30, 10, 5]


@pytest.mark.parametrize("grouped", [False, True])
def test_every_number_and_its_interval_are_defined(grouped):
    texts = definitions(123, grouped)
    assert list(texts) == [*METRICS, *PER_CLASS, "interval"]
    for text in texts.values():
        assert text.definition.endswith(".")
    assert "123 resamples" in texts["interval"].definition
    assert ("patients or lesions" in texts["interval"].definition) == grouped


def test_format_scores_shows_values_intervals_and_notes_but_no_definitions():
    tiers = assign_tiers(TRAIN, CLASSES, "thirds")
    given = toy_predictions((200, 80, 40, 3, 1, 0))
    scores = score(*given, CLASSES, tiers, TRAIN, resamples=50)
    text = format_scores(scores, definitions(50))
    entry = scores.metrics["balanced_accuracy"]
    line = next(x for x in text.splitlines() if x.startswith("Balanced accuracy "))
    assert line.split()[2:] == [
        *(f"{entry.value:.3f}", f"{entry.low:.3f}", "to", f"{entry.high:.3f}")
    ]
    absent = next(x for x in text.splitlines() if x.startswith("AN "))
    assert absent.split() == ["AN", "tail", "5", "0", *["–"] * 6]
    flat = " ".join(text.split())
    assert not any(each.definition in flat for each in definitions(50).values())
    for note in scores.notes:
        assert note in flat
