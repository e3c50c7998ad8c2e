"""Checks that the cluster and the ledger agree.

Invariants checked at every write:
- A pod is bound at most once, and only according to a placement in the ledger.
- The shares of bound pods never overcommit a device.
- The ledger records a binding only after it has happened.
- The ledger withdraws a placement only if the pod is not bound, and releases no running pod.
- If a pod runs on an unknown slice of a MIG device, no other pod is placed on that device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from apportion.core.devices.catalogue import mig_profiles
from apportion.core.ledger.state import NodeState, Phase, State
from apportion.core.workloads.adoption.placement_annotations import (
    ATTEMPT,
    SHARES,
    UID,
    shares_text,
)
from apportion_schemas import (
    AllocationFailed,
    BindFailed,
    DifferenceFound,
    Event,
    PlacementVoided,
    PodAdopted,
    PodBound,
    PodGone,
    PodPlaced,
    Share,
)
from tests.simulation.books import Books
from tests.simulation.kube_users import OURS, UNREADABLE
from tests.support.memory_kube import ENDED, MemoryKube
from tests.support.memory_kube_store import Write

CARDS = "hami.io/vgpu-devices-allocated"
SLICES = "hami.io/vgpu-mig-allocations"
_shares = msgspec.json.Decoder(tuple[Share, ...]).decode
_decode = msgspec.json.Decoder().decode


class Standing(NamedTuple):
    """One pod, as its object in the API server describes it."""

    name: str
    ours: bool
    deleting: bool
    ended: bool
    node: str
    attempt: str
    shares: str
    told_uid: str
    readable: bool
    card: str
    start: int | None


class Judge:
    """Compares one cluster with its ledger, and reports where they disagree."""

    def __init__(self, server: MemoryKube, books: Books, complain: Callable[[str], None]) -> None:
        self._server = server
        self._books = books
        self._complain = complain
        self._pods: dict[str, Standing] = {}
        self._bound: dict[str, tuple[str, str]] = {}
        self._placed: dict[tuple[str, str], PodPlaced] = {}
        self._live: dict[str, tuple[str, int]] = {}
        self._left: set[str] = set()
        self._given_up: set[tuple[str, str]] = set()
        self._by_hand: dict[str, set[str]] = {}
        self._conflicts: set[str] = set()
        self._unallocated: set[str] = set()
        server.store.listen(self._wrote)

    # ------------------------------------------------------------------ the cluster's writes

    def _wrote(self, write: Write) -> None:
        if write.resource != "pods":
            return
        uid = write.object["metadata"]["uid"]
        before = self._pods.pop(uid, None)
        if write.type == "DELETED":
            return
        now = self._pods[uid] = _standing(write.object)
        if before is not None and before.node and before.node != now.node:
            self._complain(f"pod {now.name} is bound to {before.node} and to {now.node}")
        if now.node and (before is None or not before.node):
            self._check_binding(uid, now)
            self._check_devices(now)

    def _check_binding(self, uid: str, now: Standing) -> None:
        """Check that the pod was bound according to its placement, and under its own uid."""
        if not now.attempt:
            return
        self._bound[uid] = self._bound[now.told_uid] = (now.node, now.attempt)
        if now.told_uid != uid:
            self._complain(f"pod {now.name} is bound as {now.told_uid} and is {uid}")
        placed = self._placed.get((now.told_uid, now.attempt))
        said = placed and (placed.node, shares_text(placed.shares))
        if said != (now.node, now.shares):
            self._complain(
                f"pod {now.name} is bound to {now.node} with {now.shares} by attempt "
                f"{now.attempt}, and the ledger has {said}"
            )
        if (now.told_uid, now.attempt) in self._given_up:
            self._complain(f"pod {now.name} is bound by attempt {now.attempt}, which was given up")

    def _check_devices(self, newest: Standing) -> None:
        """Check that the devices of this pod have room for the shares of all bound pods."""
        mine = {share.device for share in _held(newest)}.difference(*self._by_hand.values())
        for device in sorted(mine):
            held = [
                share
                for uid, pod in self._pods.items()
                if pod.node == newest.node and not pod.ended and uid not in self._unallocated
                for share in _held(pod)
                if share.device == device
            ]
            known = self._books.devices[device]
            memory_mib = sum(share.memory_mib for share in held)
            cores = sum(share.cores for share in held)
            if memory_mib > known.memory_mib or cores > known.cores or len(held) > known.slots:
                self._complain(
                    f"device {device} is given out twice in the cluster: {len(held)} shares of "
                    f"{memory_mib} MiB and {cores} %, the last one to pod {newest.name}"
                )

    # ------------------------------------------------------------------ the ledger's events

    def accepted(self, revision: int, event: Event, *, honest: bool) -> None:
        match event.data:
            case PodPlaced() as data:
                self._placed[data.pod, str(data.attempt)] = data
                self._check_slices(revision, data)
                self._live[data.pod] = (data.node, data.attempt)
            case PodAdopted() as data:
                self._live[data.pod] = (data.node, data.attempt)
            case PlacementVoided() as data:
                self._live.pop(data.pod, None)
            case AllocationFailed() as data:
                self._unallocated.add(data.pod)  # its kubelet will not run it
            case DifferenceFound() as data if data.kind == "conflict":
                self._conflicts.add(data.pod)
            case PodGone() as data:
                held = self._live.pop(data.uid, None)
                if event.source.startswith("cli"):
                    self._let_go(data.uid)
                else:
                    self._check_gone(revision, data, held, honest=honest)
        if honest:
            self._check(revision, event.data)

    def _check(self, revision: int, data: Any) -> None:
        """Check an event of a binder or a watcher against the cluster's actual pods."""
        match data:
            case PodBound():
                if self._bound.get(data.pod) != (data.node, str(data.attempt)):
                    self._complain(
                        f"revision {revision}: pod {data.pod} is said to be bound to {data.node}, "
                        f"and the cluster has {self._bound.get(data.pod)}"
                    )
            case BindFailed() if data.final:
                pod = self._pods.get(data.pod)
                if pod is not None and _is_bound(pod, data.node, data.attempt):
                    self._complain(
                        f"revision {revision}: the binding of {data.pod} is given up "
                        f"({data.message}), and it is bound"
                    )
                self._given_up.add((data.pod, str(data.attempt)))
            case PodAdopted() if data.pod in self._left:
                self._complain(f"revision {revision}: {data.pod} is taken back and was gone")

    def slices(self, card: str) -> set[int]:
        """Return the slices of this device on which pods of the cluster are known to run."""
        named = {pod.start for pod in self._running(card) if pod.start is not None}
        for pod in self._pods.values():
            cut = [each.instance for each in _held(pod) if each.device == card and not pod.ended]
            for each in filter(None, cut):
                named.update(range(each.start, each.start + each.size))
        return named

    def _running(self, card: str) -> Iterator[Standing]:
        """Yield the running pods that HAMi bound to this device."""
        return (pod for pod in self._pods.values() if pod.card == card and not pod.ended)

    def _check_slices(self, revision: int, data: PodPlaced) -> None:
        """Report a placement on a device on which a HAMi pod runs on an unknown slice."""
        for uid, pod in self._pods.items():
            on = [share for share in data.shares if share.device == pod.card]
            if on and pod.start is None and not pod.ended and uid in self._live:
                self._complain(
                    f"revision {revision}: {data.pod} is placed on {pod.card}, on any slice of "
                    f"which {pod.name} may run"
                )

    def _offered(self, state: State) -> Iterator[str]:
        """Yield a problem for each HAMi pod that may run on a slice which the ledger counts as
        free."""
        for pod in self._pods.values():
            node = state.nodes.get(pod.node)
            held = node.by_id.get(pod.card) if node else None
            if not pod.card or pod.ended or held is None or not held.present or not held.healthy:
                continue
            starts = mig_profiles(held.device.family, held.device.model)[0].starts
            may = starts if pod.start is None else (pod.start,)
            if free := [start for start in may if not held.slices >> start & 1]:
                yield f"{pod.card} offers slices {free}, and pod {pod.name} may run there"

    def _let_go(self, uid: str) -> None:
        """Note that an operator released this pod, so that other pods may get its devices."""
        if uid in self._pods:
            self._by_hand[uid] = {share.device for share in _held(self._pods[uid])}

    def _check_gone(
        self, revision: int, data: PodGone, held: tuple[str, int] | None, *, honest: bool
    ) -> None:
        pod = self._pods.get(data.uid)
        if pod is None or pod.ended:
            self._left.add(data.uid)
            return
        if not honest:
            return
        if held is not None and _is_bound(pod, *held):
            self._complain(f"revision {revision}: {data.uid} is let go of ({data.reason}) and runs")
        if not pod.node and not pod.deleting:
            self._complain(
                f"revision {revision}: {data.uid} is let go of ({data.reason}) and waits"
            )

    # ------------------------------------------------------------------ once all is quiet

    def differences(self, state: State) -> Iterator[str]:
        for uid, pod in self._pods.items():
            in_conflict = uid in self._by_hand and uid in self._conflicts
            if pod.ours and not in_conflict:
                yield from _pod_differs(uid, pod, state)
        yield from self._offered(state)
        for uid in [*state.pods, *state.rejected]:
            if uid not in self._pods:
                yield f"pod {uid} is in the ledger and not in the cluster"
        nodes = {node["metadata"]["name"]: node for node in self._server.store.all("nodes")}
        for name, about in nodes.items():
            known = state.nodes.get(name)
            ready = {each["type"]: each["status"] for each in about["status"]["conditions"]}
            if known is None or known.observed is None:
                yield f"node {name} is not in the ledger"
            elif known.observed.ready != (ready["Ready"] == "True"):
                yield f"node {name} is said to be {'' if known.observed.ready else 'not '}ready"
            else:
                yield from self._cpu_differs(name, about, known)
        for node in state.nodes.values():
            if node.observed is not None and node.name not in nodes:
                yield f"node {node.name} is in the ledger and not in the cluster"

    def _cpu_differs(self, name: str, about: dict[str, Any], known: NodeState) -> Iterator[str]:
        """Yield a problem if the ledger and the kubelet disagree on a node's free CPU.

        After a resize, the CPU that a kubelet has given to a pod may differ from the pod's spec."""
        running = (
            pod
            for pod in self._server.store.all("pods")
            if pod["spec"].get("nodeName") == name and pod["status"]["phase"] not in ENDED
        )
        free = _milli(about["status"]["allocatable"]["cpu"]) - sum(map(_cpu_milli, running))
        said = known.host.cpu_milli - known.cpu_used_milli
        if said != free:
            yield f"node {name} has {free} milli-cores free, and {said} in the ledger"


def limits_of(pod: dict[str, Any]) -> dict[str, str]:
    limits: dict[str, str] = pod["spec"]["containers"][0]["resources"]["limits"]
    return limits


def _cpu_milli(pod: dict[str, Any]) -> int:
    """Return the larger of the pod's requested CPU and the CPU that its kubelet has given."""
    given = (each["allocatedResources"] for each in pod["status"].get("containerStatuses", ()))
    return max(_milli(each.get("cpu", "0")) for each in (limits_of(pod), *given))


def _milli(cpu: str) -> int:
    return int(cpu[:-1]) if cpu.endswith("m") else 1000 * int(cpu)


def _pod_differs(uid: str, pod: Standing, state: State) -> Iterator[str]:
    known = state.pods.get(uid)
    placed = known.placement if known else None
    if pod.ended or (pod.node and not pod.shares):
        # A manually bound pod without a record of its devices is counted with what it requests.
        asked = not pod.ended and known and known.adopted and placed and placed.node == pod.node
        if known is not None and not asked:
            yield f"pod {pod.name} ({uid}) is not let go of"
    elif pod.node:
        found = placed and (placed.node, shares_text(placed.shares))
        if found != (pod.node, pod.shares):
            yield f"pod {pod.name} ({uid}) is on {pod.node} with {pod.shares}, not on {found}"
    elif pod.deleting:
        if known is not None:
            yield f"pod {pod.name} ({uid}) waits to be deleted and is not let go of"
    elif not pod.readable:
        if uid not in state.rejected:
            yield f"pod {pod.name} ({uid}) cannot be read and is not rejected"
    elif known is None:
        yield f"pod {pod.name} ({uid}) is not submitted"
    elif known.phase in (Phase.BOUND, Phase.ALLOCATED):
        yield f"pod {pod.name} ({uid}) is {known.phase.value} and waits in the cluster"


def _standing(pod: dict[str, Any]) -> Standing:
    meta = pod["metadata"]
    notes = meta.get("annotations") or {}
    ours = pod["spec"]["schedulerName"] in OURS
    return Standing(
        name=meta["name"],
        ours=ours,
        deleting=bool(meta.get("deletionTimestamp")),
        ended=pod["status"]["phase"] in ENDED,
        node=pod["spec"].get("nodeName", ""),
        attempt=notes.get(ATTEMPT, ""),
        shares=notes.get(SHARES, ""),
        told_uid=notes.get(UID, ""),
        readable=not UNREADABLE.items() <= notes.items(),
        card="" if ours else notes.get(CARDS, "").partition(",")[0].partition("[")[0],
        start=None if ours or SLICES not in notes else _start(notes[SLICES]),
    )


def _start(slices: str) -> int:
    return int(_decode(slices)[0]["placement"]["start"])


def _held(pod: Standing) -> tuple[Share, ...]:
    return _shares(pod.shares) if pod.shares else ()


def _is_bound(pod: Standing, node: str, attempt: int) -> bool:
    return (pod.node, pod.attempt) == (node, str(attempt)) and not pod.ended
