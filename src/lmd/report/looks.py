"""Images worth a look: the most confident mistakes and the least certain hits."""

from typing import Any

import numpy as np

from lmd.report.heat_maps import overlay
from lmd.report.pictures import data_uri
from lmd.report.words import percent
from lmd.runfolder.examples import Examples
from lmd.runfolder.folder import RunFiles

SIDE = 160
QUALITY = 80


def looks_view(run: RunFiles, examples: Examples | None) -> dict[str, Any] | None:
    """Two lists of pictures with what the predictions say about them."""
    of = run.predictions.parts.get("test") if run.predictions else None
    if examples is None or of is None:
        return None
    places = {str(name): i for i, name in enumerate(of.ids.tolist())}
    classes, cards = run.record.data.classes, list[dict[str, Any]]()
    for i, name in enumerate(examples.ids.tolist()):
        if name not in places:  # of an earlier run in this folder
            continue
        row = of.probabilities[places[name]]
        true, said = int(of.labels[places[name]]), int(row.argmax())
        cards.append(
            {
                "name": name,
                "right": true == said,
                "true": classes[true],
                "predicted": classes[said],
                "probability": percent(float(row[said])),
                "own": percent(float(row[true])),
                **_pictures(examples, i),
            }
        )
    mistakes = [card for card in cards if not card["right"]]
    hits = [card for card in cards if card["right"]]
    return {"mistakes": mistakes, "hits": hits, "heat": examples.heat is not None}


def _pictures(examples: Examples, i: int) -> dict[str, str]:
    picture, heat = examples.pictures[i], ""
    if examples.heat is not None:
        level = examples.heat[i].astype(np.float32) / 255
        heat = data_uri(overlay(picture, level), SIDE, QUALITY)
    return {"picture": data_uri(picture, SIDE, QUALITY), "heat": heat}
