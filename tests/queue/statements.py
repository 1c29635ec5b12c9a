"""The statements of the queue and of its parts, by their names."""

import re
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from django_skipqueue import queue
from django_skipqueue.console import queues_and_workers, workers
from django_skipqueue.contrib.celery import rows as of_relays
from django_skipqueue.contrib.celery import window as of_windows
from django_skipqueue.models import managers
from django_skipqueue.parts.archive import move
from django_skipqueue.parts.batches import dependencies, finish
from django_skipqueue.parts.history import causes, claim_costs, deployments, rollups
from django_skipqueue.parts.history import console as history_console
from django_skipqueue.parts.history import rules as history_rules
from django_skipqueue.parts.limits import admit as admit_limits
from django_skipqueue.parts.limits import claim as claim_limited
from django_skipqueue.parts.limits import queues as limited_queues
from django_skipqueue.parts.limits import services as limit_services
from django_skipqueue.parts.limits import sql as of_limits
from django_skipqueue.parts.limits import states as limits_now
from django_skipqueue.parts.rates import admit as admit_rates
from django_skipqueue.parts.rates import queues as rated_queues
from django_skipqueue.parts.rates import services as rate_services
from django_skipqueue.parts.rates import states as rates_now
from django_skipqueue.parts.steps import children as of_children
from django_skipqueue.parts.steps import console as steps_now
from django_skipqueue.parts.steps import operate as operate_steps
from django_skipqueue.parts.steps import record as record_steps
from django_skipqueue.parts.steps import signals as send_signals
from django_skipqueue.parts.steps import wake as wake_waiting
from django_skipqueue.parts.unique import enqueue as enqueue_unique
from django_skipqueue.queue import fragments

WITHOUT_STATEMENTS = {"fragments", "store"}
"""Modules of the queue that define no statements: SQL fragments, and the class `Store`."""

MODULES: tuple[ModuleType, ...] = (
    *(
        import_module(f"{queue.__name__}.{module.name}")
        for module in iter_modules(queue.__path__)
        if module.name not in WITHOUT_STATEMENTS
    ),
    queues_and_workers,
    workers,
    managers,
    move,
    dependencies,
    finish,
    claim_costs,
    history_console,
    causes,
    deployments,
    history_rules,
    rollups,
    enqueue_unique,
    of_relays,
    of_windows,
    admit_limits,
    claim_limited,
    limits_now,
    limited_queues,
    of_limits,
    limit_services,
    admit_rates,
    rates_now,
    rated_queues,
    rate_services,
    of_children,
    steps_now,
    operate_steps,
    record_steps,
    send_signals,
    wake_waiting,
)

FIRST_WORD = r"\s*(BEGIN|DELETE|DISCARD|EXPLAIN|INSERT|LISTEN|LOCK|NOTIFY|RESET|SELECT|SET|UNLISTEN|UPDATE|WITH)\b"

STATEMENTS: dict[str, str] = {
    name: text
    for module in MODULES
    for name, text in vars(module).items()
    if name.isupper() and isinstance(text, str) and re.match(FIRST_WORD, text)
    if name[0] != "_" and name not in vars(fragments)
}
