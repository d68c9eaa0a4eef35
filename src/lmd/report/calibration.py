"""The reliability diagram of a sample."""

from dataclasses import asdict

from markupsafe import Markup

from lmd.report.curves import Bin, reliability
from lmd.report.saving import savable
from lmd.scoring.intervals import wilson
from lmd.scoring.sample import ECE_BINS, Sample


def reliability_figure(name: str, sample: Sample) -> tuple[Markup, list[Bin]]:
    """The diagram with its data, and its bins."""
    bins = reliability_bins(sample)
    return savable(name, reliability(name, bins), [asdict(each) for each in bins]), bins


def reliability_bins(sample: Sample) -> list[Bin]:
    """The bins of the expected calibration error, each with its accuracy.

    Guo et al. 2017, "On Calibration of Modern Neural Networks", equations 2 and 3.
    """
    result = []
    for i in range(ECE_BINS):
        inside = sample.bins == i
        count, hits = int(inside.sum()), int(sample.right[inside].sum())
        low, high = wilson(hits, count)
        mean = float(sample.confidence[inside].mean()) if count else (i + 0.5) / ECE_BINS
        share = hits / count if count else 0.0
        result.append(Bin(i / ECE_BINS, (i + 1) / ECE_BINS, count, mean, share, low, high))
    return result
