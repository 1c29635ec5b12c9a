"""How a task finds the arguments of a call that its keys are made of, without binding the signature for each call."""

import inspect
from typing import Any

import pytest

from django_skipqueue import by, job, limit, rate, unique_by
from django_skipqueue.exceptions import InvalidArguments
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.jobs.task import Task, getters_of


def two_integers(a: int, b: int = 2) -> None: ...


def charge(account: int, order: int, note: Any = None) -> None: ...


def parameters_of_each_kind(a: int, /, b: int, *rest: int, c: int = 3, **options: int) -> None: ...


# Function, positional arguments, keyword arguments, the value of each parameter.
CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any], dict[str, Any]]] = [
    (two_integers, (7,), {}, {"a": 7, "b": 2}),
    (two_integers, (), {"b": 8, "a": 7}, {"a": 7, "b": 8}),
    (two_integers, (7, 8), {}, {"a": 7, "b": 8}),
    (parameters_of_each_kind, (1, 2), {}, {"a": 1, "b": 2, "rest": (), "c": 3}),
    (
        parameters_of_each_kind,
        (1, 2, 5, 6),
        {"z": 9, "c": 4, "y": 8},
        {"a": 1, "b": 2, "rest": (5, 6), "c": 4, "y": 8, "z": 9},
    ),
    (parameters_of_each_kind, (1,), {"b": 2}, {"a": 1, "b": 2, "rest": (), "c": 3}),
    # `a` is positional-only, so `a=5` is one of the `options`; it hides the first argument.
    (parameters_of_each_kind, (1, 2), {"a": 5}, {"a": 5, "b": 2, "rest": (), "c": 3}),
]


def test_the_value_of_each_parameter_is_found_in_the_arguments_of_the_call(subtests: pytest.Subtests) -> None:
    for function, args, kwargs, expected in CALLS:
        with subtests.test(function.__name__, args=args, kwargs=kwargs):
            getters = getters_of(inspect.signature(function), len(args), tuple(kwargs))
            values = {name: get_value(args, kwargs) for name, get_value in getters.items()}
            assert list(values.items()) == list(expected.items())


def test_a_call_without_a_required_argument_is_refused() -> None:
    with pytest.raises(InvalidArguments, match="missing a required argument: 'a'"):
        getters_of(inspect.signature(two_integers), 0, ())


@pytest.fixture
def task(registry: Registry) -> Task[..., Any]:
    task: Task[..., Any] = job(
        concurrency=limit(2, by="account"), rate=rate("5/s", by="order"), unique=unique_by("account", "order")
    )(charge)
    return task


def test_a_signature_is_bound_twice_for_50_calls_of_the_same_form(
    task: Task[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Binding a signature takes longer than all other work of a call."""
    bound_arguments = []
    original_bind = inspect.Signature.bind

    def record_and_bind(self: inspect.Signature, *args: Any, **kwargs: Any) -> inspect.BoundArguments:
        bound_arguments.append(args)
        return original_bind(self, *args, **kwargs)

    monkeypatch.setattr(inspect.Signature, "bind", record_and_bind)
    calls = [task.encoded((account, 7), {}) for account in range(50)]
    assert len(bound_arguments) == 2, "once to check the call, once to find its arguments"
    assert calls[9].columns["limit_key"] == f"limit:{task.name} account=9"
    assert calls[9].columns["rate_key"] == f"rate:{task.name} order=7"
    assert calls[9].unique_key == f"{task.name}(account=9, order=7)"


def test_only_arguments_that_are_part_of_a_key_are_encoded_for_keys(
    task: Task[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded_names: list[str] = []

    def record_and_return(_: Task[..., Any], name: str, value: Any) -> Any:
        encoded_names.append(name)
        return value

    monkeypatch.setattr(Task, "encoded_argument", record_and_return)
    task.encoded((1, 2), {"note": [1]})
    assert set(encoded_names) == {"account", "order"}


def test_a_key_without_arguments_consists_of_the_name_of_the_task(registry: Registry) -> None:
    call = job(sequence=by())(two_integers).encoded((1,), {})
    assert call.columns["limit_key"] == f"sequence:{__name__}.two_integers"
