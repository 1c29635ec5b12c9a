"""Compute when a schedule fires: by a cron expression in a time zone, or at an interval. Pure; uses cronsim.

If an expression names hours (`0 2 * * *`), the schedule follows the clock on the wall. If the clock skips this time
(for summer time), the schedule fires once, right after the skip. If the clock shows the time twice, the schedule fires
only the first time.

If an expression means every hour (`*/10 * * * *`), the schedule fires by elapsed time, so changes of the clock do not
matter. Where clocks change by half an hour (Lord Howe Island), this only works if the expression's minutes are the same
half an hour later.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from ...exceptions import InvalidOption

SHORTEST_INTERVAL, LONGEST_INTERVAL = timedelta(seconds=1), timedelta(days=3660)
"""The shortest and the longest allowed interval."""

ONE_SECOND, ONE_HOUR = timedelta(seconds=1), timedelta(hours=1)

HALF_HOUR_MINUTES = 30

CRON_FIELDS, CRON_FIELDS_WITH_SECONDS = 5, 6

CRONSIM_MISSING = (
    "Cron expressions need the library cronsim. Install it with: pip install 'django-skipqueue[cron]', "
    "or from a checkout with: pip install './django-skipqueue[cron]'"
)

NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""Names that cron accepts but cronsim does not."""

REBOOT_REFUSED = (
    "a schedule fires at certain times, not when something starts. Enqueue the job with `manage.py skipqueue defer` "
    "where your machine or project is started."
)
"""The advice for `@reboot`."""


@dataclass(frozen=True)
class Every:
    """A timetable with a fixed interval. All times are aware.

    `planned` is a time at which the schedule fires, from which the interval counts.
    """

    interval: timedelta

    def __post_init__(self) -> None:
        """Raise `InvalidOption` if the interval is not valid."""
        if not (isinstance(self.interval, timedelta) and SHORTEST_INTERVAL <= self.interval <= LONGEST_INTERVAL):
            raise InvalidOption(f"an interval must be a timedelta from 1 second to 10 years, not {self.interval!r}.")

    @property
    def rule(self) -> dict[str, Any]:
        """The rule as it is stored in the metadata of the schedule's jobs."""
        return {"every": self.interval.total_seconds()}

    def first(self, now: datetime) -> datetime | None:
        """Return when a new schedule first fires; `None` if never."""
        return now + self.interval

    def after(self, moment: datetime, *, planned: datetime) -> datetime | None:
        """Return the first time after `moment`; `None` if there is none."""
        return planned + self.interval * (math.floor((moment - planned) / self.interval) + 1)

    def newest(self, moment: datetime, *, planned: datetime, limit: int) -> list[datetime]:
        """Return the last `limit` times from `planned` to `moment`, both included, in ascending order."""
        passed = math.floor((moment - planned) / self.interval)
        first = max(0, passed - limit + 1)
        return [planned + self.interval * number for number in range(first, passed + 1)]


@dataclass(frozen=True)
class Cron:
    """A timetable by a cron expression with five fields, or with six fields if seconds come first."""

    expression: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        """Raise `InvalidOption` if the expression or the time zone is not valid."""
        zone_of(self.zone)
        if self.first(datetime.now(UTC)) is None:
            raise InvalidOption(f"the cron expression {self.expression!r} never fires.")

    @property
    def rule(self) -> dict[str, Any]:
        return {"cron": self.expression, "timezone": self.zone}

    def _elapsed_zone(self, year: int) -> tzinfo | None:
        """Return the zone in which the schedule fires by elapsed time; `None` means by the wall clock."""
        expression, zone = parsed(self.expression), zone_of(self.zone)
        if set(expression.hours) != set(range(24)):
            return None
        standard = without_half_hours(zone, year)
        minutes = set(expression.minutes)
        half_hour_later = {(minute + HALF_HOUR_MINUTES) % 60 for minute in minutes}
        if standard == zone or minutes == half_hour_later:  # then the clock shows these minutes in either time
            return standard
        return None

    def first(self, now: datetime) -> datetime | None:
        return next(self._from(now), None)

    def after(self, moment: datetime, *, planned: datetime) -> datetime | None:
        return self.first(moment)

    def newest(self, moment: datetime, *, planned: datetime, limit: int) -> list[datetime]:
        times: list[datetime] = []
        for time in self._back_from(moment):
            if time < planned or len(times) == limit:
                break
            times.insert(0, time)
        return times

    def _from(self, moment: datetime) -> Iterator[datetime]:
        """Yield the times after `moment`, in UTC."""
        if zone := self._elapsed_zone(moment.year):
            for time in _simulated(self.expression, moment.astimezone(zone)):
                yield time.astimezone(UTC)
            return
        local = moment.astimezone(zone_of(self.zone))
        previous = moment  # if the clock shows a time twice, its second instant is not later, and is left out
        for time in _simulated(self.expression, local.replace(tzinfo=None)):
            instant = wall_clock_instant(time, local.tzinfo)
            if instant > previous:
                previous = instant
                yield instant

    def _back_from(self, moment: datetime) -> Iterator[datetime]:
        """Yield the times up to `moment`, the newest first, in UTC."""
        start = moment + ONE_SECOND
        if elapsed := self._elapsed_zone(start.year):
            for time in _simulated(self.expression, start.astimezone(elapsed), back=True):
                if time <= moment:
                    yield time.astimezone(UTC)
            return
        local = start.astimezone(zone_of(self.zone))
        # If the clock shows an hour for the second time, it has already shown all of this hour: begin an hour later.
        repeated_hour = local.replace(fold=0).utcoffset() - local.utcoffset()  # type: ignore[operator]
        previous: datetime | None = None
        for time in _simulated(self.expression, local.replace(tzinfo=None) + repeated_hour, back=True):
            instant = wall_clock_instant(time, local.tzinfo)
            if instant <= moment and instant != previous:
                previous = instant
                yield instant


Timetable = Every | Cron


@functools.lru_cache(maxsize=1_000)
def timetable(*, cron: str, interval: timedelta | None, zone: str) -> Timetable:
    """Return the timetable of these columns. Raises `InvalidOption` if they are not valid."""
    if bool(cron) == (interval is not None):
        raise InvalidOption("a schedule has either a cron expression or an interval.")
    return Every(interval) if interval is not None else Cron(cron, zone)


@functools.lru_cache(maxsize=1_000)
def zone_of(name: str) -> ZoneInfo:
    """Return the time zone with this name. Raises `InvalidOption` if there is none."""
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, TypeError, KeyError):  # a name that is not found is a KeyError
        raise InvalidOption(
            f"there is no time zone {name!r}: give a name of the IANA database, such as Europe/Berlin."
        ) from None


@functools.lru_cache(maxsize=1_000)
def without_half_hours(zone: ZoneInfo, year: int) -> tzinfo:
    """Return the zone; or its standard time, if its summer time differs by half an hour (Lord Howe Island)."""
    for month in (1, 7):
        day = datetime(year, month, 1, tzinfo=zone)
        summer, offset = day.dst() or timedelta(0), day.utcoffset() or timedelta(0)
        if summer % ONE_HOUR:
            return timezone(offset - summer)
    return zone


def instant(seconds: float) -> datetime:
    """Convert seconds since the epoch into a UTC time."""
    return datetime.fromtimestamp(seconds, UTC)


def upcoming(table: Timetable, planned: datetime, number: int) -> list[datetime]:
    times: list[datetime] = []
    time: datetime | None = planned
    while time is not None and len(times) < number:
        times.append(time)
        time = table.after(time, planned=planned)
    return times


def wall_clock_instant(time: datetime, zone: tzinfo | None) -> datetime:
    """Return when the wall clock first shows this naive time, or skips it, in UTC."""
    first, second = time.replace(tzinfo=zone, fold=0), time.replace(tzinfo=zone, fold=1)
    offset_before, offset_after = first.utcoffset() or timedelta(0), second.utcoffset() or timedelta(0)
    if offset_before >= offset_after:  # the clock shows the time once or twice
        return first.astimezone(UTC)
    skipped_after, skipped_at = (time - offset_after).replace(tzinfo=UTC), (time - offset_before).replace(tzinfo=UTC)
    # The clock skips the time. Halve the interval that contains the change of the clock, until it is a second long.
    while skipped_at - skipped_after > ONE_SECOND:
        middle = skipped_after + (skipped_at - skipped_after) // 2
        if middle.astimezone(zone).utcoffset() == offset_after:
            skipped_at = middle
        else:
            skipped_after = middle
    return skipped_at.replace(microsecond=0)


def _simulated(expression: str, start: datetime, *, back: bool = False) -> Iterator[datetime]:
    """Yield the times after `start`, or before it, computed by cronsim, in the time zone of `start`."""
    try:
        from cronsim import CronSim
    except ImportError:
        raise InvalidOption(CRONSIM_MISSING) from None
    try:
        times: Iterator[datetime] = CronSim(_with_six_fields(expression), start, reverse=back)
    except InvalidOption:
        raise
    except Exception as error:  # for a few mistakes, cronsim raises errors other than `CronSimError`
        raise InvalidOption(
            f"the cron expression {expression!r} is not valid: {error or 'a field is wrong'}."
        ) from None
    return times


@functools.lru_cache(maxsize=1_000)
def parsed(expression: str) -> Any:
    """Parse an expression into cronsim's sets of numbers: `seconds`, `minutes`, `hours`, `days`, `months`, `weekdays`.

    Raises `InvalidOption` for an expression that cannot be used.
    """
    return _simulated(expression, datetime(2000, 1, 1))  # noqa: DTZ001 (only its fields are used)


def _with_six_fields(expression: str) -> str:
    """Return the expression with six fields, because cronsim then leaves changes of the clock to this module.

    Raises `InvalidOption` for an expression that cannot be used.
    """
    if not isinstance(expression, str):
        raise InvalidOption(f"a cron expression must be a str, not {expression!r}.")
    expression = NICKNAMES.get(expression.strip(), expression)
    if expression.startswith("@"):
        problem = REBOOT_REFUSED if expression == "@reboot" else f"the names are {', '.join(NICKNAMES)}."
        raise InvalidOption(f"the cron expression {expression!r} is not valid: {problem}")
    fields = expression.split()
    if len(fields) not in (CRON_FIELDS, CRON_FIELDS_WITH_SECONDS):
        raise InvalidOption(
            f"the cron expression {expression!r} has {len(fields)} fields, but must have five (minute, hour, day of "
            "month, month and day of week), or six with the second before them."
        )
    return " ".join(["0", *fields] if len(fields) == CRON_FIELDS else fields)
