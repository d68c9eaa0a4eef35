"""What Prometheus reads."""

from lmd.serve.models import Measures


def test_every_metric_has_help_and_a_type() -> None:
    measures = Measures()
    measures.images.labels('a"b').inc(2)
    lines = measures.text().decode().splitlines()
    assert len([line for line in lines if line.startswith("# HELP")]) == 8
    assert "# TYPE lmd_request_seconds histogram" in lines
    assert r'lmd_images_total{model="a\"b"} 2.0' in lines
    assert not any("created" in line for line in lines)


def test_servers_count_apart() -> None:
    first, second = Measures(), Measures()
    first.open.set(3)
    assert b"lmd_requests_open 0.0" in second.text()
