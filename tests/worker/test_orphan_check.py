"""When a worker looks for jobs of its own that it never heard of."""

from django_skipqueue.worker.orphan_check import OrphanCheck


def test_there_is_nothing_to_look_for_while_the_connection_lasts() -> None:
    assert OrphanCheck(60).next_at == float("inf")


def test_the_looks_after_the_first_count_from_when_the_database_answered() -> None:
    checks = OrphanCheck(60)
    checks.expect(100.0)
    looks = [checks.next_at]
    now = 130.0  # the database was gone for half a minute
    for _ in range(5):
        checks.done(now)
        now = checks.next_at
        looks.append(now)
    assert looks == [100.0, 131.0, 136.0, 190.0, 250.0, 310.0]  # somebody may have had a job locked, at every look


def test_a_connection_that_breaks_again_starts_anew() -> None:
    checks = OrphanCheck(60)
    checks.expect(0.0)
    checks.done(0.0)
    checks.expect(5.0)
    assert checks.next_at == 5.0
    checks.done(7.0)
    assert checks.next_at == 8.0
