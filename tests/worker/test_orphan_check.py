"""`OrphanCheck`: when a worker looks for jobs that it holds by their rows, but not in its memory."""

import time

from django.db import DatabaseError

from django_skipqueue.values.records import NEVER
from django_skipqueue.worker.watchers import ORPHAN_CHECK_REFUSED_SECONDS, OrphanCheck


def make() -> OrphanCheck:
    return OrphanCheck(60, release_orphans=lambda: None)


def test_there_is_nothing_to_look_for_while_the_connection_lasts() -> None:
    assert make().due_at == NEVER


def test_the_checks_after_the_first_count_from_its_time() -> None:
    checks = make()
    checks.expect(100.0)
    looks = [checks.due_at]
    now = 130.0  # the database was gone for half a minute
    for _ in range(5):
        checks.run(now)
        now = checks.due_at
        looks.append(now)
    assert looks == [100.0, 131.0, 136.0, 190.0, 250.0, 310.0]  # at each check, the row of an orphan may be locked


def test_a_connection_that_breaks_again_starts_the_checks_again() -> None:
    checks = make()
    checks.expect(0.0)
    checks.run(0.0)
    checks.expect(5.0)
    assert checks.due_at == 5.0
    checks.run(7.0)
    assert checks.due_at == 8.0


def test_after_an_error_of_the_database_it_waits_for_a_minute_or_more() -> None:
    checks = OrphanCheck(90, release_orphans=lambda: None)
    checks.expect(0.0)
    before = time.monotonic()
    checks.refused(DatabaseError("not now"))
    assert checks.due_at >= before + 90
    checks = OrphanCheck(1, release_orphans=lambda: None)
    checks.refused(DatabaseError("not now"))
    assert checks.due_at >= before + ORPHAN_CHECK_REFUSED_SECONDS
