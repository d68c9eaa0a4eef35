"""Requests made from the description of the API never make the server fail."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from served import WebClient, client, make_service, shipped

schemathesis = pytest.importorskip("schemathesis")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_no_request_fails(tmp_path: Path) -> None:
    with client(make_service(shipped(tmp_path / "run"))) as web:
        schema = schemathesis.openapi.from_dict(web.get("/openapi.json").json())
        tried = {operation.label: statuses(web, operation) for operation in operations(schema)}
    assert len(tried) == 8
    assert all(tried.values())
    assert max(max(seen) for seen in tried.values()) < 500, tried


def statuses(web: WebClient, operation: Any) -> list[int]:
    """The answers to a few requests that fit the description, or nearly do."""
    seen = []

    @given(case=operation.as_strategy())
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    def one(case: Any) -> None:
        if "model" in (case.path_parameters or {}):
            case.path_parameters["model"] = "run"
        wanted = case.as_transport_kwargs(base_url="http://localhost")
        method, url = wanted.pop("method"), wanted.pop("url")
        kept = {"files", "data", "json", "params"} & wanted.keys()
        options = {key: wanted[key] for key in kept if wanted[key] is not None}
        seen.append(web.request(method, url, **options).status_code)

    one()
    return seen


def operations(schema: Any) -> Iterator[Any]:
    for result in schema.get_all_operations():
        yield result.ok()
