"""Hostile uploads get a problem, never a failure."""

from collections.abc import Iterator

import pytest
from hostile import uploads
from served import WebClient, client, encoded, is_problem, make_service, photo, shipped

from lmd.serve.schemas import Problem
from lmd.serve.uploads import check_name

pytest.importorskip("pydicom")
UPLOADS = uploads()


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebClient]:
    folder = shipped(tmp_path_factory.mktemp("served") / "run")
    with client(make_service(folder, max_image_mb=3.2, max_request_mb=6)) as found:
        yield found


@pytest.mark.parametrize("name", ["a\x07.png", "temp\\a.png", "a\0.png", " ", "a\u200b.png"])
def test_odd_names_are_refused(name: str) -> None:
    with pytest.raises(Problem) as found:
        check_name(name)
    assert found.value.details.status == 400


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


def with_comment(jpeg: bytes, comment: bytes) -> bytes:
    """A JPEG file with a comment."""
    return jpeg[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2) + comment + jpeg[2:]


@pytest.mark.parametrize("text", [b"<html", b"<svg ", b"<?php\n", b"#!/bin/", b"%PDF-1.7"])
def test_text_within_an_image_changes_nothing(web: WebClient, text: bytes) -> None:
    plain = encoded(photo(), "JPEG")
    answers = [
        web.post("/api/models/run/predict", files={"image": ("a.jpg", data, "image/jpeg")})
        for data in (plain, with_comment(plain, text), plain + text)
    ]
    assert [found.status_code for found in answers] == [200, 200, 200]
    first, *others = [found.json()["probabilities"] for found in answers]
    assert all(probabilities == first for probabilities in others)
