"""Bars of the reference method and its ablations, overall and for head, medium and tail."""

from collections.abc import Sequence
from typing import Any

from lmd.base.errors import LmdError
from lmd.benchmark.figures.series import (
    Series,
    check_metrics,
    family,
    group,
    reference_row,
    same_data,
)
from lmd.benchmark.figures.sources import Study
from lmd.benchmark.figures.style import COLOURS, GREY, HATCHES, Drawn, legend_below, new_figure
from lmd.benchmark.tables.forms import COLUMNS, HEADLINE
from lmd.scoring.metrics import METRICS

PALETTE = (*COLOURS, GREY)
DEFAULT = (HEADLINE, *(key for key in COLUMNS["tiers"] if key != HEADLINE))


def ablation_figure(
    study: Study,
    *,
    metrics: Sequence[str] | None,
    reference: str | None,
    methods: Sequence[str] | None,
    width: float,
    height: float | None,
) -> Drawn:
    """One group of bars for each metric, with 95 % intervals as whiskers."""
    keys = check_metrics(metrics or DEFAULT)
    series = group(study, methods) if methods else _own(group(study), study, reference)
    same_data(series, "ablation")
    if len(series) > len(HATCHES):
        raise LmdError(f"the ablation figure shows at most {len(HATCHES)} rows, not {len(series)}")
    figure = new_figure(width, height or 0.66 * width)
    axes = figure.add_subplot()
    bar = 0.84 / len(series)
    rows: list[dict[str, Any]] = []
    for i, one in enumerate(series):
        for j, key in enumerate(keys):
            found, kind = one.estimate(key)
            if found is None:
                continue
            low = found.mean if found.low is None else found.low
            high = found.mean if found.high is None else found.high
            rows.append(
                {
                    "method": one.key,
                    "title": one.title,
                    "metric": key,
                    "value": found.mean,
                    "low": found.low,
                    "high": found.high,
                    "sd_over_seeds": found.sd,
                    "seeds": len(one.runs),
                    "interval": kind,
                }
            )
            axes.bar(
                j + (i - (len(series) - 1) / 2) * bar,
                100 * found.mean,
                0.92 * bar,
                yerr=[[100 * max(found.mean - low, 0)], [100 * max(high - found.mean, 0)]],
                color=PALETTE[i],
                alpha=0.85,
                edgecolor="white" if HATCHES[i] else PALETTE[i],
                hatch=HATCHES[i],
                linewidth=0,
                label=one.title if not any(r["title"] == one.title for r in rows[:-1]) else None,
                error_kw={"elinewidth": 0.8, "capsize": 1.5, "capthick": 0.8},
            )
    if not rows:
        raise LmdError(f"no row of the ablation has the metrics {', '.join(keys)}")
    axes.set_xticks(range(len(keys)), [_short(key) for key in keys])
    axes.tick_params(axis="x", length=0)
    share = all(key in DEFAULT for key in keys)
    axes.set_ylabel("balanced accuracy, %" if share else "value × 100")
    axes.set_ylim(bottom=min(0, *axes.get_ylim()))
    axes.grid(axis="y")
    legend_below(figure, [one.title for one in series])
    kinds = sorted({row["interval"] for row in rows})
    return Drawn(figure, rows, (f"Whiskers: 95 % intervals over {' / '.join(kinds)}.",))


def _own(series: Sequence[Series], study: Study, reference: str | None) -> list[Series]:
    """The reference and its ablations: by the plan, otherwise by their keys and settings."""
    main = reference_row(series, study, reference)
    if reference is None and study.own:
        found = [one for one in series if one.key in study.own]
    else:
        found = family(main, series) if main else []
    if len(found) < 2:
        raise LmdError(
            "there are no ablations among these runs: an ablation figure needs the reference and "
            "at least one row without a part of it; choose with --reference or --methods"
        )
    return found


def _short(key: str) -> str:
    if key == HEADLINE:
        return "overall"
    return key.removeprefix("bacc_") if key.startswith("bacc_") else METRICS[key].short
