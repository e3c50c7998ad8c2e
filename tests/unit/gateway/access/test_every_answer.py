"""Tests that put a secret into each text field of each answer that a tenant can get.

A tenant must not see a field of another namespace unless the field is marked as visible to
everyone."""

from collections.abc import Iterator
from typing import Any, get_origin

import msgspec
import pytest
from msgspec import inspect

from apportion.core.answers.reads import Answer
from apportion.core.answers.visibility import NOT_TOLD, Everyone, Namespace, Rule, Seen
from apportion.core.explain import tenant_redaction
from apportion.core.explain.tenant_redaction import marks_of, redacted
from apportion.gateway.access.redaction_rules import OF_ERRORS, Look, look_at
from apportion.gateway.api.endpoint import Audience
from apportion.gateway.main import ENDPOINTS
from tests.support.lorem import differences, replaced

LOOKS = {
    each.path: look_at(each)
    for each in ENDPOINTS
    if each.audience is Audience.TENANTS and each.answer is not None
} | {"an error": OF_ERRORS}
TEXTS = {
    Rule.EVERYONE: "shown", Rule.NAMESPACE: "ops", Rule.NAMESPACES: "ops", Rule.NAMES: "ops/secret",
    Rule.PEOPLE: "because of ops/secret", Rule.EACH: "shown",
}  # fmt: skip
HIDDEN = "secret"
SHOWN = frozenset((
    "above", "as_of", "begins", "by", "capability", "cards", "cards_deserved", "cards_guarantee",
    "cause", "code", "continue", "counts", "currency", "deserved", "device", "driver", "earliest",
    "family", "field", "first_time", "from", "from_time", "frozen", "gone", "guarantee", "hardware",
    "key", "kind", "last_time", "latest", "median", "mode", "model", "models", "more", "node",
    "node_silent", "node_without", "nominated", "of", "oldest_time", "parent", "phase", "phases",
    "placed_time", "plugin", "plugin_problem", "pool", "profile", "queue", "report", "shares",
    "silent", "since", "since_time", "starts", "state", "submitted_time", "summary", "template",
    "time", "to", "to_time", "type", "uids", "unpriced", "value", "wants", "was", "what", "wishes",
))  # fmt: skip
"""Text fields that everyone sees. None of them has a name, reason or sentence about a pod."""


def sees(namespace: str) -> bool:
    """Return True for the namespace `ml`, the only one that the tenant of these tests may read."""
    return namespace == "ml"


def filled(info: inspect.Type, rule: Rule = Rule.OWNERS) -> Any:
    """Return a value of this type with a text in each text field. The text is a secret unless
    `rule` lets the tenant see the field."""
    match info:
        case inspect.UnionType():
            value = filled(
                next(it for it in info.types if not isinstance(it, inspect.NoneType)), rule
            )
        case inspect.StructType():
            marks = marks_of(kind_of(info))
            value = info.cls(**{it.name: filled(it.type, marks[it.name].by) for it in info.fields})
        case inspect.StrType():
            value = TEXTS.get(rule, HIDDEN)
        case inspect.VarTupleType() | inspect.ListType():
            of = info.item_type
            kinds = of.types if isinstance(of, inspect.UnionType) else (of,)
            value = tuple(filled(each, rule) for each in kinds)
        case inspect.TupleType():
            value = tuple(filled(each, rule) for each in info.item_types)
        case inspect.DictType():
            value = {filled(info.key_type, rule): filled(info.value_type, rule)}
        case inspect.EnumType():
            value = next(iter(info.cls))
        case inspect.LiteralType():
            value = info.values[0]
        case inspect.AnyType():
            value = {"secret": "ops"}
        case _:
            value = {inspect.IntType: 1, inspect.FloatType: 1.5, inspect.BoolType: True}[type(info)]
    return value


def kind_of(info: inspect.StructType) -> type:
    """Return the struct type without its type parameters."""
    return get_origin(info.cls) or info.cls


def sent(look: Look) -> str:
    """Return an answer of the type `look.kind` as JSON. Its texts are filled with secrets and then
    redacted for the tenant, as the gateway redacts answers."""
    body = msgspec.json.encode(filled(inspect.type_info(look.kind)))
    return msgspec.json.encode(look.shown(msgspec.json.decode(body, type=look.kind), sees)).decode()


@pytest.mark.parametrize("path", LOOKS)
def test_what_no_mark_shows_is_hidden(path: str) -> None:
    """A tenant sees no text of another namespace, except in fields that are marked as visible to
    everyone."""
    text = sent(LOOKS[path])
    assert HIDDEN not in text
    assert "ops" not in text


@pytest.mark.parametrize("path", LOOKS)
def test_a_struct_with_other_types_keeps_its_marks(path: str) -> None:
    """A subclass of an answer type inherits the visibility of the type's fields."""
    for info in structs_in(inspect.type_info(LOOKS[path].kind)):
        kind = kind_of(info)
        for base in kind.__mro__[1:]:
            if issubclass(base, Answer):
                marks = marks_of(base)
                assert marks == {name: marks_of(kind)[name] for name in marks}


def test_without_redaction_the_same_answers_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without redaction, the answers contain the secrets. The test of redaction would therefore
    notice a leak."""
    monkeypatch.setattr(tenant_redaction, "_field", lambda value, *_: value)
    leaking = {path for path, look in LOOKS.items() if "secret" in sent(look)}
    assert leaking >= {"pods", "placements", "who", "log", "lines", "plan", "fleet", "diff"}
    assert len(leaking) >= len(LOOKS) - 8


def test_with_other_sentences_the_same_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redaction does not depend on the wording of messages: if every message is reworded, the same
    data is hidden."""
    shown = {path: sent(look) for path, look in LOOKS.items()}
    assert replaced(monkeypatch.setattr) > 50
    for path, look in LOOKS.items():
        other = sent(look)
        assert not list(differences(msgspec.json.decode(shown[path]), msgspec.json.decode(other)))
        assert HIDDEN not in other
    monkeypatch.setattr(tenant_redaction, "_field", lambda value, *_: value)
    assert HIDDEN in "".join(map(sent, LOOKS.values()))


def test_a_field_without_a_mark_is_hidden() -> None:
    """A field without a visibility mark is hidden in objects of other namespaces and in objects of
    the whole cluster."""

    class OfPod(Answer, frozen=True):
        namespace: Namespace
        new: str
        node: Everyone[str]

    class OfCluster(Answer, frozen=True):
        new: str
        pod: Everyone[OfPod]

    theirs = redacted(OfCluster(new="x", pod=OfPod("ops", "x", "n1")), sees)
    assert (theirs.new, theirs.pod.new, theirs.pod.node) == (NOT_TOLD, NOT_TOLD, "n1")
    mine = redacted(OfCluster(new="x", pod=OfPod("ml", "x", "n1")), sees)
    assert (mine.new, mine.pod.new) == (NOT_TOLD, "x")


def structs_in(info: inspect.Type) -> Iterator[inspect.StructType]:
    """Yield every struct type that the answer type contains."""
    if isinstance(info, inspect.StructType):
        yield info
        for field in info.fields:
            yield from structs_in(field.type)
    for name in ("types", "item_types"):
        for each in getattr(info, name, ()):
            yield from structs_in(each)
    for name in ("item_type", "key_type", "value_type"):
        if (inner := getattr(info, name, None)) is not None:
            yield from structs_in(inner)


def test_texts_that_everyone_sees_are_few() -> None:
    """Only the text fields that this test lists are visible to every tenant. To make another field
    visible to every tenant, a developer has to add the field here."""
    shown = {
        field.encode_name
        for look in LOOKS.values()
        for struct in structs_in(inspect.type_info(look.kind))
        for field in struct.fields
        if marks_of(kind_of(struct))[field.name] == Seen(Rule.EVERYONE)
        and not any(structs_in(field.type))
        and "shown" in msgspec.json.encode(filled(field.type, Rule.EVERYONE)).decode()
    }
    assert shown == SHOWN
