"""Where the arguments of a call are, and which of them a key reads."""

import inspect
from typing import Any

import pytest

from django_skipqueue import by, job, limit, rate, unique_by
from django_skipqueue.exceptions import InvalidArguments
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.jobs.task import Task, getters_of


def plain(a: int, b: int = 2) -> None: ...


def charge(account: int, order: int, note: Any = None) -> None: ...


def mixed(a: int, /, b: int, *rest: int, c: int = 3, **options: int) -> None: ...


CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any], dict[str, Any]]] = [
    (plain, (7,), {}, {"a": 7, "b": 2}),
    (plain, (), {"b": 8, "a": 7}, {"a": 7, "b": 8}),
    (plain, (7, 8), {}, {"a": 7, "b": 8}),
    (mixed, (1, 2), {}, {"a": 1, "b": 2, "rest": (), "c": 3}),
    (mixed, (1, 2, 5, 6), {"z": 9, "c": 4, "y": 8}, {"a": 1, "b": 2, "rest": (5, 6), "c": 4, "y": 8, "z": 9}),
    (mixed, (1,), {"b": 2}, {"a": 1, "b": 2, "rest": (), "c": 3}),
    (mixed, (1, 2), {"a": 5}, {"a": 5, "b": 2, "rest": (), "c": 3}),
]


def test_each_argument_is_found_where_it_is(subtests: pytest.Subtests) -> None:
    for function, args, kwargs, expected in CALLS:
        with subtests.test(function.__name__, args=args, kwargs=kwargs):
            places = getters_of(inspect.signature(function), len(args), tuple(kwargs))
            found = {name: place(args, kwargs) for name, place in places.items()}
            assert list(found.items()) == list(expected.items())


def test_a_call_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidArguments, match="missing a required argument: 'a'"):
        getters_of(inspect.signature(plain), 0, ())


@pytest.fixture
def task(registry: Registry) -> Task[..., Any]:
    made: Task[..., Any] = job(
        concurrency=limit(2, by="account"), rate=rate("5/s", by="order"), unique=unique_by("account", "order")
    )(charge)
    return made


def test_a_signature_is_bound_once_for_each_form_of_call(task: Task[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """To bind a signature takes longer than the rest of a call."""
    bound = []
    original = inspect.Signature.bind

    def bind(self: inspect.Signature, *args: Any, **kwargs: Any) -> inspect.BoundArguments:
        bound.append(args)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(inspect.Signature, "bind", bind)
    calls = [task.encoded((account, 7), {}) for account in range(50)]
    assert len(bound) == 2, "once to check the form, once for the places"
    assert calls[9].columns["limit_key"] == f"limit:{task.name} account=9"
    assert calls[9].columns["rate_key"] == f"rate:{task.name} order=7"
    assert calls[9].unique_key == f"{task.name}(account=9, order=7)"


def test_only_the_arguments_of_a_key_are_read(task: Task[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def encoded_argument(_: Task[..., Any], name: str, value: Any) -> Any:
        read.append(name)
        return value

    monkeypatch.setattr(Task, "encoded_argument", encoded_argument)
    task.encoded((1, 2), {"note": [1]})
    assert set(read) == {"account", "order"}


def test_a_key_of_no_argument_has_the_name_of_the_task_alone(registry: Registry) -> None:
    call = job(sequence=by())(plain).encoded((1,), {})
    assert call.columns["limit_key"] == f"sequence:{__name__}.plain"
