"""Databases in turn: jobs go around a database that cannot be reached, and no job is written twice."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import OperationalError, connections, transaction

from django_skipqueue import job, unique_by
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job
from django_skipqueue.parts.databases.choose import in_turn, reachable_in_turn
from django_skipqueue.queue import silence
from django_skipqueue.queue.silence import can_be_reached

from ...app.jobs import noop
from ...harness.proxy import Proxy
from ...harness.reached import NOBODY, reached_at

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

SetPlacement = Callable[..., None]


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy before the database `other`."""
    proxy = Proxy()
    connection = connections["other"]
    connection.close()
    monkeypatch.setattr(connection, "settings_dict", {**connection.settings_dict, **proxy.settings})
    yield proxy
    connection.close()
    proxy.close()


@pytest.fixture(autouse=True)
def _placement_by_key(set_placement: SetPlacement) -> None:
    set_placement("spread")


def defer_and_count(count: int) -> Counter[str | None]:
    return Counter(noop.defer()._state.db for _ in range(count))


def test_jobs_go_to_all_databases_in_turn() -> None:
    assert defer_and_count(6) == {"default": 3, "other": 3}


def test_a_database_that_refuses_connections_gets_no_job(proxy: Proxy) -> None:
    proxy.refuse()
    assert defer_and_count(6) == {"default": 6}
    assert noop.defer_many([{}] * 4).databases == ["default"] * 4
    assert proxy.accepted == 0


def test_the_share_of_a_database_that_is_down_goes_to_all_others() -> None:
    with reached_at("gone", NOBODY):
        databases_in_turn = Counter(in_turn(("default", "gone", "other")) for _ in range(600))
        first_databases = Counter(reachable_in_turn(("default", "gone", "other"))[0] for _ in range(600))
    for counts in (databases_in_turn, first_databases):
        assert counts.keys() == {"default", "other"}
        assert min(counts.values()) > 240, "about 300 each; 200 and 400 if one database took the whole share"


def test_jobs_do_not_wait_for_a_database_that_does_not_respond(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "CONNECT_TIMEOUT", 2)
    proxy.stall()
    assert defer_and_count(6) == {"default": 6}


def test_checking_a_database_does_not_change_its_settings() -> None:
    connections["other"].close()
    settings_before = connections["other"].settings_dict
    assert can_be_reached("other")
    assert connections["other"].settings_dict is settings_before


def test_a_database_that_went_down_and_ended_its_idle_sessions_gets_no_job(proxy: Proxy) -> None:
    assert defer_and_count(2) == {"default": 1, "other": 1}
    proxy.refuse()
    proxy.cut()
    assert defer_and_count(6) == {"default": 6}


def test_a_reachable_database_whose_sessions_were_ended_gets_its_share(proxy: Proxy) -> None:
    assert defer_and_count(2) == {"default": 1, "other": 1}
    proxy.cut()
    assert defer_and_count(4) == {"default": 2, "other": 2}


def test_a_silent_database_is_left_alone_for_a_while_and_then_tried_again(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.refuse()
    defer_and_count(2)
    proxy.refuse(False)
    assert defer_and_count(4) == {"default": 4}
    monkeypatch.setattr(silence, "avoided_until", {"other": time.monotonic()})
    assert defer_and_count(4) == {"default": 2, "other": 2}


def test_if_no_database_can_be_reached_the_error_is_raised(proxy: Proxy, set_placement: SetPlacement) -> None:
    proxy.refuse()
    set_placement("spread", DATABASES=("other",))
    for _ in range(2):
        with pytest.raises(OperationalError):
            noop.defer()
    assert reachable_in_turn(("other",)) == ["other"]


def test_a_job_with_a_key_is_inserted_without_asking_other_databases(proxy: Proxy, registry: Registry) -> None:
    task: Any = job(unique=unique_by("number"))(numbered)
    number_in_other = next(number for number in range(99) if task.defer(number)._state.db == "other")
    proxy.refuse()
    proxy.cut()
    connections["other"].close()
    with pytest.raises(OperationalError):
        task.defer(number_in_other)
    assert not Job.objects.using("default").filter(unique_key__contains=f"={number_in_other})").exists()


def numbered(number: int) -> None:
    """The function of a task with a unique key."""


def test_a_database_with_an_open_transaction_counts_as_reachable(proxy: Proxy) -> None:
    with transaction.atomic(using="other"):
        noop.using(database="other").defer()
        silence.avoided_until["other"] = time.monotonic() + 60
        assert can_be_reached("other")
        with transaction.atomic(using="default"):
            assert defer_and_count(2) == {"default": 1, "other": 1}
        transaction.set_rollback(True, using="other")
    assert not can_be_reached("other")
    assert not Job.objects.using("other").exists()


@pytest.mark.parametrize("alias", ["default", "other"])
def test_a_job_goes_to_the_database_with_an_open_transaction(alias: str) -> None:
    with transaction.atomic(using=alias):
        assert defer_and_count(3) == {alias: 3}
        assert noop.defer_many([{}] * 3).databases == [alias] * 3
        transaction.set_rollback(True, using=alias)
    assert not Job.objects.using(alias).exists()


def test_adefer_uses_the_databases_in_turn() -> None:
    async def defer() -> str:
        return (await noop.adefer()).handle

    assert {async_to_sync(defer)().partition(":")[0] for _ in range(2)} == {"default", "other"}


def test_in_turn_alternates_between_databases() -> None:
    assert {in_turn(("default", "other")) for _ in range(2)} == {"default", "other"}
