"""Prometheus' text format."""

from lmd.serve.measures import Counter, Histogram, Measures


def test_labels_are_escaped() -> None:
    counter = Counter("n", "N.")
    counter.add(model='a"b\\c\nd')
    counter.add(2, model="plain")
    assert counter.lines() == [r'n{model="a\"b\\c\nd"} 1', 'n{model="plain"} 2']


def test_buckets_are_cumulative_and_include_their_bound() -> None:
    histogram = Histogram("s", "S.", (1, 2))
    for value in (0.5, 1, 1.5, 9):
        histogram.observe(value)
    assert histogram.lines() == [
        's_bucket{le="1"} 2',
        's_bucket{le="2"} 3',
        's_bucket{le="+Inf"} 4',
        "s_sum 12",
        "s_count 4",
    ]


def test_every_metric_has_help_and_a_type() -> None:
    lines = Measures().text().splitlines()
    assert len([line for line in lines if line.startswith("# HELP")]) == 8
    assert "# TYPE lmd_request_seconds histogram" in lines
