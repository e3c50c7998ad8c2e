"""Tests of the index, which finds events by pod, node or device."""

from pathlib import Path

from apportion.core.answers.past import MarkRow
from apportion.gateway.past.index import DEVICE, NODE, POD, Index
from apportion.gateway.past.indexing import open_index


def filled(path: Path) -> Index:
    """Return an index of two pods that have the same name and used the same device one after the
    other."""
    index = Index(path)
    for uid, first in (("u1", 10), ("u2", 20)):
        index.name_pod(uid, "default/a")
        index.note(first, [(POD, uid)])
        index.note(first + 1, [(POD, uid), (NODE, "n1"), (DEVICE, "g0")])
        index.hold(uid, "n1", first + 1, f"t{first + 1}", [("g0", "main", 16, 5)])
    index.release("u1", 15, "t15")
    index.note(15, [(POD, "u1"), (NODE, "n1"), (DEVICE, "g0")])
    failed(index, 13, DEVICE, "g0", "health")
    return index


def failed(index: Index, revision: int, kind: int, key: str, what: str) -> None:
    """Add to the index a failure on node n1 that changed the field `what` of the object `key`."""
    index.mark(MarkRow(revision, f"t{revision}", "failure", type="DeviceHealthChanged"))
    index.note(revision, {(NODE, "n1"), (kind, key)})
    index.change(revision, kind, key, what)


def test_facts_by_key(tmp_path: Path) -> None:
    """The index lists the revisions of all events about an object, within a range and up to a
    limit."""
    index = filled(tmp_path / "i")
    assert index.facts(NODE, ["n1"], after=0, upto=99, limit=9) == [11, 13, 15, 21]
    assert index.facts(DEVICE, ["g0"], after=11, upto=15, limit=9) == [13, 15]
    assert index.facts(POD, ["u1", "u2"], after=0, upto=99, limit=4) == [10, 11, 15, 20]
    assert index.facts(POD, ["nobody"], after=0, upto=99, limit=4) == []
    assert index.newest_facts(POD, "u1", after=0, upto=14, limit=1) == [11]


def test_pods_of_a_name(tmp_path: Path) -> None:
    """The index lists all pods that had the name at or before a given revision, newest first."""
    index = filled(tmp_path / "i")
    assert index.pods_named("default/a", upto=99, limit=9) == ["u2", "u1"]
    assert index.pods_named("default/a", upto=19, limit=9) == ["u1"]
    assert index.pods_named("default/a", upto=9, limit=9) == []
    assert index.name_of("u2") == "default/a"


def test_namespaces_of_a_name(tmp_path: Path) -> None:
    """The index finds all pods with a given name, in any namespace, that existed up to a revision.
    It lists each `namespace/name` once."""
    index = filled(tmp_path / "i")
    for uid, name, revision in (("v", "zoo/a", 30), ("w", "zoo/a", 31), ("x", "zoo/b/a", 32),
                                ("y", "zoo/ba", 33)):  # fmt: skip
        index.name_pod(uid, name)
        index.note(revision, {(POD, uid)})
    assert index.full_names("a", upto=99, limit=9) == ["default/a", "zoo/a"]
    assert index.full_names("a", upto=29, limit=9) == ["default/a"]
    assert index.full_names("a", upto=99, limit=1) == ["default/a"]


def test_holds(tmp_path: Path) -> None:
    """The index finds which pods held a share of a device at a revision or within a range of
    revisions."""
    index = filled(tmp_path / "i")

    def held(since: int, upto: int) -> list[tuple[str, int, int]]:
        found = index.holds(DEVICE, "g0", since=since, upto=upto, skip=0, limit=9)
        return [(hold.uid, hold.from_revision, hold.to_revision) for hold in found]

    assert held(10, 10) == []
    assert held(11, 11) == held(14, 14) == [("u1", 11, 0)]
    assert held(15, 15) == []
    assert held(0, 99) == [("u1", 11, 15), ("u2", 21, 0)]
    [hold] = index.holds(NODE, "n1", since=0, upto=99, skip=1, limit=9)
    assert (hold.namespace, hold.pod, hold.device, hold.memory_mib) == ("default", "a", "g0", 16)


def test_what_changed_and_by_which_event(tmp_path: Path) -> None:
    """For each field of an object, the index finds the newest event in a range of revisions that
    changed the field. On request it finds the oldest such event."""
    index = filled(tmp_path / "i")
    for revision, what in ((11, "health"), (13, "health"), (14, "cordon"), (14, "cordon")):
        index.change(revision, DEVICE, "g0", what)
    index.change(21, POD, "u2", "placement")
    assert index.changed_by(DEVICE, ["g0", "g1"], after=0, upto=20) == {
        ("g0", "health"): 13,
        ("g0", "cordon"): 14,
    }
    assert index.changed_by(DEVICE, ["g0"], after=0, upto=12) == {("g0", "health"): 11}
    first = index.changed_by(DEVICE, ["g0"], after=0, upto=20, oldest=True)
    assert first["g0", "health"] == 11
    assert index.changed_by(NODE, ["g0"], after=0, upto=99) == {}
    assert index.changed(after=13, upto=21) == {POD: ["u2"], DEVICE: ["g0"]}
    assert index.changed(after=14, upto=20) == {}


def test_failures_under_a_pod(tmp_path: Path) -> None:
    """The index finds only those failures of a pod's node and devices that happened while the pod
    was allocated."""
    index = filled(tmp_path / "i")
    failed(index, 12, DEVICE, "g1", "health")
    failed(index, 14, NODE, "n1", "state")
    failed(index, 16, NODE, "n1", "state")
    failed(index, 23, NODE, "n1", "cordon")
    assert index.failures_under(["u1"], after=0, upto=99) == [13, 14]
    assert index.failures_under(["u1"], after=13, upto=99) == [14]
    assert index.failures_under(["u2"], after=0, upto=99) == []
    mark = index.newest_mark(DEVICE, "g0", ("failure", "recovery"), after=0, upto=99)
    assert mark is not None
    assert mark.revision == 13
    assert index.newest_mark(DEVICE, "g0", ("cordon",), after=0, upto=99) is None


def test_the_beginning_of_an_id(tmp_path: Path) -> None:
    """A complete device id finds only that device. The beginning of an id finds all devices whose
    ids begin with that text."""
    index = filled(tmp_path / "i")
    index.note(30, [(DEVICE, "g01"), (DEVICE, "h_")])
    assert index.keys_like(DEVICE, "g0", limit=9) == ["g0"]
    assert index.keys_like(DEVICE, "g", limit=9) == ["g0", "g01"]
    assert index.keys_like(DEVICE, "%", limit=9) == []


def test_what_was_not_committed_is_gone(tmp_path: Path) -> None:
    """If an index is opened again, entries that were not committed are gone."""
    index = filled(tmp_path / "i")
    index.commit(21)
    index.note(22, [(POD, "u2")])
    index.close()
    again = Index(tmp_path / "i")
    assert again.revision == 21
    assert again.facts(POD, ["u2"], after=0, upto=99, limit=9) == [20, 21]


def test_another_ledger_begins_anew(tmp_path: Path) -> None:
    """The gateway discards an index if the index belongs to another ledger or if its checkpoint is
    missing."""
    index, _ = open_index(tmp_path, "one")
    index.note(1, [(POD, "u")])
    index.commit(0)
    index.close()
    again, _ = open_index(tmp_path, "one")
    assert again.knows(POD, "u")
    again.commit(5)  # no checkpoint of 5 was written
    again.close()
    lost, _ = open_index(tmp_path, "one")
    assert (lost.knows(POD, "u"), lost.revision) == (False, 0)
    lost.note(1, [(POD, "v")])
    lost.commit(0)
    lost.close()
    other, _ = open_index(tmp_path, "other")
    assert not other.knows(POD, "v")
