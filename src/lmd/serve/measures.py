"""Counters of the server in Prometheus' text format (version 0.0.4), written by hand."""

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32)

Labels = tuple[tuple[str, str], ...]


class Counter:
    """A number for each set of labels, which only grows."""

    kind = "counter"

    def __init__(self, name: str, about: str) -> None:
        self.name, self.about = name, about
        self._values: dict[Labels, float] = defaultdict(float)
        self._lock = threading.Lock()

    def add(self, amount: float = 1, /, **labels: str) -> None:
        """Count ``amount`` more."""
        with self._lock:
            self._values[tuple(labels.items())] += amount

    def lines(self) -> list[str]:
        """The samples."""
        with self._lock:
            return [_line(self.name, labels, value) for labels, value in self._values.items()]


class Gauge(Counter):
    """A number for each set of labels, which is set."""

    kind = "gauge"

    def set(self, value: float, /, **labels: str) -> None:
        """Replace the value."""
        with self._lock:
            self._values[tuple(labels.items())] = value


class Histogram:
    """How many observations are at most as large as each bound, their sum and their number."""

    kind = "histogram"

    def __init__(self, name: str, about: str, bounds: Sequence[float]) -> None:
        self.name, self.about, self.bounds = name, about, tuple(bounds)
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = defaultdict(float)
        self._lock = threading.Lock()

    def observe(self, value: float, /, **labels: str) -> None:
        """Count one observation."""
        key = tuple(labels.items())
        with self._lock:
            counts = self._counts.setdefault(key, [0] * (len(self.bounds) + 1))
            counts[bisect_left(self.bounds, value)] += 1
            self._sums[key] += value

    def lines(self) -> list[str]:
        """The samples; buckets are cumulative."""
        found = []
        with self._lock:
            for labels, counts in self._counts.items():
                total = 0
                for bound, count in zip((*self.bounds, float("inf")), counts, strict=True):
                    total += count
                    shown = "+Inf" if bound == float("inf") else f"{bound:g}"
                    found.append(_line(f"{self.name}_bucket", (*labels, ("le", shown)), total))
                found.append(_line(f"{self.name}_sum", labels, self._sums[labels]))
                found.append(_line(f"{self.name}_count", labels, total))
        return found


class Measures:
    """All that the server counts."""

    def __init__(self) -> None:
        self.requests = Counter("lmd_requests_total", "Requests by route and status.")
        self.seconds = Histogram("lmd_request_seconds", "Time of a request.", SECONDS)
        self.images = Counter("lmd_images_total", "Images answered by a model.")
        self.refused = Counter("lmd_refused_images_total", "Images that could not be answered.")
        self.batches = Histogram("lmd_batch_images", "Images in a batch of a model.", SIZES)
        self.model_seconds = Histogram("lmd_batch_seconds", "Time of a batch.", SECONDS)
        self.waiting = Gauge("lmd_images_on_their_way", "Images being decoded or queued.")
        self.open = Gauge("lmd_requests_open", "Requests that are being answered.")

    def text(self) -> str:
        """The page for Prometheus."""
        lines = []
        for each in vars(self).values():
            lines += [f"# HELP {each.name} {each.about}", f"# TYPE {each.name} {each.kind}"]
            lines += each.lines()
        return "\n".join(lines) + "\n"


def _line(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(of)}"' for key, of in labels)
    return f"{name}{{{inside}}} {value:.17g}" if inside else f"{name} {value:.17g}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
