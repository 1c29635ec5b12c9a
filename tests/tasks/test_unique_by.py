"""`unique_by` makes equal keys exactly for calls with equal arguments, by position or by name."""

from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_skipqueue import job, unique_by
from django_skipqueue.exceptions import InvalidArguments, InvalidOption
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.jobs.task import Task, canonical
from django_skipqueue.values.bounds import MAX_KEY_BYTES

NAME = "tests.tasks.test_unique_by"


def charge(payment_id: int, note: str = "", *, amount: float = 1.5) -> None: ...


def remind(day: date, user: UUID | None = None, *more: Decimal) -> None: ...


def gather(first: Any, *rest: Any, **options: Any) -> None: ...


def log_in(user: str, password: str = "none") -> None: ...


def key(task: Task[..., Any], *args: Any, **kwargs: Any) -> str | None:
    return task.encoded(args, kwargs).unique_key


def task_of(function: Callable[..., Any], *names: str) -> Task[..., Any]:
    task: Task[..., Any] = job(unique=unique_by(*names))(function)
    return task


def test_the_key_is_readable_and_has_the_name_of_the_task(registry: Registry) -> None:
    assert key(task_of(charge, "payment_id"), 42, "x") == f"{NAME}.charge(payment_id=42)"
    assert key(task_of(charge), 42, "x") == f'{NAME}.charge(payment_id=42, note="x", amount=1.5)'


def test_how_an_argument_is_passed_makes_no_difference(registry: Registry) -> None:
    task = task_of(charge)
    keys = {key(task, 1), key(task, payment_id=1), key(task, 1, ""), key(task, note="", payment_id=1, amount=1.5)}
    assert len(keys) == 1


def test_the_order_of_the_names_is_that_of_the_option(registry: Registry) -> None:
    assert key(task_of(charge, "note", "payment_id"), 1) == f'{NAME}.charge(note="", payment_id=1)'


def test_other_arguments_make_another_key(registry: Registry) -> None:
    task = task_of(charge, "payment_id", "note")
    assert len({key(task, 1), key(task, 2), key(task, 1, "x"), key(task, "1")}) == 4


def test_gathered_arguments_have_their_names_in_the_key(registry: Registry) -> None:
    task = task_of(gather)
    assert key(task, 1, 2, 3, b=1, a=2) == f"{NAME}.gather(first=1, rest=[2, 3], a=2, b=1)"
    assert key(task, 1, 2, 3, a=2, b=1) == key(task, 1, 2, 3, b=1, a=2)
    assert key(task_of(gather, "first", "shop"), 1, shop=5) == f"{NAME}.gather(first=1, shop=5)"
    assert key(task_of(gather, "first", "shop"), 1) == f"{NAME}.gather(first=1, shop=null)"


def test_equal_dictionaries_make_equal_keys(registry: Registry) -> None:
    task = task_of(gather, "first")
    assert key(task, {"a": 1, "b": [{"d": 1, "c": 2}]}) == key(task, {"b": [{"c": 2, "d": 1}], "a": 1})


def test_a_tuple_is_a_list_as_in_the_row(registry: Registry) -> None:
    task = task_of(gather, "first")
    assert key(task, (1, 2)) == key(task, [1, 2])


def test_an_argument_of_another_type_is_in_the_key_as_in_the_row(registry: Registry) -> None:
    task, user = task_of(remind), UUID(int=7)
    made = key(task, date(2026, 11, 23), user, Decimal("1.50"))
    assert made == f'{NAME}.remind(day="2026-11-23", user="{user}", more=["1.50"])'
    assert made == key(task, "2026-11-23", str(user), "1.50")


def test_two_tasks_never_share_a_key(registry: Registry) -> None:
    assert key(task_of(charge, "payment_id"), 1) != key(task_of(gather, "first"), 1)


def test_a_secret_is_not_in_the_key(registry: Registry) -> None:
    task = task_of(log_in)
    made = key(task, "ada", 'pa"ss word')
    assert made is not None
    assert made.startswith(f'{NAME}.log_in(user="ada", password=hmac:')
    assert "pa" not in made.partition("hmac:")[2].replace("pa)", "")
    assert made == key(task, password='pa"ss word', user="ada")
    assert made != key(task, "ada", "other word")


def test_a_secret_of_few_characters_cannot_be_guessed_from_the_key(registry: Registry, settings: Any) -> None:
    """Only somebody who has the secret key can try values. The readable part of a key does not depend on the secret."""
    task = task_of(log_in)
    made = key(task, "ada", "123456")
    settings.SECRET_KEY = "another"
    assert made != key(task, "ada", "123456")
    assert key(task_of(charge, "payment_id"), 1) == f"{NAME}.charge(payment_id=1)"


def test_a_change_of_the_secret_key_changes_no_key_while_the_old_one_is_a_fallback(
    registry: Registry, settings: Any
) -> None:
    task = task_of(log_in)
    settings.SECRET_KEY = "old"
    before = key(task, "ada", "123456")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "new", ["old"]
    assert key(task, "ada", "123456") == before
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "newest", ["new", "old"]
    assert key(task, "ada", "123456") == before
    settings.SECRET_KEY_FALLBACKS = []
    assert key(task, "ada", "123456") != before


@given(st.text(min_size=0, max_size=2000).filter(lambda text: "\0" not in text and text.isprintable()))
def test_every_key_fits_into_the_index_and_stays_distinct(text: str) -> None:
    made = unique_by("a").key("t", {"a": canonical("a", text)})
    other = unique_by("a").key("t", {"a": canonical("a", f"{text}x")})
    assert len(made.encode()) <= MAX_KEY_BYTES
    assert made != other
    assert made.startswith('t(a="')


def test_a_key_that_is_too_long_ends_in_a_digest_of_the_whole() -> None:
    made = unique_by("a").key("t" * 1000, {"a": "1"})
    assert len(made.encode()) <= MAX_KEY_BYTES
    assert made != unique_by("a").key("t" * 1000, {"a": "2"})


def test_a_name_that_the_task_does_not_have_is_refused_at_import(registry: Registry) -> None:
    with pytest.raises(InvalidOption, match=r"unique_by\('paymentid'\): the task has no parameter.*Did you mean"):
        task_of(charge, "paymentid")
    plain = job(charge)
    with pytest.raises(InvalidOption, match="no parameter"):
        plain.using(unique=unique_by("id"))


@pytest.mark.parametrize("name", [5, "", "a b", None])
def test_a_value_that_is_no_name_is_refused_by_unique_by(name: Any) -> None:
    with pytest.raises(InvalidOption, match="unique_by takes names of arguments"):
        unique_by(name)


def test_arguments_that_do_not_fit_are_refused_as_ever(registry: Registry) -> None:
    with pytest.raises(InvalidArguments, match="missing a required argument"):
        key(task_of(charge))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unique": "payment_id"}, r'unique must be unique_by\("payment_id"\)'),
        ({"unique": unique_by(), "unique_key": "k"}, "Give unique or unique_key, not both"),
        ({"until": "started"}, "need a key"),
        ({"on_conflict": "replace"}, "need a key"),
        ({"unique_key": "k", "until": "ever"}, 'until must be "finished", "started" or a timedelta'),
        ({"unique_key": "k", "until": 5}, "until must be"),
        ({"unique_key": "k", "until": timedelta(0)}, "above 0"),
        ({"unique_key": "k", "until": timedelta(days=999_999_999)}, "above 0"),
        ({"unique_key": "k", "on_conflict": "wait"}, 'on_conflict must be one of "skip", "replace", "raise"'),
    ],
)
def test_options_that_cannot_be_used_are_refused_at_import(options: Any, message: str, registry: Registry) -> None:
    with pytest.raises(InvalidOption, match=message):
        job(**options)(charge)  # type: ignore[no-untyped-call]
    assert len(registry) == 0


def test_using_puts_one_kind_of_key_in_place_of_the_other(registry: Registry) -> None:
    task = task_of(charge, "payment_id")
    assert key(task.using(unique_key="k"), 1) == "k"
    assert key(task.using(unique_key="k").using(unique=unique_by("note")), 1) == f'{NAME}.charge(note="")'
