"""Two runs on the same images: their differences in all metrics, corrected for their number."""

import textwrap
from dataclasses import dataclass

import numpy as np

from lmd.scoring.intervals import Difference, holm, paired_differences, too_small
from lmd.scoring.metrics import METRICS, Metric
from lmd.scoring.sample import Sample


@dataclass(frozen=True)
class Compared:
    """A difference in one metric; ``corrected`` is its p-value by Holm over all distinct metrics.

    ``same_as`` is an earlier metric that is the same number here: it is not counted again. ``why``
    says why the difference has no interval, if it has none.
    """

    difference: Difference
    corrected: float | None
    same_as: str | None = None
    why: str = ""

    @property
    def known(self) -> bool:
        """Whether both runs have the metric."""
        return bool(np.isfinite(self.difference.value))


def compare(a: Sample, b: Sample, *, resamples: int = 1000, seed: int = 0) -> dict[str, Compared]:
    """Every metric of run A minus that of run B."""
    found = paired_differences(a, b, resamples=resamples, seed=seed)
    same = {key: _same(key, a, b) for key in found}
    tested = [key for key, one in found.items() if np.isfinite(one.p_value) and not same[key]]
    p_values = holm([found[key].p_value for key in tested])
    corrected = dict(zip(tested, p_values.tolist(), strict=True))
    return {
        key: Compared(one, corrected.get(same[key] or key), same[key], _why(one, METRICS[key], a))
        for key, one in found.items()
    }


def _same(key: str, a: Sample, b: Sample) -> str | None:
    """An earlier metric with the same formula on these classes, such as macro recall's."""
    metric, keys = METRICS[key], list(METRICS)
    for earlier in keys[: keys.index(key)]:
        other = METRICS[earlier]
        alike = metric.mean_of is not None and metric.mean_of == other.mean_of
        if alike and np.array_equal(a.members(metric.tier), a.members(other.tier)):
            return earlier
    return None


def _why(gap: Difference, metric: Metric, sample: Sample) -> str:
    """Why a difference has no interval; empty if it has one."""
    if np.isfinite(gap.low):
        return ""
    if gap.value == 0:
        return "the runs agree"
    return "too few images" if too_small(sample, metric) else "all resamples agree"


def p_text(p: float) -> str:
    """A p-value with its sign, as the page and the terminal show it.

    >>> p_text(0.0213), p_text(0.00002)
    ('= 0.021', '< 0.001')
    """
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def format_comparison(found: dict[str, Compared], title: str) -> str:
    """The differences as plain text of 98 columns."""
    lines = [textwrap.fill(title, 98)]
    for key, one in found.items():
        name, gap = METRICS[key].title, one.difference
        if not one.known:
            lines.append(f"  {name:<26} not computable")
        elif one.same_as:
            lines.append(f"  {name:<26} the same as {METRICS[one.same_as].title.lower()}")
        else:
            span = f"95 % {100 * gap.low:+.2f} to {100 * gap.high:+.2f}"
            span = span if np.isfinite(gap.low) else f"no interval: {one.why}"
            p = f"   p {p_text(one.corrected)}" if one.corrected is not None else ""
            lines.append(f"  {name:<26} {100 * gap.value:+7.2f}   {span}{p}")
    return "\n".join(lines)
