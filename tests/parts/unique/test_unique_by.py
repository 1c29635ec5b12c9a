"""`unique_by` makes the unique key of a job from its arguments: equal keys for equal arguments only."""

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

NAME = "tests.parts.unique.test_unique_by"


def charge(payment_id: int, note: str = "", *, amount: float = 1.5) -> None: ...


def remind(day: date, user: UUID | None = None, *more: Decimal) -> None: ...


def gather(first: Any, *rest: Any, **options: Any) -> None: ...


def log_in(user: str, password: str = "none") -> None: ...


def unique_key_of(task: Task[..., Any], *args: Any, **kwargs: Any) -> str | None:
    return task.encoded(args, kwargs).unique_key


def make_task(function: Callable[..., Any], *names: str) -> Task[..., Any]:
    task: Task[..., Any] = job(unique=unique_by(*names))(function)
    return task


def test_the_key_is_readable_and_has_the_name_of_the_task(registry: Registry) -> None:
    assert unique_key_of(make_task(charge, "payment_id"), 42, "x") == f"{NAME}.charge(payment_id=42)"
    assert unique_key_of(make_task(charge), 42, "x") == f'{NAME}.charge(payment_id=42, note="x", amount=1.5)'


def test_arguments_by_position_by_name_or_by_default_make_the_same_key(registry: Registry) -> None:
    task = make_task(charge)
    keys = {
        unique_key_of(task, 1),
        unique_key_of(task, payment_id=1),
        unique_key_of(task, 1, ""),
        unique_key_of(task, note="", payment_id=1, amount=1.5),
    }
    assert len(keys) == 1


def test_the_key_has_its_arguments_in_the_order_given_to_unique_by(registry: Registry) -> None:
    assert unique_key_of(make_task(charge, "note", "payment_id"), 1) == f'{NAME}.charge(note="", payment_id=1)'


def test_other_arguments_make_another_key(registry: Registry) -> None:
    task = make_task(charge, "payment_id", "note")
    assert (
        len({unique_key_of(task, 1), unique_key_of(task, 2), unique_key_of(task, 1, "x"), unique_key_of(task, "1")})
        == 4
    )


def test_the_key_contains_star_arguments_and_the_names_of_extra_keywords(registry: Registry) -> None:
    task = make_task(gather)
    assert unique_key_of(task, 1, 2, 3, b=1, a=2) == f"{NAME}.gather(first=1, rest=[2, 3], a=2, b=1)"
    assert unique_key_of(task, 1, 2, 3, a=2, b=1) == unique_key_of(task, 1, 2, 3, b=1, a=2)
    assert unique_key_of(make_task(gather, "first", "shop"), 1, shop=5) == f"{NAME}.gather(first=1, shop=5)"
    assert unique_key_of(make_task(gather, "first", "shop"), 1) == f"{NAME}.gather(first=1, shop=null)"


def test_equal_dictionaries_make_equal_keys(registry: Registry) -> None:
    task = make_task(gather, "first")
    assert unique_key_of(task, {"a": 1, "b": [{"d": 1, "c": 2}]}) == unique_key_of(
        task, {"b": [{"c": 2, "d": 1}], "a": 1}
    )


def test_a_tuple_makes_the_same_key_as_a_list(registry: Registry) -> None:
    task = make_task(gather, "first")
    assert unique_key_of(task, (1, 2)) == unique_key_of(task, [1, 2])


def test_a_date_a_uuid_and_a_decimal_are_in_the_key_as_text(registry: Registry) -> None:
    task, user = make_task(remind), UUID(int=7)
    unique_key = unique_key_of(task, date(2026, 11, 23), user, Decimal("1.50"))
    assert unique_key == f'{NAME}.remind(day="2026-11-23", user="{user}", more=["1.50"])'
    assert unique_key == unique_key_of(task, "2026-11-23", str(user), "1.50")


def test_two_tasks_with_equal_arguments_have_different_keys(registry: Registry) -> None:
    assert unique_key_of(make_task(charge, "payment_id"), 1) != unique_key_of(make_task(gather, "first"), 1)


def test_the_key_contains_a_password_only_as_hmac(registry: Registry) -> None:
    task = make_task(log_in)
    password = 'horse"battery staple'
    unique_key = unique_key_of(task, "ada", password)
    assert unique_key is not None
    assert unique_key.startswith(f'{NAME}.log_in(user="ada", password=hmac:')
    assert not any(word in unique_key for word in ("horse", "battery", "staple"))
    assert unique_key == unique_key_of(task, password=password, user="ada")
    assert unique_key != unique_key_of(task, "ada", "other word")


def test_the_hmac_of_a_password_depends_on_the_secret_key(registry: Registry, settings: Any) -> None:
    """Only someone who has SECRET_KEY can guess a short password by trial. Other arguments do not depend on it."""
    task = make_task(log_in)
    unique_key = unique_key_of(task, "ada", "123456")
    settings.SECRET_KEY = "another"
    assert unique_key != unique_key_of(task, "ada", "123456")
    assert unique_key_of(make_task(charge, "payment_id"), 1) == f"{NAME}.charge(payment_id=1)"


def test_the_hmac_stays_the_same_while_the_old_secret_key_is_a_fallback(registry: Registry, settings: Any) -> None:
    task = make_task(log_in)
    settings.SECRET_KEY = "old"
    key_before = unique_key_of(task, "ada", "123456")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "new", ["old"]
    assert unique_key_of(task, "ada", "123456") == key_before
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "newest", ["new", "old"]
    assert unique_key_of(task, "ada", "123456") == key_before
    settings.SECRET_KEY_FALLBACKS = []
    assert unique_key_of(task, "ada", "123456") != key_before


@given(st.text(min_size=0, max_size=2000).filter(lambda text: "\0" not in text and text.isprintable()))
def test_keys_of_different_long_texts_fit_into_the_index_and_differ(text: str) -> None:
    unique_key = unique_by("a").key("t", {"a": canonical("a", text)})
    key_of_longer_text = unique_by("a").key("t", {"a": canonical("a", f"{text}x")})
    assert len(unique_key.encode()) <= MAX_KEY_BYTES
    assert unique_key != key_of_longer_text
    assert unique_key.startswith('t(a="')


def test_keys_of_a_very_long_task_name_fit_into_the_index_and_differ() -> None:
    unique_key = unique_by("a").key("t" * 1000, {"a": "1"})
    assert len(unique_key.encode()) <= MAX_KEY_BYTES
    assert unique_key != unique_by("a").key("t" * 1000, {"a": "2"})


def test_a_name_that_is_no_parameter_of_the_task_is_refused(registry: Registry) -> None:
    with pytest.raises(InvalidOption, match=r"unique_by\('paymentid'\): the task has no parameter.*Did you mean"):
        make_task(charge, "paymentid")
    task = job(charge)
    with pytest.raises(InvalidOption, match="no parameter"):
        task.using(unique=unique_by("id"))


@pytest.mark.parametrize("name", [5, "", "a b", None])
def test_unique_by_refuses_a_value_that_is_no_argument_name(name: Any) -> None:
    with pytest.raises(InvalidOption, match="unique_by takes names of arguments"):
        unique_by(name)


def test_a_call_without_a_required_argument_is_refused(registry: Registry) -> None:
    with pytest.raises(InvalidArguments, match="missing a required argument"):
        unique_key_of(make_task(charge))


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
def test_invalid_unique_options_are_refused_by_the_decorator(options: Any, message: str, registry: Registry) -> None:
    with pytest.raises(InvalidOption, match=message):
        job(**options)(charge)  # type: ignore[no-untyped-call]
    assert len(registry) == 0


def test_using_replaces_unique_by_unique_key_and_the_other_way_round(registry: Registry) -> None:
    task = make_task(charge, "payment_id")
    assert unique_key_of(task.using(unique_key="k"), 1) == "k"
    assert unique_key_of(task.using(unique_key="k").using(unique=unique_by("note")), 1) == f'{NAME}.charge(note="")'
