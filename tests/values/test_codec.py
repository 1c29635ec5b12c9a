"""`encode` refuses a value that `jsonb` would refuse or change. `clean` makes any text storable."""

import enum
import io
import math
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils.datastructures import MultiValueDict
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy

from django_skipqueue.exceptions import FlattenedValue, InvalidArguments
from django_skipqueue.values.codec import clean, decode, encode

from ..harness.table import Case


class Colour(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    SMALL = 1


class Light(enum.Enum):
    RED = "red"


Point = namedtuple("Point", "x y")


class Name(str):
    """A subclass of `str`."""

    __slots__ = ()


def nested(depth: int, container_type: type = list) -> Any:
    """The number 1 within this many lists, or dicts."""
    value: Any = 1
    for _ in range(depth):
        value = [value] if container_type is list else {"down": value}
    return value


STORABLE = {
    "none": None,
    "true": True,
    "false": False,
    "zero": 0,
    "negative": -1,
    "beyond 64 bits": 2**80,
    "4,300 digits": 10**4299,
    "float": 0.1 + 0.2,
    "tiny": 5e-324,
    "negative zero": -0.0,
    "smallest normal": 2.2250738585072014e-308,
    "float beyond 16 digits": 1e23,
    "largest float": 1.7976931348623157e308,
    "large floats deep inside": {"a": [1, -1e16, {'b"': [9.007199254740993e15, 1e22, True, None, "é", 2**60]}]},
    "float that is whole": 3.0,
    "empty text": "",
    "quotes": "\"'\\/%s %(x)s {}",
    "control characters": "\x01\x1f\x7f\t\r\n",
    "accents": "Łódź, naïve, 東京",
    "beyond the BMP": "🐘",
    "line separators": "\u2028\u2029\ufeff",
    "not a NUL": "\\u0000",
    "empty list": [],
    "empty dict": {},
    "mixed": [1, "a", None, {"b": [True, 1.5]}],
    "empty key": {"": 1},
    "accented key": {"Ł": {"é": []}},
    "long text": "x" * 1_000_000,
    "nested 100 deep": nested(100),
}


@pytest.mark.django_db
def test_values_accepted_by_encode_come_back_equal_from_jsonb(case: Case) -> None:
    for name, value in STORABLE.items():
        with case(name):
            with connection.cursor() as cursor:
                cursor.execute("SELECT %s::jsonb::text", [encode("value", value)])
                (text,) = cursor.fetchone()
            assert decode(text) == value


def test_enums_named_tuples_and_other_subclasses_are_stored_as_plain_json(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, Any]] = [
        ((1, (2, 3)), [1, [2, 3]]),
        (Point(1, 2), [1, 2]),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (Colour.RED, "red"),
        (Size.SMALL, 1),
        (Name("Ada"), "Ada"),
    ]
    for value, stored in cases:
        with subtests.test(value=value, stored=stored):
            assert decode(encode("value", value)) == stored


MULTI_VALUE_DICT = MultiValueDict({"tag": ["a", "b"]})


def test_an_enum_or_named_tuple_is_refused_if_it_must_keep_its_type(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, str]] = [
        (
            Colour.RED,
            "value is Colour.RED, which would arrive as 'red'. Pass its .value, or annotate it with its type.",
        ),
        ({"a": [Size.SMALL]}, "value['a'][0] is Size.SMALL, which would arrive as 1. Pass its .value"),
        ({Colour.RED: 1}, "in value is Colour.RED"),
        (
            Point(1, 2),
            "value is a Point, which would arrive as a list. Pass list(value), or annotate it with its type.",
        ),
        ([1e17, (Point(1, 2),)], "value[1][0] is a Point"),
        (
            MULTI_VALUE_DICT,
            "value is a MultiValueDict, which would lose all but the last value of each key. Pass value.dict()",
        ),
    ]
    for value, message in cases:
        with subtests.test(value=value, message=message):
            with pytest.raises(FlattenedValue) as error_info:
                encode("value", value, True)
            assert message in str(error_info.value)


def test_an_argument_that_arrives_as_an_equal_value_is_accepted(subtests: pytest.Subtests) -> None:
    cases: list[Any] = [mark_safe("<b>"), Name("Ada"), OrderedDict(a=1), (1, (2,)), True, 1e17, None]
    for value in cases:
        with subtests.test(value=value):
            assert encode("value", value, True) == encode("value", value)


def list_that_contains_itself() -> list[Any]:
    value: list[Any] = []
    value.append({"again": [value, value]})
    return value


# Name: value, part of the error message.
REFUSED = {
    "set": ({1, 2}, "value is a set"),
    "bytes": (b"x", "value is a bytes"),
    "object": (object(), "value is an object"),
    "decimal": (Decimal("1.5"), "value is a Decimal"),
    "date": (date(2026, 1, 1), "value is a date"),
    "datetime": (datetime(2026, 1, 1, tzinfo=UTC), "value is a datetime"),
    "uuid": (UUID(int=1), "value is a UUID"),
    "complex": (1j, "value is a complex"),
    "generator": ((n for n in "ab"), "value is a generator"),
    "range": (range(3), "value is a range"),
    "frozenset deep inside": ({"a": [0, frozenset()]}, "value['a'][1] is a frozenset"),
    "nan": (math.nan, "value is nan"),
    "inf": (math.inf, "value is inf"),
    "minus inf": (-math.inf, "value is -inf"),
    "nan deep inside": ([1, {"b": (math.nan,)}], "value[1]['b'][0] is nan"),
    "nul": ("a\0b", "value contains a NUL"),
    "nul deep inside": ({"a": ["\0"]}, "value['a'][0] contains a NUL"),
    "nul in a key": ({"a\0": 1}, r"the key 'a\x00' in value contains a NUL"),
    "high surrogate": ("\ud800", "value contains half of a surrogate pair"),
    "low surrogate": ("x\udfff", "value contains half of a surrogate pair"),
    "surrogate in a key": ({"\ud800": 1}, r"the key '\ud800' in value contains half"),
    "surrogates that would make a pair": ("\ud83d\udc18", "value contains half of a surrogate pair"),
    "number as key": ({1: "a"}, "value has the key 1"),
    "none as key": ([{None: "a"}], "value[0] has the key None"),
    "bool as key": ({True: "a"}, "value has the key True"),
    "tuple as key": ({(1, 2): "a"}, "value has the key (1, 2)"),
    "too deep list": (nested(100_000), "value is nested too deeply"),
    "too deep dict": (nested(100_000, dict), "value is nested too deeply"),
    "contains itself": (list_that_contains_itself(), "value is nested too deeply, or contains itself"),
    "more digits than Python prints": (10**5000, "value cannot be stored as JSON"),
}


def test_a_value_that_is_not_json_is_refused_with_the_path_to_it(subtests: pytest.Subtests) -> None:
    for name, (value, message) in REFUSED.items():
        with subtests.test(name):
            with pytest.raises(InvalidArguments) as error_info:
                encode("value", value)
            assert message in str(error_info.value)
            assert str(error_info.value).endswith(".")
            assert len(str(error_info.value)) < 600, "the error names the path and does not repeat the value"


@dataclass
class Payment:
    total: int = 1


# Name: value, what the error advises to pass instead.
ADVICE_FOR_VALUE = {
    "date": (date(2026, 1, 1), "value.isoformat(), or annotate it with its type"),
    "datetime": (datetime(2026, 1, 1, tzinfo=UTC), "value.isoformat(), or annotate it with its type"),
    "timedelta": (timedelta(1), "value.total_seconds(), or annotate it with its type"),
    "uuid": (UUID(int=1), "str(value), or annotate it with its type"),
    "decimal": (Decimal("1.5"), "str(value), or annotate it with its type"),
    "path": (Path("a"), "str(value)"),
    "lazy text": (gettext_lazy("a"), "str(value)"),
    "set": ({1}, "list(value)"),
    "generator": ((n for n in "ab"), "list(value)"),
    "open file": (io.StringIO(), "its path, or what it contains"),
    "keys": ({}.keys(), "list(value)"),
    "bytes": (b"a", "base64.b64encode(value).decode(), or the key of what is stored elsewhere"),
    "enum": (Light.RED, "its value, or annotate it with its type"),
    "dataclass": (Payment(), "dataclasses.asdict(value), or annotate it with its type"),
    "model": (User(pk=1), "its primary key, or annotate it with its type"),
    "queryset": (User.objects.none(), "its primary keys: list(queryset.values_list('pk', flat=True))"),
    "object": (object(), "a str, int, float, bool, None, list or dict"),
    "class": (Payment, "a str, int, float, bool, None, list or dict"),
}


def test_the_error_for_a_refused_value_says_what_to_pass_instead(subtests: pytest.Subtests) -> None:
    for name, (value, advice) in ADVICE_FOR_VALUE.items():
        with subtests.test(name):
            with pytest.raises(InvalidArguments) as error_info:
                encode("value", [value])
            type_with_article = f"an {type(value).__name__}" if type(value) is object else f"a {type(value).__name__}"
            assert str(error_info.value) == f"value[0] is {type_with_article}, which is not JSON. Pass {advice}."


@pytest.mark.django_db
def test_postgresql_stores_a_cleaned_text_unchanged(case: Case) -> None:
    cases: list[str] = ["", "plain", "a\0b", "\0" * 50, "\ud800", "\udc00x\ud800", "Łódź 🐘", "\x01\x1b[31m", "\\u0000"]
    for text in cases:
        with case(text=text):
            cleaned = clean(text, 1000)
            with connection.cursor() as cursor:
                cursor.execute("SELECT %s::text, jsonb_build_object('text', %s::text) ->> 'text'", [cleaned, cleaned])
                assert cursor.fetchone() == (cleaned, cleaned)


def test_clean_does_not_change_a_storable_text() -> None:
    assert clean("Łódź\n🐘\ttext", 100) == "Łódź\n🐘\ttext"


def test_clean_replaces_nul_and_surrogates_by_visible_characters() -> None:
    assert clean("a\0b\ud800c", 100) == "a␀b\\ud800c"


def test_clean_returns_a_text_no_longer_than_its_limit(subtests: pytest.Subtests) -> None:
    for length, character in product([0, 1, 99, 100, 101, 150, 1000, 100_000], ["x", "\0", "\ud800", "🐘"]):
        with subtests.test(length=length, character=character):
            assert len(clean(character * length, 100)) <= 100


def test_clean_keeps_both_ends_of_a_long_text_and_says_how_much_it_left_out() -> None:
    cleaned = clean("begin" + "." * 10_000 + "end", 500)
    assert cleaned.startswith("begin...")
    assert cleaned.endswith("...end")
    assert "… 9508 characters left out …" in cleaned
    assert len(cleaned) <= 500
