"""Tests of the extender that kube-scheduler calls: its answers to filter, score and bind
requests."""

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import msgspec
import pytest

from apportion.core.ledger.fold import Change
from apportion.core.placement.fit_query import FitQuery
from apportion.extender.binding import DECIDED_TIMEOUT_S, ExtenderBinding
from apportion.extender.extender import UNTOLD, Extender, scaled
from apportion.extender.wire import BindingArgs, decode_binding, decode_filter
from apportion.runtime.ledger.port import LedgerUnavailable
from apportion.runtime.ledger.starting import SUBJECT, Choice, Heard
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import (
    BindFailed,
    Configuration,
    ConfigurationChanged,
    PodRefused,
    PodRejected,
    RefusalCode,
)
from tests.support.fleet import rack
from tests.support.golden import Golden
from tests.support.kube_objects import kube_pod, share
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, placed, pod
from tests.support.pods import share as held
from tests.support.polling import until

CHOOSER = "kube-scheduler"
EXTENDED = ConfigurationChanged(
    by="t", configuration=Configuration(extended_scheduler_names=(CHOOSER,))
)


class World(Ledger):
    """An in-memory ledger with an extender. `asked` has the node choices that the extender sent to
    the schedulers."""

    def __init__(self, *payloads: Any, timeout_s: float = 20.0) -> None:
        super().__init__()
        self.asked: list[Choice] = []
        self.away = ""
        self.answer = Heard()
        self.reason = ""
        self.binding = ExtenderBinding(
            lambda: self.state, self._request, timeout_s=timeout_s, again_s=0.05
        )
        self.fit_query = FitQuery(self.state)
        self.extender = Extender(
            lambda: self.state,
            self.fit_query,
            self.binding,
            unready=lambda: self.reason,
            metrics=Metrics(),
        )
        self.play(EXTENDED, *payloads)

    async def _request(self, subject: str, payload: bytes, _timeout_s: float) -> bytes:
        assert subject == SUBJECT
        if self.away:
            raise LedgerUnavailable(self.away)
        self.asked.append(msgspec.json.decode(payload, type=Choice))
        return msgspec.json.encode(self.answer)

    def take(self, data: Any) -> Change:
        """Fold the event, and pass the change to the extender."""
        change = super().take(data)
        self.fit_query.observe(change)
        self.binding.observe(change)
        return change

    def filter(self, of: Any, **nodes: Any) -> Any:
        """Return the extender's answer to a `filter` request."""
        body = json.dumps({"Pod": of, **nodes}).encode()
        return json.loads(self.extender.filtered(decode_filter(body)))

    def failed(self, of: Any, *names: str) -> dict[str, str]:
        """Return each node that the filter rejects, with the reason."""
        found: dict[str, str] = self.filter(of, NodeNames=[*names])["FailedNodes"]
        return found

    def bind(self, node: str = "n1", uid: str = "p") -> asyncio.Task[str]:
        """Start a bind request and return its task. The task's result is the error, or an empty
        string."""
        args = BindingArgs(pod_name=uid, pod_namespace="default", pod_uid=uid, node=node)
        return asyncio.ensure_future(_awaited(self.binding.bind(args)))

    async def chosen(self, count: int = 1) -> None:
        """Wait until the extender has passed `count` node choices to the schedulers."""

        async def there() -> bool:
            return len(self.asked) >= count

        await until(there, "the choice to be heard")


async def _awaited(awaitable: Awaitable[str]) -> str:
    return await awaitable


def wanted(limits: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    """Return a pod in the JSON form in which kube-scheduler sends it to the extender."""
    made = kube_pod("p", share() if limits is None else limits, schedulerName=CHOOSER, **fields)
    made["metadata"] |= {"uid": "p", "namespace": "default"}
    return made


def of_chooser(uid: str = "p") -> Any:
    """Return a ledger event that submits a pod whose node kube-scheduler chooses through the
    extender."""
    return pod(uid, ask(1000), chooser=CHOOSER)


def node_object(name: str) -> dict[str, Any]:
    """Return a Kubernetes node object with more fields than just its name."""
    return {"metadata": {"name": name, "labels": {"a": "b"}}, "status": {"x": [1, 2.50]}}


# ---------------------------------------------------------------- filter and prioritize


def test_nodes_come_back_in_the_form_in_which_they_came() -> None:
    """The extender returns nodes in the form in which it got them: names or unchanged objects. In
    requests, it accepts field names in upper or lower case."""
    world = World(rack("n1"), rack("n2"))
    assert world.filter(wanted(), NodeNames=["n2", "n1"])["NodeNames"] == ["n2", "n1"]
    objects = [node_object(name) for name in ("n1", "n2", "n3")]
    for nodes in ({"Nodes": {"items": objects}}, {"nodes": {"items": objects}, "nodenames": None}):
        answer = world.filter(wanted(), **nodes)
        assert answer["Nodes"]["items"] == objects[:2]
        assert answer["FailedNodes"] == {"n3": UNTOLD}
    assert world.filter(wanted(), NodeNames=[])["NodeNames"] == []


def test_every_node_that_fails_has_words(golden: Golden) -> None:
    """Each rejected node has a reason and is marked unresolvable. Without this mark, kube-scheduler
    would try to evict pods there."""
    world = World(rack("n1", 1), rack("n2", 1))
    answer = world.filter(wanted(share(999_999)), NodeNames=["n1", "n2"])
    assert answer["FailedNodes"].keys() == {"n1", "n2"}
    golden({"999999 MiB": answer["FailedNodes"]["n1"], "n2": answer["FailedNodes"]["n2"]})
    assert answer["FailedAndUnresolvableNodes"] == answer["FailedNodes"]
    assert answer["Error"] == ""


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (wanted(share() | {"nvidia.com/gpumem-percentage": "500"}), "from 1 to 100"),
        (kube_pod("p", share(), schedulerName="else"), "add it to extendedSchedulerNames"),
        ({"metadata": {"name": "p"}, "spec": {"containers": []}}, "spec.containers"),
        ({}, "metadata"),
    ],
)
def test_a_pod_that_cannot_be_read_fits_nowhere_and_says_why(of: Any, words: str) -> None:
    """If a pod is invalid or has an unknown scheduler name, the filter rejects every node with that
    reason."""
    assert words in World(rack("n1")).failed(of, "n1")["n1"]


def test_what_kube_scheduler_minds_is_not_our_business() -> None:
    """The filter ignores volumes, unknown priority classes and scheduling gates, because
    kube-scheduler checks them itself."""
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}
    of = wanted(volumes=[volume], priorityClassName="mine", schedulingGates=[{"name": "g"}])
    assert World(rack("n1")).failed(of, "n1") == {}


def test_a_pod_without_a_device_fits_everywhere() -> None:
    """A pod that requests no devices fits on every node, including nodes without an agent."""
    assert World().failed(wanted({"cpu": "1"}), "n1", "n2") == {}


def test_a_pod_that_has_devices_fits_where_they_are(golden: Golden) -> None:
    """A pod that is already placed fits only on its node. If kube-scheduler lost an answer and
    filters again, the filter returns that node."""
    world = World(rack("n1"), rack("n2"), of_chooser(), placed("p", "n1", [held("n1-g0")]))
    failed = world.failed(wanted(), "n1", "n2")
    assert failed.keys() == {"n2"}
    golden({"on n1": failed["n2"]})


def test_the_score_of_a_used_node_is_higher_under_binpack() -> None:
    """Under binpack, a node with used devices scores higher than an empty one. The lowest score is
    0 and the highest 10."""
    world = World(rack("n1", 1), rack("n2", 1), of_chooser("x"))
    world.play(placed("x", "n2", [held("n2-g0", 20_000)]))
    args = decode_filter(json.dumps({"Pod": wanted(), "NodeNames": ["n1", "n2", "n3"]}).encode())
    scores = json.loads(world.extender.prioritized(args))
    assert scores == [
        {"Host": "n1", "Score": 0}, {"Host": "n2", "Score": 10}, {"Host": "n3", "Score": 0},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("points", "scores"),
    [
        ({}, {}),
        ({"a": 7}, {"a": 10}),
        ({"a": 5, "b": 5}, {"a": 10, "b": 10}),
        ({"a": 0, "b": 1_000_000_000, "c": 500_000_000}, {"a": 0, "b": 10, "c": 5}),
        ({"a": 1, "b": 2}, {"a": 0, "b": 10}),
    ],
)
def test_points_become_scores(points: dict[str, int], scores: dict[str, int]) -> None:
    """The extender scales our points to kube-scheduler's scores from 0 to 10."""
    assert scaled(points) == scores


# ---------------------------------------------------------------- what cannot be read


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"null", b'{"Pod":1,"NodeNames":[]}', b'{"NodeNames":["a"]}', b'{"Pod":{}}',
        b'{"Pod":{},"NodeNames":[1]}', b'{"Pod":{},"NodeNames":[""]}',
        b'{"Pod":{},"Nodes":{"items":[{}]}}', b'{"Pod":{},"Nodes":{"items":{}}}',
        b'{"Pod":{},"NodeNames":' + json.dumps(["n"] * 20_001).encode() + b"}",
    ],
)  # fmt: skip
def test_filter_arguments_that_cannot_be_read_are_an_error(body: bytes) -> None:
    """If the arguments of a filter request are unreadable, the answer is an error, not an empty
    list of nodes."""
    with pytest.raises(msgspec.MsgspecError):
        decode_filter(body)


def test_binding_arguments_are_read_in_either_spelling() -> None:
    """A bind request's field names may be in upper or lower case. A missing or empty field is an
    error."""
    said = {"PodName": "p", "PodNamespace": "d", "PodUID": "u", "Node": "n"}
    lower = {name[0].lower() + name[1:]: value for name, value in said.items()}
    assert decode_binding(json.dumps(said).encode()) == decode_binding(json.dumps(lower).encode())
    for broken in (said | {"Node": ""}, said | {"PodUID": 1}, {"PodName": "p"}):
        with pytest.raises(msgspec.MsgspecError):
            decode_binding(json.dumps(broken).encode())


# ---------------------------------------------------------------- bind


async def test_a_binding_is_done_when_the_ledger_says_so(golden: Golden) -> None:
    """A bind request succeeds once the pod is bound. Being placed is not enough."""
    world = World(rack("n1"), of_chooser())
    binding = world.bind()
    await world.chosen()
    world.play(placed("p", "n1", [held("n1-g0")]))
    await asyncio.sleep(0)
    assert not binding.done()
    world.bound("p")
    assert await binding == ""
    assert set(world.asked) == {Choice(pod="p", node="n1")}
    asked = len(world.asked)
    assert await world.bind() == ""
    elsewhere = await world.bind("n2")
    assert len(world.asked) == asked
    assert "n1" in elsewhere
    golden({"bound to n1": elsewhere})


async def test_a_refusal_is_told_with_its_amounts() -> None:
    """If a scheduler refuses the pod after kube-scheduler's choice, the bind request fails with the
    reason. A refusal from before the choice is ignored."""
    refusal = PodRefused(
        pod="p", namespace="default", name="p", reasons={RefusalCode.DEVICE_CORDONED: 1}, nodes=1
    )
    world = World(rack("n1"), of_chooser(), refusal)
    binding = world.bind()
    await world.chosen()
    await asyncio.sleep(0)
    assert not binding.done()
    world.play(msgspec.structs.replace(refusal, reasons={RefusalCode.DEVICE_UNHEALTHY: 1}))
    assert "device is unhealthy" in await binding


async def test_a_placement_that_comes_to_nothing_is_an_error(golden: Golden) -> None:
    """If a pod's placement is voided, kube-scheduler's bind request fails with the error of the
    binder."""
    world = World(rack("n1"), of_chooser())
    binding = world.bind()
    await world.chosen()
    world.play(placed("p", "n1", [held("n1-g0")]))
    world.play(BindFailed(pod="p", node="n1", attempt=1, message="409", final=True))
    world.voided("p", "409 Conflict")
    golden({"409 Conflict": await binding})


async def test_the_ledger_may_hear_of_the_pod_a_moment_later(golden: Golden) -> None:
    """A bind request waits until the pod is in the ledger. It fails if the pod is deleted."""
    world = World(rack("n1"))
    binding = world.bind()
    await asyncio.sleep(0)
    world.play(of_chooser())
    await world.chosen()
    world.gone("p")
    golden({"gone": await binding})


async def test_who_cannot_be_bound_is_told_why(golden: Golden) -> None:
    """A bind request fails with a reason if the watcher has rejected the pod, if the pod uses our
    own scheduler, or if a scheduler refuses it."""
    rejected = PodRejected(
        uid="r", namespace="default", name="r", field="f", value="v", problem="p", fix="x"
    )
    world = World(rack("n1"), rejected, pod("ours", ask(1000)), of_chooser())
    theirs, ours = await world.bind(uid="r"), await world.bind(uid="ours")
    assert "extendedSchedulerNames" in ours
    golden({"rejected by the watcher": theirs, "of our own scheduler": ours})
    world.answer = Heard(error="what?")
    assert await world.bind() == "what?"


async def test_a_choice_that_nobody_decides_is_handed_over_again(golden: Golden) -> None:
    """If no scheduler decides about a chosen node, the extender sends the choice again. When time
    runs out, the error says that no scheduler accepted it."""
    world = World(rack("n1"), of_chooser(), timeout_s=0.3)
    world.away = "nobody takes it"
    golden({"nobody takes it": await world.bind()})
    binding = world.bind()
    await asyncio.sleep(0)
    world.away = ""
    await world.chosen(2)
    world.play(placed("p", "n1", [held("n1-g0")]))
    world.bound("p")
    assert await binding == ""


async def test_a_binding_that_takes_too_long_is_left_to_the_next_try(golden: Golden) -> None:
    """A bind request that takes too long fails, and a retry can succeed. A second request for the
    same pod at the same time is refused."""
    world = World(rack("n1"), of_chooser(), timeout_s=0.2)
    first, second = world.bind(), world.bind()
    golden({"second request": await second, "first request": await first})
    world.play(placed("p", "n1", [held("n1-g0")]))
    world.bound("p")
    assert await world.bind() == ""


async def test_a_filter_waits_for_the_placement_that_is_being_decided() -> None:
    """A filter request waits until the schedulers have placed or refused all pods with open bind
    requests. It does not wait until those pods are bound."""
    world = World(rack("n1"), of_chooser("p"), of_chooser("q"))
    await asyncio.wait_for(world.binding.decided(), DECIDED_TIMEOUT_S / 2)
    first, second = world.bind(uid="p"), world.bind(uid="q")
    await world.chosen(2)
    waiting = asyncio.ensure_future(_decided(world.binding))
    world.play(placed("p", "n1", [held("n1-g0")]))
    await asyncio.sleep(0)
    assert not waiting.done()
    world.play(placed("q", "n1", [held("n1-g1")]))
    assert await waiting
    assert not first.done()
    for uid, task in (("p", first), ("q", second)):
        world.bound(uid)
        assert await task == ""


async def _decided(binding: ExtenderBinding) -> bool:
    """Wait until every node choice has a decision. Return False on a timeout."""
    began_s = asyncio.get_running_loop().time()
    await binding.decided()
    return asyncio.get_running_loop().time() - began_s < DECIDED_TIMEOUT_S
