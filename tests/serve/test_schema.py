"""Requests made from the description of the API never make the server fail."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import client, make_service, shipped

schemathesis = pytest.importorskip("schemathesis")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_no_request_fails(tmp_path: Path) -> None:
    from hypothesis import HealthCheck, given, settings

    with client(make_service(shipped(tmp_path / "run"))) as web:
        schema = schemathesis.openapi.from_dict(web.get("/openapi.json").json())
        for operation in operations(schema):
            statuses: list[int] = []

            @given(case=operation.as_strategy())
            @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
            def one(case: Any, seen: list[int] = statuses) -> None:
                if "model" in case.path_parameters:
                    case.path_parameters["model"] = "run"
                wanted = case.as_transport_kwargs(base_url="http://localhost")
                method, url = wanted.pop("method"), wanted.pop("url")
                kept = {"files", "data", "json", "params", "headers"} & wanted.keys()
                options = {key: wanted[key] for key in kept if wanted[key] is not None}
                found = web.request(method, url, **options)
                assert found.status_code < 500, found.text
                seen.append(found.status_code)

            one()
            assert statuses


def operations(schema: Any) -> Iterator[Any]:
    for result in schema.get_all_operations():
        yield result.ok()
