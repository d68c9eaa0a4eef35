"""DICOM files for tests."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest


def write_dicom(path: Path | BytesIO, pixels: np.ndarray, **tags) -> Path | BytesIO:
    pydicom = pytest.importorskip("pydicom")
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    meta = pydicom.dataset.FileMetaDataset()
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data = pydicom.dataset.FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    colour = pixels.ndim == 3 and pixels.shape[-1] == 3
    frames = pixels.ndim == 3 and not colour
    data.SOPClassUID, data.SOPInstanceUID = SecondaryCaptureImageStorage, generate_uid()
    data.Rows, data.Columns = pixels.shape[1:3] if frames else pixels.shape[:2]
    data.SamplesPerPixel = 3 if colour else 1
    data.PhotometricInterpretation = "RGB" if colour else "MONOCHROME2"
    data.BitsAllocated = data.BitsStored = 8 * pixels.dtype.itemsize
    data.HighBit = data.BitsStored - 1
    data.PixelRepresentation = int(pixels.dtype.kind == "i")
    if colour:
        data.PlanarConfiguration = 0
    if frames:
        data.NumberOfFrames = len(pixels)
    data.PixelData = pixels.tobytes()
    for name, value in tags.items():
        setattr(data, name, value)
    data.save_as(path, enforce_file_format=True)
    return path
