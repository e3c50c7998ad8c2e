"""Hypothesis strategies that draw any possible event, often with values at the bounds of its
schema."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from msgspec import inspect

from apportion_schemas import CATALOGUE, Event, EventType

LIST_MAX = 3
TEXT_MAX = 8

TIMES = st.just("2026-03-01T09:30:00.000000Z")


def events() -> st.SearchStrategy[Event]:
    """Draw any event of any type."""
    return st.sampled_from(CATALOGUE).flatmap(events_of)


def events_of(row: EventType) -> st.SearchStrategy[Event]:
    """Draw any event of one type."""
    revision = st.integers(0, 1 << 53)
    return st.builds(
        Event,
        id=texts(1, 512),
        source=texts(1, 253),
        time=TIMES,
        data=values(inspect.type_info(row.payload)),
        basis=revision,
        cause=revision,
    )


def values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Draw any value that a msgspec type allows."""
    if isinstance(kind, inspect.Metadata):
        return values(kind.type)
    return STRATEGIES[type(kind)](kind)


def _struct(kind: inspect.StructType) -> st.SearchStrategy[Any]:
    return st.builds(kind.cls, **{field.name: values(field.type) for field in kind.fields})


def _integer(kind: inspect.IntType) -> st.SearchStrategy[int]:
    low = kind.ge if kind.ge is not None else -(1 << 63)
    high = kind.le if kind.le is not None else (1 << 63) - 1
    if kind.lt is not None:
        high = kind.lt - 1
    return st.integers(low, high) | st.sampled_from((low, high))


def _float(kind: inspect.FloatType) -> st.SearchStrategy[float]:
    return st.floats(kind.ge, kind.le, allow_nan=False, allow_infinity=False)


def _text(kind: inspect.StrType) -> st.SearchStrategy[str]:
    if kind.pattern is not None:
        found = st.from_regex(kind.pattern.removesuffix("$") + r"\Z")
        return found.filter(lambda text: len(text) <= (kind.max_length or len(text)))
    return texts(kind.min_length or 0, TEXT_MAX if kind.max_length is None else kind.max_length)


def _mapping(kind: inspect.DictType) -> st.SearchStrategy[Any]:
    return st.dictionaries(values(kind.key_type), values(kind.value_type), max_size=LIST_MAX)


STRATEGIES: dict[type[inspect.Type], Callable[[Any], st.SearchStrategy[Any]]] = {
    inspect.StructType: _struct,
    inspect.StrType: _text,
    inspect.IntType: _integer,
    inspect.FloatType: _float,
    inspect.BoolType: lambda _: st.booleans(),
    inspect.NoneType: lambda _: st.none(),
    inspect.LiteralType: lambda kind: st.sampled_from(kind.values),
    inspect.EnumType: lambda kind: st.sampled_from(list(kind.cls)),
    inspect.UnionType: lambda kind: st.one_of(*map(values, kind.types)),
    inspect.VarTupleType: lambda kind: st.lists(
        values(kind.item_type), min_size=kind.min_length or 0, max_size=LIST_MAX
    ).map(tuple),
    inspect.DictType: _mapping,
}


def texts(least: int, most: int) -> st.SearchStrategy[str]:
    """Draw any JSON text of `least` to `most` characters.

    Most are short, and some have the greatest length."""
    letters = st.characters(codec="utf-8")  # no lone surrogates
    short = st.text(letters, min_size=least, max_size=max(least, min(most, TEXT_MAX)))
    return short | st.just("x" * most)
