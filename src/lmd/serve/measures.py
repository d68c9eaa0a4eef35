"""What the server counts, for Prometheus."""

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

MEDIA_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32)
disable_created_metrics()  # type: ignore[no-untyped-call]


class Measures:
    """All counters of one server."""

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry()
        self.requests = Counter(
            "lmd_requests_total", "Requests by route and status.", ["route", "status"], registry=own
        )
        self.seconds = Histogram(
            "lmd_request_seconds", "Time of a request.", ["route"], buckets=SECONDS, registry=own
        )
        self.images = Counter(
            "lmd_images_total", "Images answered by a model.", ["model"], registry=own
        )
        self.refused = Counter(
            "lmd_refused_images_total",
            "Images that could not be answered.",
            ["model", "problem"],
            registry=own,
        )
        self.batches = Histogram(
            "lmd_batch_images", "Images in a batch of a model.", ["model"], buckets=SIZES,
            registry=own,
        )  # fmt: skip
        self.model_seconds = Histogram(
            "lmd_batch_seconds", "Time of a batch.", ["model"], buckets=SECONDS, registry=own
        )
        self.waiting = Gauge(
            "lmd_images_on_their_way", "Images being decoded or queued.", ["model"], registry=own
        )
        self.open = Gauge("lmd_requests_open", "Requests that are being answered.", registry=own)

    def text(self) -> bytes:
        """Return the page for Prometheus."""
        return generate_latest(self._registry)
