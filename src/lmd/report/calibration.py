"""The bins of the reliability diagram."""

from lmd.report.curves import Bin
from lmd.scoring.intervals import wilson
from lmd.scoring.sample import ECE_BINS, Sample


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
