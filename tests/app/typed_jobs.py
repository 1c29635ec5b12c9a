"""Tasks with annotated parameters, and the types of their annotations."""

import dataclasses
import datetime
import enum
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NewType
from uuid import UUID

from django.contrib.auth.models import Group, User
from django.db import models, transaction

from django_skipqueue import JobContext, job

from .models import Ledger

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]


class Plan(enum.Enum):
    FREE = enum.auto()
    PAID = enum.auto()


class Size(models.TextChoices):
    SMALL = "s", "small"
    LARGE = "l", "large"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Access(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass(frozen=True)
class Line:
    sku: str
    price: Decimal
    size: Size = Size.SMALL


@dataclasses.dataclass
class Order:
    placed_at: datetime.datetime
    lines: list[Line]
    plan: Plan = Plan.FREE
    parent: "Order | None" = None
    notes: Any = None
    number: int = dataclasses.field(init=False, default=0)


class Place(NamedTuple):
    day: datetime.date
    row: int = 0


Cents = NewType("Cents", Decimal)

seen: list[Any] = []
"""The arguments with which the tasks were called."""


@job(max_attempts=1)
def scalars(
    at: datetime.datetime, day: datetime.date, time: datetime.time, span: datetime.timedelta, price: Decimal, key: UUID
) -> None:
    seen.append((at, day, time, span, price, key))


@job(max_attempts=1)
def nested(
    order: Order | None, /, *days: datetime.date, prices: Mapping[str, Sequence[Decimal]] | None = None,
    plans: tuple[Plan, Level, Access] | None = None, cents: Annotated[Cents, "in euros"] | None = None, **sizes: Size,
) -> None:  # fmt: skip
    seen.append((order, days, prices, plans, cents, sizes))


@job(max_attempts=3)
def with_user(user: User, others: list[User | None] | None = None, either: User | Group | None = None) -> None:
    seen.append((user, others, either))


@job(max_attempts=3)
async def awith_user(user: User) -> None:
    seen.append(user)


@job(max_attempts=3, discard_on=(Exception,))
def discards(user: User) -> None:
    seen.append(user)


@job(max_attempts=3, atomic=True)
def locked_atomically(user: User) -> None:
    assert transaction.get_connection().in_atomic_block
    Ledger.objects.create(entry=user.username)


@job(max_attempts=1)
def unknown(value: "Unknown", at: "datetime.datetime") -> None:
    """A task with an annotation that names no class."""
    seen.append((value, at))


@job(max_attempts=1)
def ambiguous(value: datetime.datetime | str) -> None:
    """A task whose argument, a string in JSON, could be either type."""
    seen.append(value)


@job(max_attempts=1)
def plain(number: int, text: str = "", *rest: float, flag: bool = False, **others: dict[str, int]) -> None:
    """A task whose annotations are JSON types only."""
    seen.append((number, text, rest, flag, others))


@job(max_attempts=1)
def labelled(
    size: str, level: int | None = None, *rest: str, plan: Any = None, day: datetime.date | None = None
) -> None:
    seen.append((size, level, rest, plan, day))


@job(max_attempts=1)
def place(lines: list[Line]) -> Order:
    return Order(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), lines)


@job(takes_context=True)
def see_results(context: JobContext) -> None:
    seen.append(context.results)


@job(max_attempts=1, atomic=True)
def price(of: Any) -> Decimal:
    """Return the argument, even if it is not a Decimal, as the annotation promises."""
    return of  # type: ignore[no-any-return]


@job(max_attempts=1)
def give_member():  # type: ignore[no-untyped-def]
    return Size.SMALL, Place("2026-03-29", 1)  # type: ignore[arg-type]


@job(max_attempts=1, takes_context=True)
async def anow(context: JobContext) -> datetime.datetime:
    return datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@job(max_attempts=1, takes_context=True)
def complete_with(context: JobContext, text: str) -> Decimal | None:
    with transaction.atomic():
        context.complete(Decimal(text))
    return None


@job(max_attempts=1, unique_key=lambda at: f"day-{at.date()}")
def keyed(at: datetime.datetime) -> None:
    seen.append(at)
