"""Hostile uploads get a problem, never a failure."""

from collections.abc import Iterator

import pytest
from hostile import uploads
from served import WebClient, client, is_problem, make_service, shipped

from lmd.serve.problems import Problem
from lmd.serve.uploads import _has_hidden, check_name

pytest.importorskip("pydicom")
UPLOADS = uploads()


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebClient]:
    folder = shipped(tmp_path_factory.mktemp("served") / "run")
    with client(make_service(folder, image_mb=3.2, request_mb=6)) as found:
        yield found


@pytest.mark.parametrize("name", ["a\x07.png", "temp\\a.png", "a\0.png", " ", "a\u200b.png"])
def test_odd_names_are_refused(name: str) -> None:
    with pytest.raises(Problem) as found:
        check_name(name)
    assert found.value.status == 400


def test_usual_names_are_kept() -> None:
    for name in ("ISIC_0024306.jpg", "Läsion 3 (Kopie).png", "病変.tif", "<b>.png", ".dcm"):
        assert check_name(name) == name


def test_there_are_many_kinds() -> None:
    assert len(UPLOADS) >= 40


@pytest.mark.parametrize("name", UPLOADS)
def test_it_is_refused(web: WebClient, name: str) -> None:
    data, file, kind = UPLOADS[name]
    found = web.post("/api/models/run/predict", files={"image": (file, data, kind)})
    assert 400 <= found.status_code < 500, found.text
    assert is_problem(found)
    assert "/tmp" not in found.text
    assert " object at 0x" not in found.text


@pytest.mark.parametrize(
    "mark",
    [b"<script", b"<HTML", b"<svg ", b"<SvG>", b"<!DocType", b"<?php\n", b"<iframe", b"#!/bin/"],
)
@pytest.mark.parametrize("around", [b"", b"<", b"<s" * 3000, bytes(range(256)) * 20])
def test_what_is_hidden_is_found_wherever_it_is(mark: bytes, around: bytes) -> None:
    assert _has_hidden(around + mark + around)
    assert _has_hidden(around + mark)
    assert not _has_hidden(around + mark[:-1] + b"_" + around)
    assert not _has_hidden(around + b"<" + around)
