"""Whatever a file contains, its parser returns a value or raises one ``LmdError``."""

import copy
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runs_on_disk import make_run

from lmd.base.errors import LmdError
from lmd.benchmark.plan import load_grid
from lmd.data.sources import scan_source
from lmd.model import Preprocessing
from lmd.model.files import ModelSpec, read_spec
from lmd.runs.folder import Run, read_record
from lmd.runs.protocol import Protocol, load_protocol
from lmd.runs.record import Record

few = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["", "null", "\0", "ß", "a" * 300, "../..", "1e999"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def paths_in(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values inside nested lists and objects."""
    inner = list(value.items()) if isinstance(value, dict) else []
    if isinstance(value, list):
        inner = list(enumerate(value))
    return [at, *(path for key, each in inner for path in paths_in(each, (*at, key)))]


def damaged(draw: st.DrawFn, whole: Any) -> Any:
    """The value with a few places removed or replaced."""
    found = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        *above, last = draw(st.sampled_from(paths_in(found)[1:] or [("x",)]))
        place = found
        for key in above:
            place = place[key]
        if draw(st.booleans()):
            place[last] = draw(values)
        elif isinstance(place, dict):
            del place[last]
        if not isinstance(found, dict) or not found:
            return found
    return found


def only_lmd_errors(call: Callable[[], Any]) -> Any:
    """The result, or ``None`` after an ``LmdError``; anything else fails."""
    try:
        return call()
    except LmdError:
        return None


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("parsers") / "run"
    make_run(folder, ["a", "b", "c"], epochs=(2, 1))
    return Run(folder), json.loads((folder / "record.json").read_text())


@few
@given(st.data())
def test_records(record: tuple[Run, dict[str, Any]], data: st.DataObject) -> None:
    from lmd.evaluation.evaluate import rescore

    run, whole = record
    changed = data.draw(st.composite(damaged)(whole))
    run.record_path.write_text(json.dumps(changed))
    found = only_lmd_errors(lambda: read_record(run.record_path))
    if found is not None:
        assert isinstance(found, Record)
        # Whatever is accepted can be scored and drawn.
        only_lmd_errors(lambda: rescore(run.path, resamples=2))


@few
@given(st.binary(max_size=200) | st.text(max_size=60).map(str.encode))
def test_records_and_histories_of_any_bytes(tmp_path: Path, content: bytes) -> None:
    run = Run(tmp_path)
    for path, read in (
        (run.record_path, lambda: run.record),
        (run.predictions_path, run.read_predictions),
        (run.history_path, run.read_history),
    ):
        path.write_bytes(content)
        only_lmd_errors(read)


SPEC = ModelSpec(
    ("a", "b"),
    "resnet8",
    "linear",
    128,
    Preprocessing(16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "v2"),
    "CE",
    (5, 3),
)


@few
@given(st.data())
def test_model_descriptions(data: st.DataObject) -> None:
    whole = json.loads(json.dumps(dataclasses.asdict(SPEC)))
    changed = data.draw(st.composite(damaged)(whole))
    found = only_lmd_errors(lambda: read_spec(changed, "model file x"))
    assert found is None or 0 < found.preprocessing.image_size <= 4096


@few
@given(st.dictionaries(st.sampled_from(sorted(Protocol.model_fields)), values, max_size=3))
def test_protocols(changes: dict[str, Any]) -> None:
    found = only_lmd_errors(lambda: load_protocol("demo", changes))
    assert found is None or isinstance(found, Protocol)


toml_lines = st.lists(
    st.sampled_from(
        [
            'name = "x"', 'data = "synthetic"', "data = 3", 'methods = ["ce"]', "methods = []",
            'methods = ["nothing"]', "seeds = [0, 1]", 'seeds = "a"', 'protocol = "demo"',
            "protocol = 1", "[sweep]", "lr = [0.1, 0.2]", "[trials]", "[[runs]]", "x = nan",
            "[settings.ce]", "a.b.c = {}", "=", "'", "[", "\\u0000",
        ]
    ),
    max_size=6,
).map("\n".join)  # fmt: skip


@few
@given(toml_lines | st.text(max_size=40))
def test_grids_and_protocol_files(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.toml"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    only_lmd_errors(lambda: load_grid(file))
    only_lmd_errors(lambda: load_protocol(file))


cells = st.sampled_from(
    ["image", "label", "split", "group", "a.png", "../a.png", "/etc/passwd", "C:\\a.png", "train",
     "", " ", "\0", "x" * 300, "a/b/c", "ü", '"', '"a', "=1+1", "\r", ".", "..", "\ufeff"]
)  # fmt: skip
lines = st.lists(st.lists(cells, max_size=5).map(",".join), max_size=6).map("\n".join)


@few
@given(
    (lines | lines.map("image,label,split\n{}".format)).map(str.encode) | st.binary(max_size=100)
)
def test_manifests(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "list.csv"
    file.write_bytes(content)
    scan = only_lmd_errors(lambda: scan_source(file))
    if scan is not None:
        only_lmd_errors(scan.table)
        only_lmd_errors(lambda: scan.table(skip_bad=True))
