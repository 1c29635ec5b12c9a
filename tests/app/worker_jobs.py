"""Tasks that harm their worker, and tasks that run until a test in the same process lets them end."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

from asgiref.sync import sync_to_async
from django.db import DatabaseError, connection, connections, transaction

from django_skipqueue import JobContext, Retry, job
from django_skipqueue.exceptions import JobTimeout
from django_skipqueue.queue.store import Store
from django_skipqueue.values.backoff import constant
from django_skipqueue.worker.attempts import connections as worker_connections

from .models import Ledger

store = Store("default")


class Gate:
    """A point at which tasks wait until a test opens it. It counts the tasks."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        """The largest number of tasks that were at the gate at the same time."""
        self.came = 0
        """The number of tasks that have come to the gate."""
        self.opened = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.came += 1
            self.inside += 1
            self.most = max(self.most, self.inside)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.inside -= 1

    def open(self) -> None:
        """Let all tasks through, from now on."""
        self.opened.set()

    def wait(self) -> None:
        if not self.opened.wait(60):
            raise TimeoutError("nobody opened the gate")

    async def await_(self) -> None:
        while not self.opened.is_set():
            await asyncio.sleep(0.002)


class Gates(dict[str, Gate]):
    """The gates by name. The first use of a name makes its gate, even if two tasks use the name at the same time."""

    def __missing__(self, name: str) -> Gate:
        return self.setdefault(name, Gate())


gates = Gates()


seen: list[int] = []
"""The numbers with which `see` was called in this process."""


@job
def see(number: int) -> None:
    """Add the number to `seen`."""
    seen.append(number)


must_wait, may_continue = threading.Event(), threading.Event()


@job
def wait_if_asked() -> None:
    """If the test has set `must_wait`, wait until it sets `may_continue`."""
    if must_wait.is_set():
        may_continue.wait(5)


@job
def see_slowly(number: int) -> None:
    """Add the number to `seen` after 5 ms."""
    time.sleep(0.005)
    seen.append(number)


@job(timeout=0.5, max_attempts=1)
def stay() -> None:
    """Run until the timeout interrupts the task."""
    while True:
        time.sleep(0.01)


@job(max_attempts=2)
def see_or_never(number: int) -> None:
    """Add the number to `seen`. Every 500th job asks for a retry, which PostgreSQL refuses in the test."""
    if number % 500 == 0:
        raise Retry(after=60)
    seen.append(number)


@job
def pass_gate(name: str) -> None:
    with gates[name]:
        gates[name].wait()


@job
def pass_gate_and_get_over_it(name: str) -> None:
    """Wait at the gate, and suppress every interruption."""
    with contextlib.suppress(BaseException):
        pass_gate(name)


@job
def pass_gate_come_what_may(name: str) -> None:
    """Wait at the gate in a call of the thread that Python cannot interrupt."""
    pass_gate(name)


@job
async def apass_gate_come_what_may(name: str) -> None:
    """Wait at the gate, and suppress every cancellation."""
    while not gates[name].opened.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await gates[name].await_()


@job
async def apass_gate(name: str) -> None:
    with gates[name]:
        await gates[name].await_()


@job
async def abackends(name: str) -> list[int]:
    """Return the process ids of the database session before and after the gate."""
    backend_before = await sync_to_async(_backend)()
    await apass_gate(name)
    return [backend_before, await sync_to_async(_backend)()]


def _backend() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


@job
async def apass_gate_in_a_thread(name: str) -> None:
    """Wait at the gate in the one thread that asgiref keeps for an event loop, as queries do."""
    await sync_to_async(pass_gate)(name)


@job
async def apass_gates_in_a_thread(*names: str) -> None:
    """Wait at several gates. The event loop has one thread for this, so the waits follow each other."""
    await asyncio.gather(*(sync_to_async(pass_gate)(name) for name in names))


@job
async def apass_gate_instead_of_a_call(name: str) -> None:
    """Ask for a call in the thread, which another attempt occupies. Give up after 50 ms, and wait at the gate."""
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(sync_to_async(pass_gate)(name), 0.05)
    await gates[name].await_()


@job
async def ablock_loop(name: str) -> None:
    """Block the event loop until the gate opens, as no coroutine should."""
    pass_gate(name)


@job
async def astop_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)


@job
async def aset_factory() -> None:
    """Install a task factory in the event loop that raises an error."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise ValueError("no task")

    asyncio.get_running_loop().set_task_factory(fail)


@job
async def acancel_itself() -> None:
    """Cancel the asyncio task in which this runs, but so late that the task ends before the cancellation arrives."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@job
async def acancel_all() -> None:
    """Cancel all other tasks of the event loop."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


_left_behind: list[Any] = []


@job
async def aleave_generator(name: str) -> None:
    """Leave an asynchronous generator open. When it is closed, it waits for the gate."""

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await gates[name].await_()

    _left_behind.append(numbers())
    await anext(_left_behind[-1])


@job
async def aleave_blocking_background(name: str) -> None:
    """Leave an asyncio task running that blocks the event loop until the gate opens."""

    async def block() -> None:
        await asyncio.sleep(0.01)
        pass_gate(name)

    _left_behind.append(asyncio.create_task(block()))


lost_networks: list[socket.socket] = []
"""The other ends of the sockets that `lose_network` has made: the test closes them."""


@job
def lose_network() -> None:
    """Suppress a database error, and then replace the socket of the connection by one on which nothing ever arrives."""
    with connection.cursor() as cursor, contextlib.suppress(DatabaseError):
        cursor.execute("SELECT * FROM there_is_no_such_table")
    silent, open_end = socket.socketpair()
    os.dup2(silent.fileno(), connection.connection.fileno())
    silent.close()
    lost_networks.append(open_end)


@job(takes_context=True)
def exit_hard(context: JobContext, code: int = 1, on_attempt: int = 1) -> None:
    """End the worker process without any clean-up, in the attempt `on_attempt`; 0 stands for every attempt."""
    if on_attempt in (0, context.attempt):
        os._exit(code)


@job
def count_frozen() -> int:
    """Return the number of objects that the garbage collector ignores."""
    return gc.get_freeze_count()


_kept_memory: list[bytes] = []


@job
def keep_memory(mb: int) -> None:
    """Allocate this number of megabytes, and never free them."""
    _kept_memory.append(b"x" * (mb * 1024 * 1024))


BASE_EXCEPTIONS: dict[str, BaseException] = {
    "SystemExit": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "GeneratorExit": GeneratorExit(),
    "CancelledError": asyncio.CancelledError(),
}


@job(max_attempts=1)
def raise_base_exception(kind: str) -> None:
    raise BASE_EXCEPTIONS[kind]


@job(max_attempts=1)
async def araise_base_exception(kind: str) -> None:
    raise BASE_EXCEPTIONS[kind]


def _leave_atomic() -> None:
    transaction.atomic().__enter__()
    Ledger.objects.create(entry="never committed")


def _leave_savepoints() -> None:
    _leave_atomic()
    _leave_atomic()


def _leave_broken_transaction() -> None:
    _leave_atomic()
    transaction.set_rollback(True)


def _leave_manual_transaction() -> None:
    transaction.set_autocommit(False)
    Ledger.objects.create(entry="never committed")


def _type_begin() -> None:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")


def _leave_hook() -> None:
    """Leave an `on_commit` hook that was never called, as an interruption between a commit and its hooks does."""
    connection.ensure_connection()
    hook: Any = (set(), lambda: hooked.append("left behind"), False)
    connection.run_on_commit.append(hook)


def _close() -> None:
    connection.close()


def _close_inside_atomic() -> None:
    _leave_atomic()
    connection.close()


def _lose_backend() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def _lose_backend_silently() -> None:
    try:
        _lose_backend()
    except Exception:  # the task hides the error
        return


# Ways in which a task leaves the connection of its thread unusable, or in another state.
MISTREATMENTS: dict[str, Callable[[], None]] = {
    function.__name__.strip("_"): function
    for function in (
        _leave_atomic,
        _leave_savepoints,
        _leave_broken_transaction,
        _leave_manual_transaction,
        _leave_hook,
        _type_begin,
        _close,
        _close_inside_atomic,
        _lose_backend,
        _lose_backend_silently,
    )
}


@job(max_attempts=1)
def mistreat_connection(how: str) -> None:
    MISTREATMENTS[how]()


@job(max_attempts=1)
async def amistreat_connection(how: str) -> None:
    await sync_to_async(MISTREATMENTS[how])()


@job(max_attempts=1)
def write(entry: str) -> None:
    """Write a row. The task has one attempt, so it completes only if the thread's connection works."""
    Ledger.objects.create(entry=entry)


@job(max_attempts=1)
async def awrite(entry: str) -> None:
    await Ledger.objects.acreate(entry=entry)


class Unprintable(Exception):
    """An exception whose `str` and `repr` raise an error."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


@job(max_attempts=1)
def raise_unprintable() -> None:
    raise Unprintable


class ExitsInStr(Exception):
    """An exception whose `str` raises `SystemExit`."""

    def __str__(self) -> str:
        raise SystemExit(3)


@job(max_attempts=1)
def raise_exit_in_str() -> None:
    raise ExitsInStr


@job(max_attempts=1)
def raise_long(length: int) -> None:
    raise ValueError("x" * length)


@job(max_attempts=1)
def return_long(length: int) -> str:
    return "x" * length


def _raise(*_: Any) -> float:
    raise ZeroDivisionError("in the backoff")


def _exit(*_: Any) -> float:
    raise SystemExit(3)


def _hang(*_: Any) -> float:
    pass_gate("backoff")
    return 0


def _fail() -> None:
    raise ValueError("as asked")


BACKOFFS: dict[str, Any] = {
    "inf": lambda attempt: float("inf"),
    "huge": lambda attempt: 1e300,
    "nan": lambda attempt: float("nan"),
    "negative": lambda attempt: -5.0,
    "none": lambda attempt: None,
    "text": lambda attempt: "soon",
    "raises": _raise,
    "exits": _exit,
}
for _name, _backoff in BACKOFFS.items():
    job(name=f"backoff.{_name}", backoff=_backoff, max_attempts=2)(_fail)


@job(max_attempts=2, backoff=_hang)
def pass_gate_with_a_backoff_that_hangs(name: str) -> None:
    pass_gate(name)


@job(max_attempts=2, backoff=constant(0, jitter=0), takes_context=True)
def fail_once(context: JobContext) -> None:
    if context.attempt == 1:
        raise ValueError("the first time")


@job(atomic=True)
def atomic_write(entry: str, *, fails: bool = False) -> str:
    Ledger.objects.create(entry=entry)
    if fails:
        raise ValueError("as asked")
    return entry


@job(atomic=True)
def atomic_gate(name: str) -> None:
    Ledger.objects.create(entry=name)
    with gates[name]:
        gates[name].wait()


def _break_statement() -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1/0")
    except DatabaseError:
        return


# Ways in which a task makes its own transaction impossible to commit.
BREAKS: dict[str, Callable[[], None]] = {
    "set_rollback": lambda: transaction.set_rollback(True),
    "statement": _break_statement,
    "close": _close,
}


@job(atomic=True)
def atomic_breaks(how: str) -> None:
    Ledger.objects.create(entry=how)
    BREAKS[how]()


@job(atomic=True)
def atomic_returns(kind: str) -> Any:
    Ledger.objects.create(entry=kind)
    return {"set": {1, 2}}[kind]


@job(atomic=True)
def atomic_leaves_block() -> None:
    _leave_atomic()


@job(atomic=True)
def atomic_hook_raises() -> None:
    def hook() -> None:
        raise ValueError("in the hook")

    transaction.on_commit(hook)


hooked: list[str] = []
"""The entries with which `on_commit` hooks were called in this process."""


@job
def write_and_hook(entry: str) -> None:
    with transaction.atomic():
        Ledger.objects.create(entry=entry)
        transaction.on_commit(lambda: hooked.append(entry))


@job(atomic=True)
def atomic_write_and_hook(entry: str) -> None:
    Ledger.objects.create(entry=entry)
    transaction.on_commit(lambda: hooked.append(entry))


@job(takes_context=True)
def write_complete_and_hook(context: JobContext, entry: str) -> None:
    with transaction.atomic():
        Ledger.objects.create(entry=entry)
        transaction.on_commit(lambda: hooked.append(entry))
        context.complete()


@job(atomic=True, timeout=0.1, max_attempts=1)
def atomic_gets_over_its_timeout(name: str) -> None:
    Ledger.objects.create(entry="too late")
    with contextlib.suppress(BaseException):
        pass_gate(name)


@job(atomic=True, timeout=1.5, max_attempts=1)
def atomic_hook_takes_too_long() -> None:
    def hook() -> None:
        while True:
            time.sleep(0.01)

    transaction.on_commit(hook)


@job(atomic=True, timeout=1.5, max_attempts=1)
def atomic_hook_passes_gate(name: str) -> None:
    transaction.on_commit(lambda: pass_gate(name))


@job(atomic=True, timeout=0.1, max_attempts=1)
def atomic_timeout() -> None:
    Ledger.objects.create(entry="too late")
    while True:
        time.sleep(0.01)


@job(atomic=True, takes_context=True)
def atomic_completes_itself(context: JobContext) -> None:
    context.complete()


@job(atomic=True, takes_context=True)
def atomic_dies_once(context: JobContext) -> None:
    Ledger.objects.create(entry="once")
    if context.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@job(takes_context=True)
def completes_itself(context: JobContext, entry: str, then: str = "") -> str:
    """Write a row and complete the job in one transaction. `then` says what else happens before or after that."""
    if then == "without a block":
        context.complete("by hand")
    if then == "lose before":
        store.release([(context.job_id, context.lease)])
    with transaction.atomic():
        Ledger.objects.create(entry=entry)
        context.complete("by hand")
        transaction.set_rollback(then == "roll back")
    if then == "raise":
        raise ValueError("afterwards")
    return "returned"


@job(takes_context=True)
async def acompletes_itself(context: JobContext) -> None:
    def work() -> None:
        with transaction.atomic():
            context.complete("from a coroutine")

    await sync_to_async(work)()


@job(takes_context=True, max_attempts=1)
def cancellable(context: JobContext, name: str) -> None:
    """Run until an interruption, and then write `context.cancelled` into the ledger."""
    with gates[name]:
        try:
            while True:
                time.sleep(0.005)
        finally:
            Ledger.objects.create(entry=f"cancelled: {context.cancelled}")


@job(takes_context=True, max_attempts=1)
async def acancellable(context: JobContext, name: str) -> None:
    with gates[name]:
        try:
            await asyncio.sleep(3600)
        finally:
            await Ledger.objects.acreate(entry=f"cancelled: {context.cancelled}")


@job(takes_context=True)
def completes_itself_and_stays(context: JobContext, name: str) -> None:
    with transaction.atomic():
        context.complete()
    with gates[name]:
        gates[name].wait()
    Ledger.objects.create(entry="not interrupted")


@job(timeout=0.1, max_attempts=1)
def write_at_the_end_of_its_time(entry: str) -> None:
    try:
        Ledger.objects.count()
        time.sleep(0.1)
    except JobTimeout:
        Ledger.objects.create(entry=entry)
        raise


@job(max_attempts=1)
def show(name: str) -> str:
    """Return a PostgreSQL setting of the session of this thread."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting(%s)", [name])
        return str(cursor.fetchone()[0])


def _set_search_path() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET search_path = nowhere, public")


def _stay_in_statement() -> None:
    with connection.cursor() as cursor:
        for _ in range(100):
            cursor.execute("SELECT pg_sleep(0.05)")


def _forget_opening() -> None:
    """Make the worker forget that it has opened the connection."""
    _set_search_path()
    thread_connections = worker_connections.this_thread.connections
    assert thread_connections is not None
    thread_connections.opened.clear()


SESSION_CHANGES: dict[str, Callable[[], None]] = {
    "search_path": _set_search_path,
    "set_autocommit": lambda: transaction.set_autocommit(False),
    "statement": _stay_in_statement,
    "unnoted": _forget_opening,
}


@job(max_attempts=1)
def session_changed(how: str, *, then: str = "stay") -> None:
    """Change the database session, and then continue to run (`stay`), raise an error (`raise`), or return."""
    SESSION_CHANGES[how]()
    if then == "raise":
        raise ValueError("as asked")
    while then == "stay":
        time.sleep(0.01)


class _ThreadLocal(threading.local):
    value: str | None = None


thread_local = _ThreadLocal()


@job
def note_in_thread(value: str) -> None:
    thread_local.value = value


@job
def noted_in_thread() -> str | None:
    """Return the value that `note_in_thread` has stored in the same thread."""
    return thread_local.value


@job
def write_and_pass_gate(name: str) -> None:
    Ledger.objects.create(entry=name)
    pass_gate(name)


@job
def is_health_checked() -> list[bool]:
    """Return whether the health check of the connection was done, before and after the first statement."""
    default_connection: Any = connections["default"]
    done_before = default_connection.health_check_done
    Ledger.objects.count()
    return [done_before, default_connection.health_check_done]


@job
def backend_pid() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def pass_on(execute: Any, *args: Any) -> Any:
    """An execute wrapper that does nothing."""
    return execute(*args)


@job
def leave_execute_wrapper() -> None:
    connection.execute_wrappers.append(lambda execute, *args: execute(*args))


@job
def execute_wrappers() -> list[str]:
    Ledger.objects.count()
    return [wrapper.__name__ for wrapper in connection.execute_wrappers]


@job
def leave_pipeline() -> None:
    connection.ensure_connection()
    connection.connection.pgconn.enter_pipeline_mode()


@job
def break_close(later: bool) -> None:
    """Leave a connection whose `close` raises an error.

    later: whether the worker closes the connection before the next job, and not after this job.
    """

    def close() -> None:
        driver_connection.close()  # close the driver's connection, although Django's `close` raises
        raise ZeroDivisionError("in the driver")

    connection.ensure_connection()
    driver_connection = connection.connection
    vars(connections["default"])["close"] = close
    if later:
        connection.connection.pgconn.finish()
    else:
        transaction.set_autocommit(False)


@job(takes_context=True, timeout=0.2, max_attempts=1)
def completes_in_a_savepoint_and_stays(context: JobContext) -> None:
    with transaction.atomic():
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            context.complete()
            raise ZeroDivisionError
        while True:
            time.sleep(0.01)


@job(max_attempts=1)
async def acall_in_a_thread(name: str) -> None:
    await asyncio.to_thread(pass_gate, name)


@job(max_attempts=1)
async def ashut_down_calls(how: str) -> None:
    loop = asyncio.get_running_loop()
    if how == "the loop":
        await loop.shutdown_default_executor()
    else:
        vars(loop)["_default_executor"].shutdown()
