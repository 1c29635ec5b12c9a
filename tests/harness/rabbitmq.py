"""RabbitMQ for the tests: each process of the test run has a node, and each test has a virtual host."""

import os
from collections.abc import Iterator
from itertools import count

import pytest

from scripts.embedded_rabbitmq import USER, RabbitMQ, program

REQUIRED = os.environ.get("SKIPQUEUE_REQUIRE_RABBITMQ") == "1"
"""Whether tests fail instead of being skipped if RabbitMQ is not installed."""


@pytest.fixture(scope="session")
def rabbitmq_node() -> Iterator[RabbitMQ]:
    """A running node. A test that stops or blocks the node must undo that."""
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
    """The node. It is started again after a test that has ended it."""
    yield rabbitmq_node
    if not rabbitmq_node.is_running:
        rabbitmq_node.start()


VHOSTS_AT_ONCE = 8
"""How many virtual hosts one call makes. Each call of `rabbitmqctl` takes a second, because it starts Erlang."""

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
    """Yields the name of a new virtual host for each test. The hosts are never removed, because the node is."""

    def make() -> Iterator[str]:
        for batch in count():
            names = [f"test-{batch}-{number}" for number in range(VHOSTS_AT_ONCE)]
            texts = ", ".join(f'<<"{name}">>' for name in names)
            rabbitmq_node.control("eval", ADD_VHOSTS.format(user=USER, names=texts))
            yield from names

    return make()


@pytest.fixture
def broker_url(rabbitmq: RabbitMQ, new_vhosts: Iterator[str]) -> str:
    """The URL of a virtual host that only this test uses."""
    return rabbitmq.url(next(new_vhosts))


@pytest.fixture
def small_message_limit(rabbitmq: RabbitMQ) -> Iterator[int]:
    """The number of bytes to which the broker limits messages, on each channel that is opened during the test."""
    limit = 100_000
    rabbitmq.control("eval", f"application:set_env(rabbit, max_message_size, {limit}).")
    yield limit
    rabbitmq.control("eval", "application:set_env(rabbit, max_message_size, 134217728).")
