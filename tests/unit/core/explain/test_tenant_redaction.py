"""Tests of what a tenant may see: amounts and queue positions of other namespaces, but no names."""

import msgspec
import pytest

from apportion.core.answers.past import LogRow
from apportion.core.answers.reads import (
    CordonAnswer,
    DeviceAnswer,
    Holder,
    Line,
    NodeAnswer,
    Page,
    Part,
    PlacementAnswer,
    PodAnswer,
    PodPage,
    QueuedPod,
    Why,
)
from apportion.core.answers.visibility import OF_OTHERS, OTHERS
from apportion.core.explain.tenant_redaction import (
    UNKNOWN,
    event_redacted,
    namespaces_in,
    namespaces_of,
    redacted,
)
from apportion.core.explain.text.answer_text import log_with_text
from apportion_schemas import (
    Ask,
    Configuration,
    ConfigurationChanged,
    NodeGone,
    PodBound,
    PodEvicted,
    PodGroupGone,
    QuotaGone,
    Score,
    Share,
)
from tests.support.pods import pod

HELD = (Share(container="secret-c", device="g0", memory_mib=16, cores=5),)
THEIRS = PodAnswer(
    namespace="ops", name="secret", uid="secret-uid", phase="placed", node="n1", group="ops/secret",
    owner="secret-owner", asks=(Ask(container="secret-c", family="nvidia"),), shares=HELD,
    placed_revision=7, last_failure="secret words",
)  # fmt: skip


def sees(namespace: str) -> bool:
    """Return True for namespace `ml`, the only namespace that the tenant of these tests may see."""
    return namespace == "ml"


def through(answer: msgspec.Struct) -> tuple[str, msgspec.Struct]:
    """Redact the answer for the tenant. Return its JSON, and the answer decoded from that JSON."""
    body = msgspec.json.encode(redacted(answer, sees))
    return body.decode(), msgspec.json.decode(body, type=type(answer))


@pytest.mark.parametrize(
    "answer",
    [
        THEIRS,
        PlacementAnswer(
            namespace="ops", name="secret", uid="secret-uid", node="n1", phase="placed", attempt=1,
            placed_revision=7, placed_time="", score=Score(node="n1", total=1.0), shares=HELD,
        ),
        DeviceAnswer(
            device="g0", node="n1", index=0, model="A100", family="nvidia", mode="hami-core",
            memory_mib=100, memory_free_mib=84, cores=100, cores_free=95, slots=10, slots_free=9,
            holders=(Holder("ops", "secret", "secret-c", 16, 5),),
        ),
    ],
    ids=lambda answer: type(answer).__name__,
)  # fmt: skip
def test_what_is_of_others_loses_whose_it_is_and_keeps_how_much(answer: msgspec.Struct) -> None:
    """Redaction removes the names of other namespaces' objects and keeps their amounts, and the
    answer still decodes."""
    text, _ = through(answer)
    assert "secret" not in text
    assert "ops" not in text
    assert OTHERS in text
    assert '"memory_mib":16' in text


def test_that_room_is_made_for_others_is_seen_and_for_whom_is_not() -> None:
    """A tenant sees that pods are evicted for a pending pod of another tenant, and on which node.
    The names of all these pods are hidden."""
    waits = QueuedPod(
        position=1, namespace="ops", name="secret", uid="secret-uid", priority=9, since_revision=4,
        since_time="", nominated="n1", leaving=2, leaving_names=("ops/secret-2",),
        room="room is made: ops/secret-2 leaves",
    )  # fmt: skip
    text, shown = through(waits)
    assert isinstance(shown, QueuedPod)
    assert (shown.nominated, shown.leaving) == ("n1", 2)
    assert "secret" not in text


def test_what_is_his_own_is_as_it_was() -> None:
    """Redaction leaves answers about the tenant's own namespace unchanged."""
    mine = msgspec.structs.replace(THEIRS, namespace="ml", group="ml/job")
    page: PodPage = Page(revision=9, items=(mine, THEIRS))
    _, shown = through(page)
    assert isinstance(shown, Page)
    assert msgspec.convert(shown.items[0], PodAnswer) == mine


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("goes for ops/big-0", f"goes for {OF_OTHERS}"),
        ("ops/a, ml/b and x/c.d", f"{OF_OTHERS}, ml/b and {OF_OTHERS}"),
        ("nvidia.com/gpu", "nvidia.com/gpu"),
        ("app.kubernetes.io/name", "app.kubernetes.io/name"),
        ("2024/77 is gone", f"{OF_OTHERS} is gone"),
        ("/dev/nvidia0", "/dev/nvidia0"),
        ("(ops/a)", f"({OF_OTHERS})"),
        ("quota ops/cards: 3", f"quota {OF_OTHERS}: 3"),
        ("gang ops/scheduling.x-k8s.io/job waits", f"gang {OF_OTHERS} waits"),
        ("gang ml/scheduling.x-k8s.io/job waits", "gang ml/scheduling.x-k8s.io/job waits"),
        ("ops/Two_Words is gone", f"{OF_OTHERS} is gone"),
    ],
)
def test_names_in_what_people_write_are_blanked(text: str, shown: str) -> None:
    """Redaction replaces names of other namespaces' objects in free text, such as the reason of a
    cordon."""
    cordon = CordonAnswer(by="ann", reason=text, time="2026-01-01T00:00:00Z", revision=1)
    node: NodeAnswer = redacted(NodeAnswer(node="n1", ready=True, cordons=(cordon,)), sees)
    assert (node.node, node.cordons[0].reason) == ("n1", shown)
    assert shown in node.cordon
    assert event_redacted({"reason": text}, sees) == {"reason": shown}


def test_evictions_of_others_are_left_out() -> None:
    """Redaction removes evictions of other tenants' pods, and keeps the names of the tenant's own
    pods that must end."""
    gone = PodEvicted(
        pod="secret-uid", namespace="ops", name="secret", attempt=1, node="n1", priority=0,
        beneficiary="u1", beneficiary_name="ml/mine", beneficiary_priority=9, nominated="n1",
        reason="preempted",
    )  # fmt: skip
    why = Why(revision=9, namespace="ml", name="mine", uid="u1", phase="pending",
              sentence="waits until ops/secret has left", evicts=(gone,),
              leaving=("ops/secret", "ml/a"), room_on="n1")  # fmt: skip
    text, shown = through(why)
    assert isinstance(shown, Why)
    assert (shown.evicts, shown.leaving) == ((), (OF_OTHERS, "ml/a"))
    assert f"once {OF_OTHERS}, ml/a have left" in shown.sentence, "made of what is left"
    assert "secret" not in text


def test_rows_about_events_go_by_the_namespaces_of_the_event() -> None:
    """A tenant does not see the text of a log row about an event of another tenant's namespace."""
    row = LogRow(
        revision=3, time="t", type="PodBound", parts=("pod uid-of-ops bound",), source="b",
        subject="apportion.v1.binding.n1", namespaces=("ops",),
    )  # fmt: skip
    hidden = redacted(row, sees)
    assert (hidden.revision, hidden.type, hidden.sentence) == (3, "PodBound", OF_OTHERS)
    assert "ops" not in str(hidden)
    mine = log_with_text(msgspec.structs.replace(row, namespaces=("ml",)))
    assert redacted(mine, sees) == mine
    unknown = msgspec.structs.replace(row, namespaces=(UNKNOWN,))
    assert redacted(unknown, sees).sentence == OF_OTHERS
    of_cluster = log_with_text(msgspec.structs.replace(row, parts=("n1 is gone",), namespaces=()))
    assert redacted(of_cluster, sees) == of_cluster


def test_every_namespace_of_an_answer_is_asked_about() -> None:
    """Redaction finds every namespace that an answer contains. A namespace that it missed would be
    shown to every tenant."""
    row = LogRow(
        revision=3,
        time="t",
        type="x",
        subject="",
        source="",
        namespaces=("b", "c"),
        parts=(Part(name="d/e", quoted=True),),
    )
    line = Line(wants="", devices=1, pods=1, oldest_revision=1, oldest_time="", whose="f")
    pod = msgspec.structs.replace(THEIRS, namespace="a", evicted_for="g/x")
    found = set[str]().union(*map(namespaces_in, (row, line, pod)))
    assert found == {"a", "b", "c", "d", "f", "g"}


@pytest.mark.parametrize(
    ("event", "namespaces"),
    [
        (pod("u1", namespace="ml"), ("ml",)),
        (PodBound(pod="u1", node="n1", attempt=1), ("ml",)),
        (PodBound(pod="u9", node="n1", attempt=1), (UNKNOWN,)),
        (QuotaGone(namespace="ops", quota="cards"), ("ops",)),
        (PodGroupGone(group="ops/job"), ("ops",)),
        (NodeGone(node="n1"), ()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_namespaces_of_an_event(event: msgspec.Struct, namespaces: tuple[str, ...]) -> None:
    """An event's namespaces come from the event itself, or from the pod with the event's uid."""
    assert namespaces_of(event, lambda uid: "ml" if uid == "u1" else UNKNOWN) == namespaces


def test_an_event_that_is_not_known_to_be_harmless_is_nobodys() -> None:
    """Tenants see only events of types that are listed as harmless."""
    event = ConfigurationChanged(by="ada", configuration=Configuration())
    assert namespaces_of(event, str) == (UNKNOWN,)
