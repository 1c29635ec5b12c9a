"""A RabbitMQ for the tests: one node for each process of the test run, a virtual host for each test."""

import os
import secrets
from collections.abc import Iterator

import pytest

from scripts.embedded_rabbitmq import RabbitMQ, program

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


@pytest.fixture
def broker_url(rabbitmq: RabbitMQ) -> Iterator[str]:
    """The URL of a virtual host of the test's own."""
    name = f"test-{secrets.token_hex(4)}"
    url = rabbitmq.add_vhost(name)
    yield url
    if rabbitmq.is_running:
        rabbitmq.control("delete_vhost", name)


@pytest.fixture
def takes_little(rabbitmq: RabbitMQ) -> Iterator[int]:
    """The broker takes messages of so many bytes at most, on each channel that is opened from now on."""
    most = 100_000
    rabbitmq.control("eval", f"application:set_env(rabbit, max_message_size, {most}).")
    yield most
    rabbitmq.control("eval", "application:set_env(rabbit, max_message_size, 134217728).")
