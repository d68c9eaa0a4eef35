"""DICOM files, with the default window of a viewer (needs the extra ``lmd[dicom]``)."""

from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.data.images import Decoded, Hold, Pixels, as_uint8, stretch


def decode(file: BinaryIO, name: str, hold: Hold) -> Decoded:
    """Return RGB pixels ``(H, W, 3)`` of the first frame of an open file, and count its frames.

    Grey values pass the rescale slope and intercept (or the modality LUT), then the first VOI LUT
    or window of the file (DICOM PS3.3 C.11.2). Without either, stored values without a sign and a
    unit are scaled by the range of their bits, as in a TIFF; all others are stretched from minimum
    to maximum. MONOCHROME1 is inverted, so that larger is always brighter. Colour is converted to
    RGB.
    """
    try:
        import pydicom
        from pydicom.pixels.utils import pixel_array
    except ImportError:
        raise LmdError(
            f"{name} is DICOM, which needs pydicom: install it with pip install 'lmd[dicom]'"
        ) from None
    tags = ["Rows", "Columns", "NumberOfFrames"]
    header = pydicom.dcmread(file, stop_before_pixels=True, specific_tags=tags)
    hold(int(header.Columns), int(header.Rows))
    frames = int(header.get("NumberOfFrames") or 1)
    file.seek(0)
    header = pydicom.dcmread(file)
    pixels = pixel_array(header, index=0)
    if not str(header.PhotometricInterpretation).startswith("MONOCHROME"):
        return Decoded(_colour(header, pixels), frames)
    grey = _grey(header, pixels)
    if header.PhotometricInterpretation == "MONOCHROME1":
        grey = 255 - grey
    return Decoded(np.repeat(grey[:, :, None], 3, axis=2), frames)


def _grey(header: Any, pixels: NDArray[Any]) -> Pixels:
    from pydicom.pixels.processing import apply_modality_lut, apply_voi

    values = apply_modality_lut(pixels, header)
    if header.get("VOILUTSequence"):
        bits = int(header.VOILUTSequence[0].LUTDescriptor[2])
        mapped = apply_voi(np.rint(values).astype(np.int64), header, index=0)
        return as_uint8(mapped.astype(np.float64) / (2**bits - 1))
    if header.get("WindowCenter") is not None and header.get("WindowWidth") is not None:
        # A file may have several windows; the first is the default.
        centre, width = (float(np.ravel(v)[0]) for v in (header.WindowCenter, header.WindowWidth))
        function = str(header.get("VOILUTFunction", "LINEAR"))
        return as_uint8(window(values.astype(np.float64), centre, width, function))
    unscaled = float(header.get("RescaleSlope") or 1) == 1
    unshifted = float(header.get("RescaleIntercept") or 0) == 0
    unsigned = int(header.PixelRepresentation) == 0
    if unscaled and unshifted and unsigned and not header.get("ModalityLUTSequence"):
        return as_uint8(values / (2.0 ** int(header.BitsStored) - 1))
    return stretch(values)  # values with a sign or a unit, such as Hounsfield's


def window(
    values: NDArray[np.float64], centre: float, width: float, function: str = "LINEAR"
) -> NDArray[np.float64]:
    """Scale values to [0, 1] by window centre and width (DICOM PS3.3 C.11.2.1.2 and .3)."""
    if function == "SIGMOID":
        with np.errstate(over="ignore"):  # exp(∞) means 0 here
            return 1 / (1 + np.exp(-4 * (values - centre) / width))
    if function == "LINEAR":
        centre, width = centre - 0.5, width - 1
    if width <= 0:  # a window of one value is a threshold
        return (values > centre).astype(np.float64)
    return np.clip((values - centre) / width + 0.5, 0, 1)


def _colour(header: Any, pixels: NDArray[Any]) -> Pixels:
    from pydicom.pixels.processing import apply_color_lut

    bits = int(header.BitsStored)
    if header.PhotometricInterpretation == "PALETTE COLOR":
        pixels = apply_color_lut(pixels, header)
        bits = 8 * pixels.dtype.itemsize
    rgb = pixels[..., :3]
    return rgb.copy() if rgb.dtype == np.uint8 else as_uint8(rgb / (2.0**bits - 1))
