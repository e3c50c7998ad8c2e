"""Tests of the differences between two states: every changed object with its old and new value."""

from msgspec import structs

from apportion.core.answers.past import Side
from apportion.core.explain import differences
from apportion.core.explain.differences import LISTS, SHOWN, Difference, Part, Picture, picture
from apportion.core.explain.text.answer_text import side_words
from apportion.core.explain.text.event_text import shares_words
from apportion.core.explain.views import placement_answer
from apportion.core.ledger import fold
from apportion.core.ledger.state import State
from apportion_schemas import (
    Configuration,
    ConfigurationChanged,
    DeviceCordoned,
    DeviceHealthChanged,
    Event,
    NodeGone,
    PodGone,
    PolicyChanged,
    QueueObserved,
    QuotaGone,
    QuotaObserved,
)
from apportion_schemas.quantities import Payload
from tests.benchmarks.refold import life
from tests.support.fleet import gpu, node, rack
from tests.support.pods import ask, placed, pod, share

TIME = "2026-01-01T00:00:00.000000Z"


def happen(state: State, *payloads: Payload) -> State:
    """Fold these events into the state, each at the next revision. Return the state."""
    for data in payloads:
        event = Event(id="e", source="s", time=TIME, data=data)
        change = fold.apply(state, state.revision + 1, event, digest="0" * 64)
        assert not change.refused, change.refused
    return state


def begun() -> State:
    nodes = (rack("node-00000", 2), rack("node-00001", 2))
    return happen(State(), *nodes, *life(0, 2))


def test_equal_states_do_not_differ() -> None:
    """Equal states have no differences in any list."""
    one, other = picture(begun()), picture(begun())
    for differ in (*differences.LISTS.values(), *SHOWN.values()):
        assert list(differ(one, other)) == []


def shown(row: Difference) -> tuple[str, str, str, str]:
    """Return a difference as text: the object, the property, the old value and the new value."""
    return row.name, row.what, side_words(row.was), side_words(row.now)


def test_a_picture_stays_when_its_state_goes_on() -> None:
    """A picture (a copy of the state for comparison) does not change when the fold later modifies
    the state's nodes and pods."""
    state = begun()
    before = picture(state)
    uid = next(iter(state.pods))
    happen(state, PodGone(uid=uid, reason="finished"))
    [gone] = differences.placements(before, picture(state))
    assert (gone.key, gone.name, gone.now) == (uid, "team/train-0", Side())
    assert gone.was.node == "node-00000"


def test_cores_have_the_unit_of_their_family() -> None:
    """If the cores of a GPU are counted, a placement shows them with their unit, not as percent."""
    state = happen(State(), node("n1", gpu("g0", family="amd", cores=304)))
    before = picture(state)
    happen(state, pod("p", ask(3000, family="amd", cores=50)))
    happen(state, placed("p", shares=[share("g0", 3000, 152)]))
    [row] = differences.placements(before, picture(state))
    assert side_words(row.now) == "n1: g0 3,000 MiB 152 compute units"
    answer = placement_answer(state.pods["p"])
    assert shares_words(answer.shares, answer.families) == "g0 3,000 MiB 152 compute units"


def test_each_side_of_a_thing_is_a_row() -> None:
    """Every changed property is a row of its own: a device's health and its cordon are two rows. A
    removed node is one row."""
    state = begun()
    before = picture(state)
    happen(
        state,
        DeviceHealthChanged(node="node-00000", device="node-00000-g0", healthy=False, reason="XID"),
        DeviceCordoned(device="node-00000-g0", by="ann", reason="fan"),
        NodeGone(node="node-00001"),
    )
    after = picture(state)
    assert [shown(row) for row in LISTS["devices"](before, after)] == [
        ("node-00000-g0", "health", "ok", "failed: XID"),
        ("node-00000-g0", "cordon", "", "fan"),
    ]
    assert [shown(row) for row in LISTS["nodes"](before, after)] == [
        ("node-00001", "state", "ready", "gone")
    ]


def test_a_node_that_joins_is_one_row_with_its_cards() -> None:
    """A new node is one row with its number of devices. Its failed devices have a row each; its
    healthy devices have none.

    If an existing node later reports a new device, that device has a row."""
    before = picture(State())
    first, second = rack("node-00000", 8), rack("node-00001", 1)
    broken = structs.replace(first.devices[3], healthy=False, health_reason="XID 79")
    first = structs.replace(first, devices=(*first.devices[:3], broken, *first.devices[4:]))
    state = happen(State(), first, second)
    after = picture(state)
    assert [shown(row) for row in SHOWN["nodes"](before, after)] == [
        ("node-00000", "state", "", "joined, 8 devices"),
        ("node-00001", "state", "", "joined, 1 device"),
    ]
    assert [shown(row) for row in SHOWN["devices"](before, after)] == [
        ("node-00000-g3", "health", "", "failed: XID 79")
    ]
    part = Part(devices=["node-00001-g0", "node-00001-g1"])  # no node differs
    then = picture(state, part)
    happen(state, rack("node-00001", 2))
    for one, other in ((after, picture(state)), (then, picture(state, part))):
        assert list(SHOWN["nodes"](one, other)) == []
        [card] = SHOWN["devices"](one, other)
        assert (card.key, card.now.state) == ("node-00001-g1", "ok")


def waiting(before: Picture, state: State) -> list[tuple[str, str, str]]:
    """Return the pods that joined or left the queue since the earlier state."""
    return [
        (row.name, row.was.state, row.now.state) for row in SHOWN["waiting"](before, picture(state))
    ]


def test_pods_that_wait_are_told_apart_from_those_that_have_a_place() -> None:
    """Pods that joined or left the queue are shown separately from placed pods.

    A pending pod that was recreated under the same name is no difference."""
    state = happen(State(), rack("n1", 2), pod("left"), pod("same"), pod("found"), pod("stays"))
    before = picture(state)
    again = pod("another", name="same")
    happen(state, PodGone(uid="left"), PodGone(uid="same"), again, pod("came"))
    happen(state, placed("found", "n1", [share("n1-g0", 1000)]))
    assert waiting(before, state) == [
        ("default/came", "", "pending"),
        ("default/left", "pending", ""),
    ]
    [found] = differences.placements(before, picture(state))
    assert found.name == "default/found"


def test_the_one_before_under_a_name_is_named() -> None:
    """If a placed pod was recreated under the same name and placed again, its row also has the old
    pod's uid.

    If a pod ended and was not recreated, its row has no other uid."""
    state = happen(State(), rack("n1", 1), pod("a"), placed("a", "n1", [share("n1-g0", 1000)]))
    before = picture(state)
    happen(state, PodGone(uid="a", reason="drained"), pod("a2", name="a"), rack("n2", 1))
    happen(state, placed("a2", "n2", [share("n2-g0", 1000)], name="a"))
    [moved] = differences.placements(before, picture(state))
    assert (moved.key, moved.left) == ("a2", "a")
    later = picture(state)
    happen(state, PodGone(uid="a2"))
    [gone] = differences.placements(later, picture(state))
    assert (gone.key, gone.left) == ("a2", "")


def test_limits_that_changed() -> None:
    """A changed queue or quota lists each limit with its unit, and a removed limit is listed
    too."""
    old = QueueObserved(queue="ml", capability={"cpu": 4000, "nvidia.com/gpu": 4})
    state = happen(State(), old, QuotaObserved(namespace="web", quota="q", hard={"x/gpu": 2}))
    before = picture(state)
    new = structs.replace(old, open=False, capability={"cpu": 8000}, cards={"T4": 3})
    happen(state, new, QuotaGone(namespace="web", quota="q"))
    assert [shown(row) for row in LISTS["limits"](before, picture(state))] == [
        ("queue ml", "state", "open", "closed"),
        ("queue ml", "capability", "cpu 4 CPU, nvidia.com/gpu 4", "cpu 8 CPU"),
        ("queue ml", "cards", "", "T4 3"),
        ("quota web/q", "hard", "x/gpu 2", ""),
    ]


def test_a_queue_that_moved_in_the_tree() -> None:
    """The diff has one row for each changed setting of a queue, such as parent, priority or
    guarantee."""
    old = QueueObserved(queue="ml", parent="lab", deserved={"cpu": 4000}, cards_guarantee={"T4": 1})
    before = picture(state := happen(State(), old))
    new = QueueObserved(queue="ml", priority=3, reclaimable=False, fifo=True, safe_s=60)
    happen(state, structs.replace(new, cards_deserved={"T4": 2}, guarantee={"cpu": 1000}))
    assert [shown(row)[1:] for row in LISTS["limits"](before, picture(state))] == [
        ("parent", "lab", ""),
        ("priority", "", "3"),
        ("guarantee", "", "cpu 1 CPU"),
        ("cards guarantee", "T4 1", ""),
        ("deserved", "cpu 4 CPU", ""),
        ("cards deserved", "", "T4 2"),
        ("reclaimable", "", "no"),
        ("order", "", "fifo"),
        ("minimum runtime", "", "60 s"),
    ]


def test_a_limit_that_comes_or_leaves_is_one_row() -> None:
    """An added or removed queue or quota is one row, as in the summary of `submit`."""
    queues = [QueueObserved(queue=name, weight=2, capability={"cpu": 4000}) for name in ("a", "b")]
    quota = QuotaObserved(namespace="web", quota="q", hard={"x/gpu": 2})
    before = picture(state := happen(State(), queues[0], quota))
    closed = structs.replace(queues[0], open=False, weight=3)
    happen(state, closed, queues[1], QuotaGone(namespace="web", quota="q"))
    assert [shown(row) for row in SHOWN["limits"](before, picture(state))] == [
        ("queue a", "state", "open", "closed"),
        ("queue a", "weight", "2", "3"),
        ("queue b", "limit", "", "open, weight 2, capability cpu 4 CPU"),
        ("quota web/q", "limit", "x/gpu 2", ""),
    ]


def test_policy_and_keys_of_the_configuration() -> None:
    """Only changed keys of policy and configuration are listed, as JSON that is shortened if
    long."""
    state = begun()
    before = picture(state)
    names = tuple(f"scheduler-{n}" for n in range(30))
    happen(
        state,
        PolicyChanged(by="ann", node_policy="spread", device_policy="binpack"),
        ConfigurationChanged(by="ann", configuration=Configuration(scheduler_names=names)),
    )
    after = picture(state)
    [policy] = differences.policy(before, after)
    assert shown(policy)[2:] == ("nodes price, devices price", "nodes spread, devices binpack")
    [key] = differences.configuration(before, after)
    assert (key.name, key.was.value) == ("scheduler_names", "[]")
    assert key.now.value.startswith('["scheduler-0",')
    assert key.now.value.endswith("…")
