"""What one request may cost; the text of ``Attributes`` is also the help of `lmd serve`."""

import ipaddress
from dataclasses import asdict, dataclass
from functools import lru_cache

from lmd.base.errors import LmdError

MB = 1_000_000


@dataclass(frozen=True)
class Limits:
    """Upper bounds; a request beyond one of them is refused before it costs much.

    Attributes:
        max_image_mb: Size of one file.
        max_request_mb: Size of one request.
        max_megapixels: Largest accepted image, in megapixels.
        max_frames: Frames or pages of one image; only the first is answered.
        max_files: Images in one request.
        max_seconds: Time of one request.
        queue: Images that may wait for one model; beyond them the answer is 503.
    """

    max_image_mb: float = 20
    max_request_mb: float = 100
    max_megapixels: float = 32
    max_frames: int = 1
    max_files: int = 32
    max_seconds: float = 30
    queue: int = 256

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise LmdError(f"--{name.replace('_', '-')} must be above 0; it is {value}")
        if self.queue < self.max_files:
            raise LmdError(
                f"--queue must be at least --max-files, which is {self.max_files}; "
                f"it is {self.queue}"
            )

    @property
    def request_bytes(self) -> int:
        """The largest body of a request."""
        return int(self.max_request_mb * MB)


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host of this name."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
