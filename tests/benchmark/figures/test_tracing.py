"""The traces of stages say what the code does, and diagrams are drawn from them."""

import pytest

from lmd.base.errors import LmdError
from lmd.benchmark.figures.diagram import Trace, diagram_figure, trace_stages
from lmd.benchmark.figures.style import drawing
from lmd.methods import METHODS


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    return trace_stages(METHODS["lmd"], METHODS["lmd"].settings({}, "corrected"))


def test_titles_are_of_the_stages_that_run(traces: list[Trace]) -> None:
    assert [trace.title for trace in traces] == ["RRL", "ICC"]
    plain = trace_stages(METHODS["lmd"], METHODS["lmd"].settings({}))
    assert [trace.title for trace in plain] == ["label loss", "calibration"]


def edges(trace: Trace) -> set[tuple[str, str]]:
    """View or call by name, and the term that depends on it."""
    views: dict[str, str] = {}
    for source, goal in trace.arrows:
        if goal in trace.calls:
            views[goal] = views.get(source, source.removeprefix("view "))
    terms = [(a, b.removeprefix("term ")) for a, b in trace.arrows if b.startswith("term ")]
    return {(f"{trace.calls[call].name} of {views[call]}", term) for call, term in terms}


def test_relation_aware_learning(traces: list[Trace]) -> None:
    stage = traces[0]
    assert edges(stage) == {
        ("student classifier of label", "ce"),
        ("student encoder of strong", "sample"),
        ("student encoder of strong", "channel"),
        ("student classifier of strong", "prob"),
        ("teacher encoder of weak", "sample"),
        ("teacher encoder of weak", "channel"),
        ("teacher classifier of weak", "prob"),
    }
    assert stage.roles["student encoder"] == "trained"
    assert stage.roles["teacher encoder"] == "follows"
    assert {c.name.split()[0] for c in stage.calls.values() if not c.gradient} == {"teacher"}


def test_classifier_calibration(traces: list[Trace]) -> None:
    stage = traces[1]
    assert stage.roles == {"encoder": "trained", "classifier": "fixed"}
    assert {"classifier", "gaussians"} <= set(stage.updates)
    assert edges(stage) == {
        ("encoder of label", "psi"),
        ("encoder of label", "phi"),
        ("classifier of label", "ce"),
    }
    assert "m_loss" in stage.numbers


def test_an_ablation_lacks_its_term() -> None:
    method = METHODS["lmd_wo_fdc"]
    assert trace_stages(method, method.settings({}, "corrected"))[1].terms == ["ce"]


def test_the_diagram_has_every_edge(traces: list[Trace]) -> None:
    with drawing():
        drawn = diagram_figure("lmd", 1, "corrected", width=7, height=None)
    pairs = {(row["from"], row["to"]) for row in drawn.rows}
    assert ("weak view", "teacher encoder") in pairs
    assert ("student encoder", "channel") in pairs
    assert len(drawn.figure.axes) == 1


def test_a_stage_that_is_not_there() -> None:
    with drawing(), pytest.raises(LmdError, match="ce has 1 stages"):
        diagram_figure("ce", 2, "default", width=7, height=None)
