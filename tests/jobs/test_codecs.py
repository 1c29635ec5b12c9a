"""`codec_of`: what each annotation accepts, what it stores, and what it refuses."""

import dataclasses
import datetime
import json
import math
from decimal import Decimal
from typing import Any, Literal, NamedTuple, Optional, Union
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from django.contrib.auth.models import Group, User
from hypothesis import given
from hypothesis import strategies as some

from django_skipqueue.exceptions import InvalidArguments, UndecodableArguments
from django_skipqueue.jobs.annotations import annotations_of, codec_of
from django_skipqueue.jobs.codecs import Codec
from django_skipqueue.values.codec import encode

from ..app.typed_jobs import Access, Cents, Level, Line, Order, Place, Plan, Size

UTC = datetime.UTC
MOMENT = datetime.datetime(2026, 3, 29, 1, 30, tzinfo=UTC)


def require_codec(annotation: Any) -> Codec:
    codec = codec_of(annotation)
    assert codec is not None
    return codec


def round_trip(annotation: Any, value: Any) -> Any:
    """The value after it was encoded, written as text, read and decoded."""
    return require_codec(annotation).decode("x", json.loads(encode("x", require_codec(annotation).encode("x", value))))


# Annotation, value, and the JSON that is stored.
VALUES: list[tuple[Any, Any, Any]] = [
    (datetime.datetime, MOMENT, "2026-03-29T01:30:00+00:00"),
    (datetime.datetime, datetime.datetime(2026, 1, 2), "2026-01-02T00:00:00"),  # noqa: DTZ001
    (datetime.date, datetime.date(2026, 1, 2), "2026-01-02"),
    (datetime.time, datetime.time(9, 30, 0, 5), "09:30:00.000005"),
    (datetime.timedelta, datetime.timedelta(days=1, hours=2), "P1DT02H00M00S"),
    (datetime.timedelta, -datetime.timedelta(microseconds=1), "-P0DT00H00M00.000001S"),
    (Decimal, Decimal("9.90"), "9.90"),
    (Cents, Decimal(1), "1"),
    (UUID, UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    (Plan, Plan.PAID, "PAID"),
    (Size, Size.LARGE, "l"),
    (Level, Level.HIGH, 2),
    (Access, Access.READ | Access.WRITE, 3),
    (Line, Line("a", Decimal("1.5"), Size.LARGE), {"sku": "a", "price": "1.5", "size": "l"}),
    (Optional[Decimal], None, None),  # noqa: UP045
    (Union[Decimal, None], Decimal("0.1"), "0.1"),  # noqa: UP007
    (Decimal | int, 5, 5),
    (Decimal | int, Decimal(5), "5"),
    (list[datetime.date | None], [None, datetime.date(2026, 1, 2)], [None, "2026-01-02"]),
    (dict[str, list[UUID]], {"a": [UUID(int=1)]}, {"a": ["00000000-0000-0000-0000-000000000001"]}),
    (tuple[int, Decimal], (1, Decimal(2)), [1, "2"]),
    (tuple[Decimal, ...], (Decimal(2),), ["2"]),
    (Place, Place(datetime.date(2026, 1, 2), 3), ["2026-01-02", 3]),
    (list[Place | None], [None, Place(datetime.date(2026, 1, 2))], [None, ["2026-01-02", 0]]),
    (tuple, (1, "a"), [1, "a"]),
    (tuple[()], (), []),
    (
        Order,
        Order(MOMENT, [Line("a", Decimal(1))], Plan.PAID, Order(MOMENT, [])),
        {
            "placed_at": "2026-03-29T01:30:00+00:00",
            "lines": [{"sku": "a", "price": "1", "size": "s"}],
            "plan": "PAID",
            "parent": {
                "placed_at": "2026-03-29T01:30:00+00:00", "lines": [], "plan": "FREE", "parent": None, "notes": None,
            },
            "notes": None,
        },
    ),
]  # fmt: skip


def test_a_value_is_stored_as_json_and_read_back(subtests: pytest.Subtests) -> None:
    for annotation, value, stored in VALUES:
        with subtests.test(annotation=annotation, value=value):
            assert require_codec(annotation).encode("x", value) == stored
            decoded = round_trip(annotation, value)
            assert (decoded, type(decoded)) == (value, type(value))


def test_the_stored_json_of_a_value_is_accepted_as_an_argument(subtests: pytest.Subtests) -> None:
    """The command line and the form of the admin pass JSON."""
    for annotation, _, stored in VALUES:
        with subtests.test(annotation=annotation, stored=stored):
            assert require_codec(annotation).encode("x", stored) == stored


@given(some.datetimes(timezones=some.none() | some.timezones()))
def test_every_datetime_is_read_back_as_the_same_moment(value: datetime.datetime) -> None:
    decoded = round_trip(datetime.datetime, value)
    assert decoded.isoformat() == value.isoformat()
    assert decoded.utcoffset() == value.utcoffset()


@given(some.timedeltas())
def test_every_timedelta_is_read_back(value: datetime.timedelta) -> None:
    assert round_trip(datetime.timedelta, value) == value


@given(some.decimals())
def test_every_decimal_is_read_back(value: Decimal) -> None:
    assert str(round_trip(Decimal, value)) == str(value)


@given(some.times())
def test_every_time_is_read_back(value: datetime.time) -> None:
    assert round_trip(datetime.time, value) == value


@given(some.dates())
def test_every_date_is_read_back(value: datetime.date) -> None:
    assert round_trip(datetime.date, value) == value


# Annotations without a codec: their values are stored as plain JSON.
ANNOTATIONS_WITHOUT_CODEC: list[Any] = [
    int, str, bool, float, None, Any, object, list, dict, list[int], dict[str, Any], int | None, str | int,
    Literal["a", 1], set[int], bytes, type, "not resolved", dict[int, datetime.date], datetime.datetime | str,
    UUID | str, Line | dict, User | Line, Plan | Size, 42, ...,
]  # fmt: skip


def test_annotations_of_plain_json_values_have_no_codec() -> None:
    assert [annotation for annotation in ANNOTATIONS_WITHOUT_CODEC if codec_of(annotation) is not None] == []


class Naive(datetime.datetime):
    """A subclass that writes more than a datetime reads, as the subclass of pandas does."""

    def isoformat(self, *_: Any) -> str:
        return super().isoformat() + ".000000123"


@dataclasses.dataclass(frozen=True)
class LongLine(Line):
    extra: int = 0


class Other(NamedTuple):
    day: datetime.date
    row: int


# Annotation, a value that it refuses, and a part of the error.
REFUSED: list[tuple[Any, Any, str]] = [
    (datetime.datetime, "tomorrow", "x is 'tomorrow', but its annotation is datetime. Pass a datetime, or its isof"),
    (datetime.datetime, 5, "x is 5, but its annotation is datetime"),
    (datetime.datetime, datetime.date(2026, 1, 1), "is datetime. Pass a datetime"),
    (datetime.datetime, Naive(2026, 1, 1), "It would arrive as 2026-01-01T00:00:00."),
    (datetime.date, MOMENT, "of a datetime its .date()"),
    (datetime.time, datetime.time(1, tzinfo=ZoneInfo("Europe/Berlin")), "depends on the date"),
    (datetime.timedelta, "soon", "Pass a timedelta, a number of seconds"),
    (datetime.timedelta, 1e300, "No timedelta is so long"),
    (datetime.timedelta, float("nan"), "No timedelta is so long"),
    (datetime.timedelta, True, "Pass a timedelta"),
    (Decimal, 0.1, "Pass a Decimal, an int, or a str such as '9.99'"),
    (Decimal, "a lot", "Pass a Decimal"),
    (UUID, "no", "Pass a UUID"),
    (Plan, "GOLD", "Pass one of 'FREE', 'PAID'"),
    (Plan, [], "Pass one of 'FREE', 'PAID'"),
    (Level, True, "Pass one of 1, 2"),
    (Size, Plan.FREE, "Pass one of 's', 'l'"),
    (
        Place,
        Other(datetime.date(2026, 1, 2), 1),
        "is the Other Other(day=datetime.date(2026, 1, 2), row=1), but its annotation is Place",
    ),
    (Place, [1, 2, 3], "but its annotation is Place"),
    (Line, LongLine("a", Decimal(1)), "Pass a Line"),
    (Line, {"sku": "a"}, "It lacks the field 'price'"),
    (Line, {"sku": "a", "price": "1", "vat": 7}, "It has no field 'vat'"),
    (Line, {"sku": "a", "price": "much"}, "x.price is 'much', but its annotation is Decimal"),
    (list[UUID], ["no"], "x[0] is 'no', but its annotation is UUID"),
    (list[UUID], "no", "Pass a list"),
    (dict[str, UUID], {"a": "no"}, "x['a'] is 'no'"),
    (dict[str, UUID], [], "Pass a dict"),
    (tuple[int, UUID], [1], "Pass a tuple with 2 values"),
    (UUID | None, 5, "x is 5, but its annotation is UUID | None."),
    (User, 42, "x is 42, but its annotation is User. Pass a saved User."),
    (User, Group(name="a"), "Pass a saved User"),
    (User, User(username="a"), "It is not saved: save it first"),
    (User, User(pk=5), "It is not saved"),
    (User, {"pk": 5}, "A reference to a row has the keys database, model, pk"),
    (User, {"model": "auth.group", "pk": 5, "database": "default"}, "Auth.group is another model"),
    (User, {"model": "auth.nobody", "pk": 5, "database": "default"}, "There is no model 'auth.nobody'"),
    (User, {"model": ["auth"], "pk": 5, "database": "default"}, "There is no model"),
    (User, {"model": "auth.user", "pk": 5, "database": "nowhere"}, "There is no database 'nowhere'"),
    (User, {"model": "auth.user", "pk": [5], "database": "default"}, "[5] is no primary key"),
]


def test_a_value_that_does_not_fit_is_refused_with_advice(subtests: pytest.Subtests) -> None:
    for annotation, value, message in REFUSED:
        with subtests.test(annotation=annotation, value=value):
            with pytest.raises(InvalidArguments) as error_info:
                require_codec(annotation).encode("x", value)
            assert message in str(error_info.value)


# Annotation, stored JSON that it cannot read, and a part of the error.
UNREADABLE: list[tuple[Any, Any, str]] = [
    (datetime.datetime, 5, "x was stored as 5, and cannot be read as datetime."),
    (datetime.datetime, "tomorrow", "x was stored as 'tomorrow', and cannot be read as datetime: Invalid isoformat"),
    (Decimal, "a lot", "cannot be read as Decimal"),
    (datetime.timedelta, "soon", "cannot be read as timedelta"),
    (datetime.timedelta, 1e300, "cannot be read as timedelta"),
    (Plan, "GOLD", "it has 'FREE', 'PAID'"),
    (Line, {"sku": "a", "price": "1", "vat": 7}, "cannot be read as Line: it has no field 'vat'"),
    (Line, {"sku": "a"}, "it lacks the field 'price'"),
    (Line, 5, "cannot be read as Line"),
    (list[UUID], 5, "cannot be read as list[UUID]"),
    (list[UUID], ["no"], "x[0] was stored as 'no'"),
    (dict[str, UUID], 5, "cannot be read as dict[str, UUID]"),
    (tuple[int, UUID], [1], "cannot be read as tuple[Any, UUID]"),
    (UUID | None, [], "cannot be read as UUID | None"),
    (User, 42, "cannot be read as User: a reference to a row has the keys"),
    (User, {"model": "auth.user", "pk": "x", "database": "default"}, "value must be an integer"),
]


def test_stored_json_that_the_annotation_cannot_read_is_a_clear_error(subtests: pytest.Subtests) -> None:
    for annotation, value, message in UNREADABLE:
        with subtests.test(annotation=annotation, value=value):
            with pytest.raises(UndecodableArguments) as error_info:
                require_codec(annotation).decode("x", value)
            assert message in str(error_info.value)


# Annotation, JSON that was stored before the task had the annotation, and the value that is read.
STORED_BEFORE_THE_ANNOTATION: list[tuple[Any, Any, Any]] = [
    (datetime.timedelta, 90, datetime.timedelta(seconds=90)),
    (datetime.timedelta | None, 0.5, datetime.timedelta(seconds=0.5)),
    (Decimal, 5, Decimal(5)),
    (Decimal, 0.1, Decimal("0.1")),
    (Decimal | None, 5, Decimal(5)),
    (Line, {"sku": "a", "price": "1"}, Line("a", Decimal(1))),
]


def test_json_stored_before_the_annotation_is_read_as_far_as_possible(subtests: pytest.Subtests) -> None:
    for annotation, stored, value in STORED_BEFORE_THE_ANNOTATION:
        with subtests.test(annotation=annotation, stored=stored):
            assert require_codec(annotation).decode("x", stored) == value


def test_a_dataclass_that_refuses_its_values_is_a_clear_error() -> None:
    @dataclasses.dataclass
    class Positive:
        """Refuses a negative number."""

        number: int

        def __post_init__(self) -> None:
            if self.number < 0:
                raise ValueError("it is negative")

    with pytest.raises(UndecodableArguments, match=r"cannot be read as .*Positive: it is negative"):
        require_codec(Positive).decode("x", {"number": -1})


@dataclasses.dataclass
class Doubled:
    """Doubles its field each time it is made."""

    number: int

    def __post_init__(self) -> None:
        self.number *= 2


@dataclasses.dataclass
class Numbered:
    """Has a field that is no argument, so its value is lost."""

    name: str
    number: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass
class Summed:
    """Needs an argument that no field keeps."""

    start: dataclasses.InitVar[int]
    total: int = 0

    def __post_init__(self, start: int) -> None:
        self.total += start


@dataclasses.dataclass
class Growing:
    """Appends to its list each time it is made."""

    items: list[str]

    def __post_init__(self) -> None:
        self.items.append("end")


@dataclasses.dataclass
class Once:
    """Cannot be made from its own fields."""

    name: str

    def __post_init__(self) -> None:
        if self.name.startswith("#"):
            raise KeyError("it has its number already")
        self.name = f"#{self.name}"


def make_numbered() -> Numbered:
    numbered = Numbered("a")
    numbered.number = 7
    return numbered


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Doubled(1), "made again from its fields, its number is 4"),
        (make_numbered(), "made again from its fields, its number is 0"),
        (Summed(1), "it cannot be made again from its fields (.*missing 1 required positional argument: 'start')"),
        (Growing(["a"]), r"its items is the list \['a', 'end', 'end'\]"),
        (Once("a"), "it cannot be made again from its fields ('it has its number already')"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_dataclass_that_would_arrive_with_other_values_is_refused(value: Any, reason: str) -> None:
    repr_before = repr(value)
    for annotation, argument in ((type(value), value), (list[type(value)], [value])):  # type: ignore[misc]
        with pytest.raises(InvalidArguments, match=reason.replace("(", r"\(").replace(")", r"\)")):
            require_codec(annotation).encode("x", argument)
    assert repr(value) == repr_before


@dataclasses.dataclass(eq=False)
class Basket:
    """Computes fields, to equal values each time it is made."""

    lines: tuple[Line, ...]
    rates: dict[str, list[float]]
    inner: "Basket | None" = None
    total: Decimal = dataclasses.field(init=False)
    cache: object = dataclasses.field(init=False, compare=False, default_factory=object)

    def __post_init__(self) -> None:
        self.rates = {name: list(rates) for name, rates in self.rates.items()}
        self.inner = self.inner and dataclasses.replace(self.inner)
        self.total = sum((line.price for line in self.lines), Decimal(0))


def test_a_dataclass_whose_computed_fields_are_equal_again_is_accepted() -> None:
    inner = Basket((), {})
    basket = Basket((Line("a", Decimal("1.5")), Line("b", Decimal(2))), {"eu": [1.5, math.nan]}, inner)
    arrived = round_trip(Basket, dataclasses.replace(basket, rates={"eu": [1.5]}))
    assert (arrived.lines, arrived.total, arrived.inner.total) == (basket.lines, Decimal("3.5"), 0)
    assert require_codec(Basket).encode("x", basket)["rates"] == {"eu": [1.5, basket.rates["eu"][1]]}


class Unequal:
    """Cannot be compared, like an array."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


@dataclasses.dataclass
class Measured:
    """Has a value that cannot be compared."""

    values: Any

    def __post_init__(self) -> None:
        self.values = Unequal()


def test_a_comparison_that_raises_counts_as_a_difference() -> None:
    with pytest.raises(InvalidArguments, match="its values is the Unequal"):
        require_codec(Measured).encode("x", Measured({}))


def test_annotations_beside_one_that_cannot_be_resolved_are_used() -> None:
    def task(a: "nowhere.Thing", b: "Decimal") -> None:  # type: ignore[name-defined]  # noqa: F821
        """A task whose annotations are strings."""

    assert annotations_of(task) == {"b": Decimal, "return": type(None)}


class WithoutRepr:
    def __repr__(self) -> str:
        raise ValueError("no")


def test_a_value_whose_repr_raises_is_refused() -> None:
    with pytest.raises(InvalidArguments, match="x is of type WithoutRepr"):
        require_codec(Decimal).encode("x", WithoutRepr())
