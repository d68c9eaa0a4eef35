"""What one request may cost."""

from dataclasses import dataclass, fields

from lmd.base.errors import LmdError

MB = 1_000_000


@dataclass(frozen=True)
class Limits:
    """Upper bounds; a request beyond one of them is refused before it costs much.

    ``queue`` is the number of images of one model that may be on their way at the same time.
    """

    image_mb: float = 20
    request_mb: float = 100
    megapixels: float = 32
    side: int = 32_768
    frames: int = 1
    files: int = 32
    seconds: float = 30
    queue: int = 256

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                option = f"--max-{field.name}" if field.name != "queue" else "--queue"
                raise LmdError(f"{option.replace('_', '-')} must be above 0; it is {value}")
        if self.queue < self.files:
            raise LmdError(
                f"--queue must be at least --max-files, which is {self.files}; it is {self.queue}"
            )

    @property
    def image_bytes(self) -> int:
        """Of one uploaded file."""
        return int(self.image_mb * MB)

    @property
    def request_bytes(self) -> int:
        """Of the whole body of a request."""
        return int(self.request_mb * MB)

    @property
    def bytes_at_once(self) -> int:
        """Of all bodies that are in memory at the same time."""
        return 4 * self.request_bytes

    @property
    def pixels(self) -> int:
        """Of one decoded image."""
        return int(self.megapixels * MB)
