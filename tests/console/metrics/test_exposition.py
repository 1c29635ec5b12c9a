"""The text format of the metrics: the library of Prometheus reads the values that we have written."""

from prometheus_client.parser import text_string_to_metric_families

from django_skipqueue.values.counting import BOUNDS, histogram
from django_skipqueue.values.exposition import Family, Histogram, Metric, exposition

GAUGE = Metric("depth", "gauge", "How deep it is.", ("queue",))
HOSTILE = 'a"} 1\nforged{x="\\'


def test_a_gauge_is_read_as_it_was_written() -> None:
    (family,) = text_string_to_metric_families(exposition([Family(GAUGE, {("mail",): 3, ("b",): 0.25, ("c",): 0.0})]))
    assert (family.name, family.type, family.documentation) == GAUGE[:3]
    assert {sample.labels["queue"]: sample.value for sample in family.samples} == {"mail": 3, "b": 0.25, "c": 0}


def test_no_label_can_forge_a_series() -> None:
    (family,) = text_string_to_metric_families(exposition([Family(GAUGE, {(HOSTILE,): 1})]))
    (sample,) = family.samples
    assert sample.labels == {"queue": HOSTILE}


def test_a_histogram_is_cumulative() -> None:
    metric = Metric("wait_seconds", "histogram", "How long it took.", ("task",))
    durations = [0.001, 0.3, 0.4, 100_000.0]
    text = exposition([Family(metric, {("t",): Histogram(histogram(durations), sum(durations))})])
    (family,) = text_string_to_metric_families(text)
    samples = {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples}
    for bound in BOUNDS:
        assert samples["wait_seconds_bucket", str(bound)] == len(
            [duration for duration in durations if duration <= bound]
        )
    assert samples["wait_seconds_bucket", "+Inf"] == samples["wait_seconds_count", None] == 4
    assert samples["wait_seconds_sum", None] == sum(durations)
    assert all(sample.labels["task"] == "t" for sample in family.samples)


def test_a_histogram_without_labels_has_buckets() -> None:
    text = exposition([Family(Metric("s", "histogram", "t"), {(): Histogram(histogram([0.1]), 0.1)})])
    assert 's_bucket{le="0.1"} 1\n' in text
    assert text.endswith("s_sum 0.1\ns_count 1\n")
