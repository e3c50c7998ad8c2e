"""Tests that the auditor reports every violation of the ledger's rules at its revision, and reports
nothing that is allowed."""

import json
from hashlib import sha256
from typing import Any, Self

import pytest
from msgspec import structs

from apportion.core.audit import Auditor, Violation
from apportion.core.devices.shares import release
from apportion.core.ledger import invariants
from apportion.core.ledger.fold import HANDLERS, Change
from apportion.core.ledger.handlers import departures
from apportion.core.ledger.state import State
from apportion_schemas import (
    DeviceCordoned,
    DeviceCordonLifted,
    DeviceHealthChanged,
    DeviceUncordoned,
    Event,
    FormatEnabled,
    NodeCordoned,
    NodeCordonLifted,
    NodeGone,
    NodeUncordoned,
    PlacementVoided,
    PodAdopted,
    PodEvicted,
    PodGone,
    PodPlaced,
    QueueObserved,
    QuotaObserved,
    UnknownEvent,
    encode,
    subject_of,
)
from apportion_schemas.catalogue import BY_PAYLOAD
from apportion_schemas.quantities import Payload
from tests.support.fleet import rack
from tests.support.ledger_of import TIME
from tests.support.pods import ask, gang, member, placed, pod, share

KIND = {PodPlaced: "placed", PlacementVoided: "voided", PodEvicted: "evicted"}


class Written:
    """Appends events to a ledger as the real services do, and audits them. Tests override event
    fields to break a rule."""

    def __init__(self, auditor: Auditor | None = None) -> None:
        self.auditor = auditor or Auditor()
        self.found: list[Violation] = []
        self.chain: dict[str, str] = {}

    @property
    def revision(self) -> int:
        return self.auditor.state.revision

    def write(self, *payloads: Payload, **fields: Any) -> Self:
        """Append these events as one decision: all of them have the same basis, the last revision
        that their writer had read."""
        basis = fields.pop("basis", self.revision)
        for payload in payloads:
            data = payload
            role = BY_PAYLOAD[type(data)].writer
            event_id = f"e{self.revision}"
            if isinstance(data, PodPlaced | PlacementVoided | PodEvicted):
                event_id = f"{data.pod}/{data.attempt}/{KIND[type(data)]}"
                if not data.previous:
                    data = structs.replace(data, previous=self.chain.get(data.node, ""))
            event = Event(**{"id": event_id, "source": role, "time": TIME, "data": data,
                             "basis": basis} | fields)  # fmt: skip
            self.raw(subject_of(data), encode(event))
        return self

    def raw(self, subject: str, payload: bytes, *, revision: int = 0) -> Self:
        """Append raw bytes to the subject, and let the auditor check them."""
        if subject.startswith("apportion.v1.placement."):
            self.chain[subject.removeprefix("apportion.v1.placement.")] = sha256(
                payload
            ).hexdigest()
        self.found += self.auditor.take(revision or self.revision + 1, subject, payload)
        return self

    def checks(self) -> list[tuple[int, str]]:
        """Return the revision and check of every violation, including those of the final check."""
        return [(each.revision, each.check) for each in self.found + self.auditor.finish()]


@pytest.fixture
def ledger() -> Written:
    return Written().write(rack("n1", 2)).write(pod("p1", ask(1000))).write(pod("p2", ask(1000)))


def on(uid: str, device: str = "n1-g0", **fields: Any) -> PodPlaced:
    return placed(uid, "n1", [share(device)], **fields)


EVICTED = PodEvicted(
    pod="p1", namespace="default", name="p1", attempt=1, node="n1", priority=0,
    beneficiary="p2", beneficiary_name="default/p2", beneficiary_priority=1000,
    nominated="n1", reason="preempted",
)  # fmt: skip
"""The first pod is evicted for the second."""


def test_a_sound_ledger_has_nothing(ledger: Written) -> None:
    """A valid ledger (placed, voided, placed again, gone) has no violations."""
    ledger.write(on("p1"), on("p2"))
    ledger.write(PlacementVoided(pod="p1", node="n1", attempt=1, reason="r"))
    ledger.write(on("p1", attempt=2)).write(PodGone(uid="p1"), PodGone(uid="p2"))
    assert ledger.checks() == []
    assert (ledger.auditor.checked, ledger.auditor.contradictions) == (9, 0)


def test_a_gap(ledger: Written) -> None:
    """If a revision is missing, the auditor reports that at the next revision."""
    ledger.raw(subject_of(PodGone(uid="p1")), encode(event(PodGone(uid="p1"))), revision=5)
    assert ledger.checks() == [(5, "gap")]


def event(data: Payload) -> Event:
    """Return an event whose source is the watcher, without basis and cause."""
    return Event(id="x", source="watcher", time=TIME, data=data)


@pytest.mark.parametrize("payload", [b"\xff", b"{}", encode(event(PodGone(uid="other")))])
def test_what_is_no_event_or_on_anothers_subject(ledger: Written, payload: bytes) -> None:
    """The auditor reports undecodable bytes, and an event on a subject that belongs to another
    object. It then continues."""
    ledger.raw("apportion.v1.workload.p1", payload).write(on("p1"))
    assert ledger.checks() == [(4, "schema")]


def test_what_a_newer_build_wrote_ends_the_audit(ledger: Written) -> None:
    """The audit ends at an event of an enabled version that this build does not know."""
    ledger.auditor.state.rules.enable(1, FormatEnabled(format="PodGone", version=2, by="ada"))
    newer = json.loads(encode(event(PodGone(uid="p1")))) | {"schemaversion": 2}
    with pytest.raises(UnknownEvent, match="schemaversion 2"):
        ledger.raw(subject_of(PodGone(uid="p1")), json.dumps(newer).encode())
    assert (ledger.auditor.state.revision, ledger.checks()) == (3, [])


def test_a_format_that_nobody_enabled_is_named(ledger: Written) -> None:
    """The auditor reports an event in a format that is not enabled, and continues."""
    newer = json.loads(encode(event(PodGone(uid="p1")))) | {"schemaversion": 2}
    ledger.raw(subject_of(PodGone(uid="p1")), json.dumps(newer).encode())
    assert (ledger.auditor.state.revision, ledger.checks()) == (4, [(4, "format")])
    assert "p1" in ledger.auditor.state.pods


@pytest.mark.parametrize("source", ["binder", "scheduler2", "agent/n1", ""])
def test_anothers_signature(ledger: Written, source: str) -> None:
    """The auditor reports a placement whose source is not a scheduler."""
    ledger.write(on("p1"), source=source or "x")
    assert ledger.checks() == [(4, "owner")]


def test_people_may_submit_where_there_is_no_watcher(ledger: Written) -> None:
    """An operator may append the events that the watcher normally appends for a pod, but no
    placements."""
    ledger.write(PodGone(uid="p2"), source="cli/alice@host")
    ledger.write(NodeCordoned(node="n1", by="alice", reason="r"), source="cli/alice@host")
    assert ledger.checks() == []
    ledger.write(on("p1"), source="cli/alice@host", basis=3)
    assert ledger.checks() == [(6, "owner")]


def test_the_gateway_signs_what_people_do_who_have_logged_in(ledger: Written) -> None:
    """The gateway may append the cordons and uncordons of logged-in users. The auditor reports
    every other event from the gateway."""
    ledger.write(NodeCordoned(node="n1", by="olga", reason="r"), source="gateway")
    ledger.write(NodeCordonLifted(node="n1", of="olga", by="olga"), source="gateway")
    ledger.write(DeviceCordoned(device="n1-g0", by="olga", reason="r"), source="gateway/0")
    ledger.write(DeviceCordonLifted(device="n1-g0", of="olga", by="olga"), source="gateway")
    assert ledger.checks() == []
    ledger.write(NodeUncordoned(node="n1", by="olga"), source="gateway")
    ledger.write(PodGone(uid="p2"), source="gateway")
    assert [check for _, check in ledger.checks()] == ["owner", "owner"]


@pytest.mark.parametrize("fields", [{"basis": 4}, {"cause": 4}])
def test_what_was_decided_on_what_did_not_stand_yet(
    ledger: Written, fields: dict[str, int]
) -> None:
    """The auditor reports an event that names its own or a later revision as its basis or cause."""
    assert ledger.write(on("p1"), **fields).checks() == [(4, "basis")]


def test_a_broken_chain(ledger: Written) -> None:
    """The auditor reports a placement that does not contain the digest of the node's previous
    placement."""
    ledger.write(on("p1"))
    ledger.write(on("p2", previous="0" * 64))
    assert ledger.checks() == [(5, "chain")]


def test_a_node_that_was_forgotten_long_ago_begins_its_chain_again(
    ledger: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the state has forgotten a node, the node's next placement needs no digest of a previous
    one."""
    monkeypatch.setattr(departures, "LEFT_MAX", 1)
    monkeypatch.setattr(departures, "DEPARTED_MAX", 0)
    ledger.write(on("p1")).write(PodGone(uid="p1")).write(NodeGone(node="n1"))
    ledger.write(NodeGone(node="n2"))
    assert [*ledger.auditor.state.nodes] == ["n2"]
    ledger.chain.clear()
    ledger.write(rack("n1", 2)).write(on("p2"))
    assert ledger.checks() == []


def test_the_chain_goes_over_bad_bytes_too(ledger: Written) -> None:
    """Undecodable bytes on a node's placement subject are part of its chain: the next placement
    contains their digest."""
    ledger.write(on("p1")).raw("apportion.v1.placement.n1", b"{}").write(on("p2"))
    assert ledger.checks() == [(5, "schema")]


def test_an_identity_that_lets_a_pod_be_placed_twice(ledger: Written) -> None:
    """The auditor reports a placement with an unexpected event id, because NATS detects duplicate
    placements only by id."""
    ledger.write(on("p1"), id="p1/other")
    assert ledger.checks() == [(4, "identity")]


@pytest.mark.parametrize(
    ("event_id", "found"),
    [
        ("p1/1/evicted", []),  # ids of older ledgers
        ("p1/1/evicted/p2/1", []),
        ("p1/1/evicted/p3/1", [(5, "identity")]),
        ("p1/1/evicted/p2", [(5, "identity")]),
        ("p1/2/evicted/p2/1", [(5, "identity")]),
        ("p1/1/evicted/p2/1/3", [(5, "identity")]),  # it was placed, not adopted
        ("1", [(5, "identity")]),
    ],
)
def test_an_eviction_is_told_once_for_each_attempt_of_whom_it_is_for(
    ledger: Written, event_id: str, found: list[tuple[int, str]]
) -> None:
    """An eviction's event id names the evicted pod and the pod that needs room, with their
    attempts.

    NATS therefore accepts such an eviction only once."""
    ledger.write(on("p1")).write(EVICTED, id=event_id)
    assert ledger.checks() == found


def test_only_a_place_that_was_adopted_is_voided_under_a_further_id(ledger: Written) -> None:
    """The event that voids an adopted placement may have an extra number in its id.

    For all other placements, the auditor reports such an id."""
    found = PodAdopted(
        pod="p3", node="n1", submitted=pod("p3", ask(1000)), attempt=1, shares=(share("n1-g1"),)
    )
    ledger.write(found).write(on("p1"))
    ledger.write(PlacementVoided(pod="p3", node="n1", attempt=1, reason="r"), id="p3/1/voided/4")
    ledger.write(PlacementVoided(pod="p1", node="n1", attempt=1, reason="r"), id="p1/1/voided/5")
    assert ledger.checks() == [(7, "identity")]


@pytest.mark.parametrize(
    "data",
    [
        DeviceHealthChanged(node="n1", device="n1-g0", healthy=False),
        DeviceCordoned(device="n1-g0", by="b", reason="r"),
        NodeCordoned(node="n1", by="b", reason="r"),
    ],
)
def test_a_share_of_what_was_off_offer(ledger: Written, data: Payload) -> None:
    """The auditor reports a placement on a device that was closed when the scheduler decided.

    If the device was closed only afterwards, there is no violation."""
    ledger.write(data).write(on("p1"), basis=3).write(on("p2"), basis=4)
    assert ledger.checks() == [(6, "closed")]


def test_a_share_of_what_is_on_offer_again(ledger: Written) -> None:
    """The auditor reports a placement that was decided while its device was closed.

    If the device was reopened before the decision, there is no violation."""
    ledger.write(DeviceCordoned(device="n1-g0", by="b", reason="r"))
    ledger.write(DeviceUncordoned(device="n1-g0", by="b", reason="r"))
    ledger.write(on("p1"), basis=4)
    ledger.write(on("p2"), basis=5)
    assert ledger.checks() == [(6, "closed")]


def of_a_gang() -> Written:
    """Return a ledger with a node of two devices and a gang of two pending pods: four events."""
    return Written().write(rack("n1", 2), gang("t/g", 2), member("p1", ask(1), group="t/g"),
                           member("p2", ask(1), group="t/g"))  # fmt: skip


def test_half_a_gang() -> None:
    """If a gang is placed only in part, the auditor reports that at the next event or at the
    end."""
    assert of_a_gang().write(on("p1"), on("p2")).checks() == []
    assert of_a_gang().write(on("p1")).checks() == [(5, "gang")]
    assert of_a_gang().write(on("p1")).write(rack("n2", 1)).checks() == [(6, "gang")]


def test_a_gang_in_several_batches() -> None:
    """While the placements of a gang are held, the gang may be placed only in part. If the gang
    lacks its minimum even after the last placement, its pods stay held."""
    assert of_a_gang().write(on("p1", held=True)).write(on("p2")).checks() == []
    ledger = of_a_gang().write(gang("t/g", 3), member("p3", ask(1), group="t/g"))
    ledger.write(on("p1", held=True), on("p2", held=True)).write(PodGone(uid="p1")).write(on("p3"))
    assert ledger.checks() == []
    assert list(ledger.auditor.state.groups["t/g"].held) == ["p2", "p3"]


def test_a_gang_that_changed_behind_the_decision() -> None:
    """If a gang's member ends while the scheduler decides, a placement of only the other members is
    no violation."""
    ledger = of_a_gang().write(PodGone(uid="p2"))
    assert ledger.write(on("p1"), basis=4).checks() == []


def limited(*first: Payload) -> Written:
    """Return a ledger with two pending pods of a namespace that may use one GPU."""
    quota = QuotaObserved(namespace="default", quota="gpus", hard={"nvidia.com/gpu": 1})
    ledger = Written().write(rack("n1", 2)).write(pod("p1", ask(1000)), pod("p2", ask(1000)))
    return ledger.write(quota).write(*first)


def test_a_placement_beyond_a_limit(ledger: Written) -> None:
    """If two pods count for one limit that has room for only one of them, the auditor reports the
    second placement.

    This holds even if both placements have the same basis, as if two schedulers had decided at
    once."""
    found = limited().write(on("p1"), on("p2", "n1-g1")).checks()
    assert found == [(6, "limit")]
    queue = QueueObserved(queue="default", capability={"nvidia.com/gpu": 1})
    assert ledger.write(queue).write(on("p1")).write(on("p2", "n1-g1")).checks() == [(6, "limit")]


def test_a_limit_that_came_after_the_decision() -> None:
    """A placement may exceed a limit that is newer than its basis, the last revision that was read.

    A second placement may exceed the limit because of the first, if its basis is older than the
    first placement."""
    ledger = limited()
    ledger.write(on("p1"), basis=3)  # it was decided before the quota
    assert ledger.write(on("p2", "n1-g1"), basis=4).checks() == []
    ledger.write(pod("p3", ask(1000))).write(on("p3"))
    assert ledger.checks() == [(8, "limit")]


def test_a_late_placement_without_a_limit_hides_nothing() -> None:
    """A placement of a pod outside a limit, decided before the limit existed, does not excuse later
    placements that exceed the limit."""
    ledger = limited()
    ledger.write(pod("other", ask(1000), namespace="web"))
    ledger.write(on("other"), basis=3)
    ledger.write(on("p1"), on("p2", "n1-g1"), basis=5)
    assert ledger.checks() == [(8, "limit")]


def test_a_contradiction_is_counted_and_allowed(ledger: Written) -> None:
    """Events that contradict the state are counted, but are no violation."""
    ledger.write(PodGone(uid="p1")).write(PodGone(uid="p1"))
    assert ledger.checks() == []
    assert ledger.auditor.contradictions == 1


def test_a_fold_that_oversells_is_found_at_once(
    ledger: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a bug makes the fold forget the shares of a placement, the auditor reports a broken
    invariant at that placement."""
    real = HANDLERS[PodPlaced]

    def uncharged(context: Any, data: PodPlaced) -> Change:
        change = real(context, data)
        for each in data.shares:
            release(context.state.nodes[data.node].by_id[each.device], each)
        return change

    monkeypatch.setitem(HANDLERS, PodPlaced, uncharged)
    found = ledger.write(on("p1")).checks()
    assert found[0] == (4, "invariant")


def test_what_only_the_whole_state_shows_is_found_now_and_then(ledger: Written) -> None:
    """Every few events, the auditor checks the whole state. This finds damage in objects that no
    event has touched."""
    ledger.auditor._full_every = 6
    ledger.write(on("p1"))
    ledger.auditor.state.nodes["n1"].cpu_used_milli += 1
    ledger.write(PodGone(uid="p2"))
    assert ledger.found == []
    ledger.write(gang("t/g", 1))
    assert [(each.revision, each.check) for each in ledger.found] == [(6, "invariant")]


def test_near_and_whole_agree() -> None:
    """The check of one event's objects finds the same damage as the check of the whole state."""
    ledger = Written().write(rack("n1", 2)).write(pod("p1", ask(1000))).write(on("p1"))
    state: State = ledger.auditor.state
    state.nodes["n1"].devices[0].memory_free_mib += 1
    change = Change(None, node=state.nodes["n1"])
    assert invariants.violations_near(state, change) == invariants.violations(state) != []


def test_a_range_checks_nothing_before_its_start() -> None:
    """If an audit starts at a later revision, it folds the earlier events but reports no violation
    in them."""
    ledger = Written(Auditor(start=5)).write(rack("n1", 2)).write(pod("p1", ask(1000)))
    ledger.write(on("p1"), id="wrong", source="binder").write(pod("p2", ask(1)), source="binder")
    assert ledger.auditor.found == {}
    assert ledger.write(PodGone(uid="p2"), source="binder").checks() == [(5, "owner")]
    assert ledger.auditor.checked == 1
