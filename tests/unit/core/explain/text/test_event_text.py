"""Tests of the one-line text that `tail` prints for every event.

If an event has only a pod's uid, the line shows the name that an earlier event gave the pod."""

import msgspec
import pytest

from apportion.core.explain.text.event_text import (
    NAMES_MAX,
    SHAPES_MAX,
    Teller,
    added_up,
    ask_words,
    share_words,
    shares_words,
)
from apportion.core.explain.text.words import listed
from apportion.core.workloads.dialects.dialect import GPU_MILLI
from apportion_schemas import (
    CATALOGUE,
    Ask,
    DeviceConstraints,
    DeviceCordonLifted,
    DifferenceFound,
    LimitsChecked,
    NodeConstraints,
    NodeCordonLifted,
    PodAdopted,
    PodBound,
    PodGone,
    PodRefused,
    QueueObserved,
    RefusalCode,
    ShareBreached,
)
from apportion_schemas.allocation import BreachCode
from apportion_schemas.catalogue import EventType
from tests.support.fleet import observed, rack
from tests.support.golden import Golden
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, instance, placed, pod, shape, share


def sample(row: EventType) -> object:
    """Return an event of this type that sets only the required fields, to dummy values."""
    filled: dict[str, object] = {}
    for field in msgspec.structs.fields(row.payload):
        if field.required:
            filled[field.encode_name] = _value(field.encode_name)
    if row.payload is ShareBreached:
        filled["code"] = "unheld"
    if row.payload is LimitsChecked:
        filled["kind"] = "queue"
    return msgspec.convert(msgspec.to_builtins(filled), row.payload)


@pytest.mark.parametrize("code", ["raised", "zeroed", "removed", "unheld"])
def test_a_breach_is_told_with_its_amounts(code: BreachCode) -> None:
    """If a container exceeds its share, the event's line shows the granted and the found amount."""
    breach = ShareBreached(
        pod="u1", node="n1", attempt=1, container="main", device="GPU-1", code=code,
        memory_mib=700, memory_found_mib=14_000,
    )  # fmt: skip
    line = Teller().line(breach)
    assert "700 MiB" in line
    assert ("14,000 MiB" in line) == (code != "removed")


def _value(name: str) -> object:
    known: dict[str, object] = {
        "host": {"cpu_milli": 0, "memory_mib": 0},
        "shape": {},
        "score": {"node": "n1", "total": 1.0},
        "devices": [],
        "shares": [],
        "shapes": [],
        "reasons": {},
        "submitted": pod("x"),
        "kind": "gone",
        "state": "bound",
        "reason": "preempted",
        "code": "no-device",
    }
    if name in known:
        return known[name]
    numbers = (
        "asked",
        "attempt",
        "priority",
        "beneficiary_priority",
        "min_available",
        "nodes",
        "cpu_milli",
        "memory_mib",
        "pods",
        "seconds",
        "grace_s",
        "version",
        "revision",
    )
    if name in numbers:
        return 1
    return True if name in ("healthy", "ready", "final") else "x"


@pytest.mark.parametrize("row", CATALOGUE, ids=lambda row: row.name)
def test_every_event_has_a_line(row: EventType) -> None:
    """Every event type has a line of text. A type without one would end `tail` with an error."""
    said = Teller().line(sample(row))
    assert len(said.split()) >= 2
    assert "\n" not in said


@pytest.mark.parametrize(
    ("by", "said"),
    [
        ("ada", "node n1: ada removed their own cordon"),
        ("bob", "node n1: bob removed the cordon by ada"),
    ],
)
def test_whose_cordon_is_lifted(by: str, said: str) -> None:
    """If an operator removes another operator's cordon, the line names both. If operators remove
    their own cordon, the line says "their own"."""
    assert Teller().line(NodeCordonLifted(node="n1", of="ada", by=by)) == said
    card = DeviceCordonLifted(device="g0", of="ada", by=by)
    assert Teller().line(card) == said.replace("node n1", "device g0")


def test_names_are_remembered(golden: Golden) -> None:
    """If an event has only a pod's uid, `tail` prints the pod's name from an earlier event."""
    teller = Teller()
    bound = PodBound(pod="u1", node="n1", attempt=1)
    before = teller.line(bound)
    teller.line(pod("u1", name="trainer"))
    golden({
        "bound": before,
        "bound, after it was submitted": teller.line(bound),
        "gone": teller.line(PodGone(uid="u1", reason="done")),
    })  # fmt: skip


def test_a_pod_that_goes_after_its_successor_came_is_the_one_before(golden: Golden) -> None:
    """If a pod ends after a pod of the same name was submitted, `tail` calls the ended pod the
    previous one."""
    teller = Teller()
    teller.line(pod("u1", name="a"))
    teller.line(pod("u2", name="a"))
    golden({
        "u1 is gone": teller.line(PodGone(uid="u1", reason="drained")),
        "u2 is placed": teller.line(placed("u2", "n2", name="a")),
        "u2 is gone": teller.line(PodGone(uid="u2", reason="done")),
    })  # fmt: skip


def test_a_refusal_names_the_resource_that_the_submission_asked_for() -> None:
    """When `tail` prints a refusal, the line names the resource that the pod requested."""
    teller = Teller()
    few = PodRefused(
        pod="u1", namespace="default", name="a", nodes=1,
        reasons={RefusalCode.EXTENDED_RESOURCE_INSUFFICIENT: 1},
    )  # fmt: skip
    assert "an extended resource" in teller.line(few)
    wants = shape(node=NodeConstraints(extended={"example.com/nic": 2}))
    teller.line(pod("u1", name="a", shape=wants))
    assert "example.com/nic" in teller.line(few)


def test_a_refusal_of_many_is_told_in_the_words_of_why(golden: Golden) -> None:
    """While `tail` remembers a pod's request, it prints the same refusal sentence as `why`."""
    teller = Teller()
    held = PodRefused(
        pod="u0", namespace="default", name="a", nodes=1,
        reasons={RefusalCode.CORES_INSUFFICIENT: 1},
    )  # fmt: skip
    teller.line(pod("u0", ask(1000), name="a"))
    known = teller.line(held)
    for number in range(SHAPES_MAX):
        teller.line(pod(f"u{number + 1}"))
    golden({"its request is known": known, "forgotten": teller.line(held)})


@pytest.mark.parametrize(
    ("wants", "said"),
    [
        (ask(90_000), "n1 n1-g1 is 8,081 MiB short"),
        (cards(2), "needs 2 empty GPUs on one node, but n1 has too few"),
        (ask(1, cores=40), "n1 n1-g1 is 10 cores short"),
        (ask(1), "(1 node)"),
    ],
)
def test_the_line_of_a_refusal_calls_no_node_the_nearest(wants: Ask, said: str) -> None:
    """When `tail` prints a refusal, the line names a node and what it lacks. It does not call this
    node the nearest, because `why` may find a nearer one."""
    ledger = Ledger(rack("n1", 2)).submit(pod("held", ask(1, cores=70, count=2))).settle()
    ledger.submit(pod("more", ask(1, cores=20))).settle()
    if not wants.cores and wants.memory_mib == 1:
        ledger.play(observed("n1", ready=False))
    teller = Teller()
    lines = [teller.line(event) for event in ledger.submit(pod("p", wants)).settle().events]
    assert lines[-1].endswith(said)
    assert "nearest" not in lines[-1]


def test_the_line_of_a_pod_names_the_devices_that_alone_will_do() -> None:
    """For a submission, `tail` names the devices that the pod is restricted to."""
    only = DeviceConstraints(use_types=("H100",), modes=("mps",), indexes=(0, 2, 3))
    submitted = pod("p", shape=shape(cards(2), devices=only))
    wishes = "type H100, mps, only device indexes 0, 2 and 3"
    said = f"default/p submitted: 2 x nvidia whole, {wishes} (hami)"
    assert Teller().line(submitted) == said
    but = DeviceConstraints(nouse_types=("T4",), nouse_ids=("x",))
    said = "default/p submitted: 1 x nvidia 1g.5gb, type other than T4, all but x (hami)"
    assert Teller().line(pod("p", shape=shape(ask(profile="1g.5gb"), devices=but))) == said


def test_an_adopted_pod_is_told_with_what_it_holds_and_who_said_so(golden: Golden) -> None:
    """When `tail` prints an adoption, the line shows the pod's shares and their source. Later lines
    use the pod's name."""
    teller = Teller()
    held = (share("g0", 3000, 50),)
    data = PodAdopted(
        pod="u1", node="n1", submitted=pod("u1", name="a"), shares=held, evidence="hami.io/x"
    )
    golden({"adopted": teller.line(data), "gone": teller.line(PodGone(uid="u1"))})


def test_a_difference_says_what_each_side_has() -> None:
    """When `tail` prints a difference between ledger and cluster, the line shows what each of them
    has. A missing value reads "nothing"."""
    found = DifferenceFound(kind="gone", name="default/a", ledger="node n1")
    said = "difference (gone): default/a: the ledger has node n1, the cluster has nothing"
    assert Teller().line(found) == said


def test_memory_of_names_is_bounded() -> None:
    """The number of remembered names is bounded, so that memory does not grow with `tail`."""
    teller = Teller()
    for number in range(NAMES_MAX + 1):
        teller.line(placed(f"u{number}"))
    first, second = (teller.line(PodGone(uid=uid)) for uid in ("u0", "u1"))
    assert ("default/" in first, "default/u1" in second) == (False, True)


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (share("g0", 3000, 50), "g0 3,000 MiB 50 %"),
        (share("g0", 3000, 0), "g0 3,000 MiB"),
        (share("g0", 4864, 0, instance=instance("1g.5gb", 6, 1)), "g0 1g.5gb@6"),
        (share("npu0", 6144, 2, template="vir02"), "npu0 vir02"),
    ],
)
def test_shares_in_words(held: object, said: str) -> None:
    """A share is shown by its amounts. On a split device, it is shown by its instance."""
    assert share_words(held) == said  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("family", "unit"), [("nvidia", "38 %"), ("amd", "38 compute units"), ("mthreads", "38 cores")]
)
def test_cores_have_the_unit_of_the_vendor(family: str, unit: str) -> None:
    """The cores of a share are a percentage or a number, as the device catalogue says."""
    held = share("card-1", 1000, 38)
    assert share_words(held, family).endswith(unit)
    assert shares_words([held], {"main": family}).endswith(unit)
    teller = Teller()
    teller.line(pod("u1", ask(1000, cores=12, family=family)))
    assert teller.line(placed("u1", shares=[held])).endswith(unit)


def test_equal_shares_are_said_once(golden: Golden) -> None:
    """Equal shares are shown once with a count; a pod without devices is described as such."""
    whole = [share(f"g{number}", 81_920, 100) for number in range(2)]
    golden({
        "two whole cards": shares_words(whole),
        "and 5 MiB": shares_words([*whole, share("g0", 5, 0)]),
        "six of 1 MiB": shares_words([share(f"g{n}", 1, 0) for n in range(6)]),
        "nothing": shares_words([]),
        "8 cores of an NPU": shares_words([share("NPU-1", 21_527, 8)]),
    })  # fmt: skip


def test_asks_in_words(golden: Golden) -> None:
    """A container's device request is shown as an amount, as a percentage or as a number of whole
    devices."""
    golden({
        "3000 MiB, 30 cores": ask_words(ask(3000, cores=30)),
        "50 percent": ask_words(ask(memory_percent=50)),
        "25 cores": ask_words(ask(cores=25)),
        "two cards": ask_words(cards(2)),
    })  # fmt: skip


def test_split_requests_are_added_up() -> None:
    """The MIG instances of a container are separate asks, but shown as one number. Those of another
    container are not added."""
    of_a, of_b = ask(4000, container="a"), ask(4000, container="b")
    assert [(each.container, each.count) for each in added_up([of_a, of_a, of_b])] == [
        ("a", 2), ("b", 1),
    ]  # fmt: skip


def test_long_lists_are_counted(golden: Golden) -> None:
    """A long list is shortened, with a count of the remaining entries."""
    assert listed(["a", "b"]) == "a, b"
    golden({"seven": listed(list("abcdefg"))})


def test_a_queue_is_told_with_what_it_limits(golden: Golden) -> None:
    """When `tail` prints an event about a queue, the line shows the queue's limits, so that changes
    are visible in the log."""
    queue = QueueObserved(
        queue="ml", weight=3, open=False,
        capability={"cpu": 1500, "volcano.sh/vgpu-number": 4}, cards={"A100": 8},
    )  # fmt: skip
    golden({"limited": Teller().line(queue), "plain": Teller().line(QueueObserved(queue="ml"))})


def test_a_queue_is_told_with_its_place_in_the_tree(golden: Golden) -> None:
    """When `tail` prints an event about a queue, the line shows the queue's parent, and its
    deserved and guaranteed amounts."""
    queue = QueueObserved(
        queue="ml", parent="lab", weight=0, priority=100, reclaimable=False, fifo=True,
        deserved={GPU_MILLI: 2500, "memory": 1 << 53}, cards_deserved={"A100": 4},
        guarantee={"nvidia.com/gpu": 1}, cards_guarantee={"A100": 1},
    )  # fmt: skip
    golden(
        {"tree": Teller().line(queue), "kai": Teller().line(QueueObserved(queue="b", safe_s=60))}
    )
