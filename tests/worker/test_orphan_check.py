"""`OrphanCheck` decides when a worker searches for orphans: jobs whose rows name it, but which it does not know."""

import time

from django.db import DatabaseError

from django_skipqueue.values.records import NEVER
from django_skipqueue.worker.watchers import ORPHAN_CHECK_REFUSED_SECONDS, OrphanCheck


def make_orphan_check() -> OrphanCheck:
    return OrphanCheck(60, release_orphans=lambda: None)


def test_no_check_is_due_before_a_connection_was_lost() -> None:
    assert make_orphan_check().due_at == NEVER


def test_the_times_of_later_checks_count_from_the_first_check() -> None:
    orphan_check = make_orphan_check()
    orphan_check.expect(100.0)
    check_times = [orphan_check.due_at]
    now = 130.0  # the database was gone for half a minute
    for _ in range(5):
        orphan_check.run(now)
        now = orphan_check.due_at
        check_times.append(now)
    assert check_times == [
        100.0,
        131.0,
        136.0,
        190.0,
        250.0,
        310.0,
    ]  # several checks, because the row of an orphan may be locked


def test_a_second_lost_connection_restarts_the_sequence_of_checks() -> None:
    orphan_check = make_orphan_check()
    orphan_check.expect(0.0)
    orphan_check.run(0.0)
    orphan_check.expect(5.0)
    assert orphan_check.due_at == 5.0
    orphan_check.run(7.0)
    assert orphan_check.due_at == 8.0  # one second, a sixtieth of the worker timeout, after the first check


def test_after_a_database_error_the_next_check_is_a_minute_or_more_later() -> None:
    orphan_check = OrphanCheck(90, release_orphans=lambda: None)
    orphan_check.expect(0.0)
    time_before = time.monotonic()
    orphan_check.refused(DatabaseError("not now"))
    assert orphan_check.due_at >= time_before + 90
    orphan_check = OrphanCheck(1, release_orphans=lambda: None)
    orphan_check.refused(DatabaseError("not now"))
    assert orphan_check.due_at >= time_before + ORPHAN_CHECK_REFUSED_SECONDS
