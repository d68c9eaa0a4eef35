"""``examples.npz``: small pictures of test images that are worth a look, with heat maps."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.arrays import read_npz
from lmd.base.errors import LmdError

FILE = "examples.npz"
MOST = 64  # images in a file


@dataclass(frozen=True)
class Examples:
    """``ids (N,)`` of the predictions, ``pictures (N, S, S, 3)``, and ``heat (N, S, S)``.

    Pictures and heat are uint8; ``heat`` shows the evidence for the predicted class, 255 at its
    highest. It is ``None`` if the model has no heat maps.
    """

    ids: NDArray[Any]
    pictures: NDArray[np.uint8]
    heat: NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        n = len(self.ids)
        right = self.ids.ndim == 1 and n <= MOST and self.ids.dtype.kind == "U"
        right &= self.pictures.ndim == 4 and self.pictures.shape[::3] == (n, 3)
        right &= self.heat is None or self.heat.shape == self.pictures.shape[:3]
        kinds = [self.pictures.dtype, *([] if self.heat is None else [self.heat.dtype])]
        if not right or any(kind != np.uint8 for kind in kinds):
            raise LmdError("its arrays do not fit together")

    def to_bytes(self) -> bytes:
        """The content of the file."""
        buffer = BytesIO()
        arrays: dict[str, Any] = {"ids": self.ids, "pictures": self.pictures}
        if self.heat is not None:
            arrays["heat"] = self.heat
        np.savez_compressed(buffer, **arrays)
        return buffer.getvalue()


def read_examples(folder: Path) -> Examples | None:
    """The examples of a run folder; ``None`` if it has no such file."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        arrays = read_npz(path)
        return Examples(arrays["ids"], arrays["pictures"], arrays.get("heat"))
    except KeyError as error:
        why = f"it has no array {error}"
    except LmdError as error:
        why = str(error)
    raise LmdError(f"{path} cannot be read: {why}; remove it to write the report without images")
