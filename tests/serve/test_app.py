"""The routes: the answers are those of `predict` and `explain`."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dicoms import write_dicom
from hostile import picture
from PIL import Image
from served import CLASSES, WebClient, client, encoded, is_problem, make_service, photo, shipped

import lmd
from lmd.export.export import export_onnx


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = shipped(tmp_path_factory.mktemp("served") / "run")
    export_onnx(found, found.parent / "small.onnx")
    return found


@pytest.fixture(scope="module")
def web(folder: Path) -> Iterator[WebClient]:
    with client(make_service(folder, folder.parent / "small.onnx")) as found:
        yield found


def ask(web: WebClient, data: bytes, route: str = "predict", model: str = "run", **options: Any):
    form = {"options": json.dumps(options)}
    path = f"/api/models/{model}/{route}"
    return web.post(path, files={"image": ("a.png", data)}, data=form)


def contents(folder: Path) -> dict[str, bytes]:
    deep = np.random.default_rng(1).integers(0, 4000, (30, 20)).astype(np.uint16)
    return {
        "PNG": encoded(photo()),
        "JPEG": encoded(photo(1, (400, 300)), "JPEG"),
        "TIFF": encoded(photo(2), "TIFF", compression="tiff_lzw"),
        "16 bits": encoded(Image.fromarray(deep)),
        "DICOM": write_dicom(
            folder / "a.dcm", deep, WindowCenter=900, WindowWidth=800
        ).read_bytes(),
    }


@pytest.mark.parametrize("model", ["run", "small"])
def test_a_prediction_is_that_of_predict(
    web: WebClient, folder: Path, tmp_path: Path, model: str
) -> None:
    for kind, data in contents(tmp_path).items():
        path = tmp_path / ("x.dcm" if kind == "DICOM" else "x.png")
        path.write_bytes(data)
        source = folder if model == "run" else folder.parent / "small.onnx"
        expected = lmd.load(source).predict([path], prevalence="uniform", coverage=0.9)
        found = ask(web, data, model=model, prevalence="uniform", coverage=0.9).json()
        assert found["predicted"] == expected.labels[0], kind
        values = [found["probabilities"][name] for name in CLASSES]
        np.testing.assert_allclose(values, expected.probabilities[0], atol=1e-6)
        assert expected.sets is not None
        assert found["set"] == list(expected.sets[0])
        assert found["refer"] == expected.decided.refer[0]
        flags = expected.unlike_training
        assert found["unlike_training"] == (None if flags is None else flags[0])


def test_options_change_the_answer(web: WebClient) -> None:
    data = encoded(photo())
    plain = ask(web, data).json()
    assert (plain["set"], plain["refer"], plain["picture"]) == (None, None, None)
    mix = dict(zip(CLASSES, (0.01, 0.01, 0.98), strict=True))
    own = ask(web, data, prevalence=mix, picture=True).json()
    assert own["probabilities"]["keratosis"] > plain["probabilities"]["keratosis"]
    assert own["picture"].startswith("data:image/jpeg;base64,")
    dear = ask(web, data, costs=dict(zip(CLASSES, (0, 0, 1000), strict=True))).json()
    assert dear["predicted"] == "keratosis"


@pytest.mark.parametrize(
    "options",
    [
        {"coverage": 2},
        {"coverage": "nan"},
        {"refer_above": 1},
        {"costs": {"melanoma": 1, "naevus": {"melanoma": 1}}},
        {"prevalence": "shares.csv"},
        {"prevalence": {"melanoma": 1}},
        {"prevalence": {"melanoma": 0.5, "naevus": 0.1, "keratosis": 0.1}},
        {"costs": "/etc/passwd"},
        {"unknown": 1},
        [],
    ],
    ids=str,
)
def test_wrong_options_are_named(web: WebClient, options: Any) -> None:
    form = {"options": json.dumps(options)}
    files = {"image": ("a.png", encoded(photo()))}
    found = web.post("/api/models/run/predict", files=files, data=form)
    assert found.status_code == 422
    assert is_problem(found)
    assert "--" not in found.json()["detail"]


@pytest.mark.parametrize("option", ["prevalence", "costs"])
def test_errors_do_not_change_names_of_classes(web: WebClient, option: str) -> None:
    wrong = dict.fromkeys(("melanoma", "naevus", "keratosis", "--root --refer-above"), 0.25)
    detail = ask(web, encoded(photo()), **{option: wrong}).json()["detail"]
    assert detail.startswith(f"{option}: ")
    assert "--root --refer-above" in detail


def test_a_batch_keeps_the_order_and_names_bad_images(web: WebClient) -> None:
    data = [encoded(photo(seed)) for seed in range(3)]
    named = [("images", (f"{i}.png", each)) for i, each in enumerate([*data[:2], b"bad", data[2]])]
    rows = web.post("/api/models/run/batch", files=named).json()["rows"]
    assert [row["image"] for row in rows] == ["0.png", "1.png", "2.png", "3.png"]
    assert rows[2]["answer"] is None
    assert rows[2]["problem"]["status"] == 415
    alone = [ask(web, each).json()["probability"] for each in data]
    together = [row["answer"]["probability"] for row in rows if row["answer"]]
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_an_explanation_is_that_of_explain(web: WebClient, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(encoded(photo(5, (300, 280))))
    expected = lmd.load(folder).explain(path)
    found = ask(web, path.read_bytes(), "explain").json()
    assert [each["name"] for each in found["classes"]] == list(expected.classes)
    assert found["classes"][0]["peak"] == pytest.approx(expected.peak(0))
    cases = [(case["label"], case["number"]) for case in found["neighbours"]]
    assert cases == [(case.label, case.row) for case in expected.neighbours]
    heat = picture(base64.b64decode(found["classes"][0]["heat"].partition(",")[2]))
    assert (heat.mode, heat.size) == ("RGBA", (300, 280))
    cover = np.asarray(heat)[:, :, 3]
    np.testing.assert_allclose(cover, 255 * 0.75 * expected.heat[0], atol=1)


def test_an_onnx_file_has_no_heat_maps(web: WebClient) -> None:
    found = ask(web, encoded(photo()), "explain", "small")
    assert found.status_code == 409
    assert is_problem(found)


def test_information(web: WebClient) -> None:
    assert web.get("/health").json() == {"status": "ok", "models": ["run", "small"]}
    assert web.get("/version").json() == {"lmd": lmd.__version__}
    run, small = web.get("/api/models").json()
    assert (run["engine"], small["engine"]) == ("torch", "onnxruntime")
    assert (run["neighbours"], small["neighbours"]) == (True, False)
    assert [each["training_images"] for each in run["classes"]] == [60, 30, 10]
    assert web.get("/api/models/small").json() == small
    for path in ("/api/models/none", "/nowhere", "/api/models/../../etc/passwd"):
        assert is_problem(web.get(path))
    assert web.get("/api/models/run/predict").status_code == 405


def test_metrics_count_what_was_answered(folder: Path) -> None:
    with client(make_service(folder)) as web:
        for seed in range(3):
            ask(web, encoded(photo(seed)))
        ask(web, b"bad")
        lines = web.get("/metrics").text.splitlines()
    route = 'route="/api/models/{model}/predict"'
    assert f'lmd_requests_total{{{route},status="200"}} 3.0' in lines
    assert f'lmd_requests_total{{{route},status="415"}} 1.0' in lines
    assert 'lmd_images_total{model="run"} 3.0' in lines
    assert 'lmd_refused_images_total{model="run",problem="wrong-type"} 1.0' in lines
    assert f'lmd_request_seconds_bucket{{le="+Inf",{route}}} 4.0' in lines
    assert 'lmd_images_on_their_way{model="run"} 0.0' in lines


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_load_nothing_from_elsewhere(web: WebClient, path: str) -> None:
    found = web.get(path)
    policy = found.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "src=" not in found.text
    assert "https://" not in found.text
    assert "@import" not in found.text
    assert "/api/models/{model}/explain" in web.get("/openapi.json").json()["paths"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/api/models/run/extra/predict", 404),
        ("POST", "/api/models//predict", 404),
        ("POST", "/api/models/predict", 405),  # of a model of this name, which has only GET
        ("GET", "/api/models/run/predict", 405),
        ("POST", "/predict", 404),
    ],
)
def test_other_addresses(web: WebClient, method: str, path: str, status: int) -> None:
    found = web.request(method, path)
    assert found.status_code == status
    assert is_problem(found)
