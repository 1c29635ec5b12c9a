"""The horizontal axis: buckets that end now, and labels at round local times."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from django_skipqueue.console.admin.charts import TimeAxis

BERLIN = ZoneInfo("Europe/Berlin")


def test_the_last_bucket_contains_now_and_all_start_at_round_times() -> None:
    axis = TimeAxis.up_to(1_000.0, width=60, bucket_count=3)
    assert (axis.start, axis.end) == (840, 1_020)
    assert [axis.place(seconds) for seconds in (839.9, 840, 899.9, 1_000, 1_019, 1_020)] == [None, 0, 0, 2, 2, None]


def test_labels_stand_at_round_times_of_the_time_zone() -> None:
    now = datetime(2026, 11, 23, 2, 40, tzinfo=UTC).timestamp()
    axis = TimeAxis.up_to(now, width=300, bucket_count=72)
    marks = [f"{moment:%H:%M}" for _, moment in axis.marks(timedelta(hours=2), BERLIN)]
    assert marks == ["22:00", "00:00", "02:00"]
    shares = [share for share, _ in axis.marks(timedelta(hours=2), BERLIN)]
    assert shares == sorted(shares)
    assert 0 <= shares[0] <= shares[-1] < 1


def test_daily_labels_stand_at_local_midnight_across_a_day_of_25_hours() -> None:
    now = datetime(2026, 10, 27, 12, tzinfo=UTC).timestamp()
    axis = TimeAxis.up_to(now, width=7_200, bucket_count=48)
    days = [moment for _, moment in axis.marks(timedelta(days=1), BERLIN)]
    assert [f"{moment:%d %H:%M}" for moment in days] == ["24 00:00", "25 00:00", "26 00:00", "27 00:00"]
    assert days[2].timestamp() - days[1].timestamp() == 25 * 3_600


def test_each_bucket_has_its_local_time() -> None:
    axis = TimeAxis.up_to(0.0, width=60, bucket_count=2)
    (start, end), (_, last) = axis.times(BERLIN)
    assert f"{start:%H:%M}\N{EN DASH}{end:%H:%M}\N{EN DASH}{last:%H:%M}" == "00:59\N{EN DASH}01:00\N{EN DASH}01:01"
