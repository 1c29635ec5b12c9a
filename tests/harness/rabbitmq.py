"""A RabbitMQ for the tests: one node for each process of the test run, a virtual host for each test."""

import os
from collections.abc import Iterator
from itertools import count

import pytest

from scripts.embedded_rabbitmq import USER, RabbitMQ, program

REQUIRED = os.environ.get("SKIPQUEUE_REQUIRE_RABBITMQ") == "1"
"""Whether tests fail, and are not skipped, where RabbitMQ is not installed."""


@pytest.fixture(scope="session")
def rabbitmq_node() -> Iterator[RabbitMQ]:
    """A running node. Who stops it or blocks it sets it right again."""
    if program() is None:
        if REQUIRED:
            pytest.fail("RabbitMQ is not installed, and SKIPQUEUE_REQUIRE_RABBITMQ=1.")
        pytest.skip("RabbitMQ is not installed.")
    node = RabbitMQ.in_temporary_folder()
    try:
        node.start()
        yield node
    finally:
        node.remove()


@pytest.fixture
def rabbitmq(rabbitmq_node: RabbitMQ) -> Iterator[RabbitMQ]:
    """The node; after a test that has ended it, started again."""
    yield rabbitmq_node
    if not rabbitmq_node.is_running:
        rabbitmq_node.start()


VHOSTS_AT_ONCE = 8
"""Virtual hosts that one call makes: each call of `rabbitmqctl` starts an Erlang machine, and takes a second."""

ADD_VHOSTS = """
lists:foreach(
    fun(Name) ->
        rabbit_vhost:add(Name, <<"tests">>),
        rabbit_auth_backend_internal:set_permissions(<<"{user}">>, Name, <<".*">>, <<".*">>, <<".*">>, <<"tests">>)
    end,
    [{names}]
).
"""


@pytest.fixture(scope="session")
def new_vhosts(rabbitmq_node: RabbitMQ) -> Iterator[str]:
    """The names of virtual hosts that are there, and that nobody has used. The node goes with all of them."""

    def make() -> Iterator[str]:
        for batch in count():
            names = [f"test-{batch}-{number}" for number in range(VHOSTS_AT_ONCE)]
            texts = ", ".join(f'<<"{name}">>' for name in names)
            rabbitmq_node.control("eval", ADD_VHOSTS.format(user=USER, names=texts))
            yield from names

    return make()


@pytest.fixture
def broker_url(rabbitmq: RabbitMQ, new_vhosts: Iterator[str]) -> str:
    """The URL of a virtual host of the test's own."""
    return rabbitmq.url(next(new_vhosts))


@pytest.fixture
def small_message_limit(rabbitmq: RabbitMQ) -> Iterator[int]:
    """The broker takes messages of at most this number of bytes, on each channel that is opened from now on."""
    most = 100_000
    rabbitmq.control("eval", f"application:set_env(rabbit, max_message_size, {most}).")
    yield most
    rabbitmq.control("eval", "application:set_env(rabbit, max_message_size, 134217728).")
