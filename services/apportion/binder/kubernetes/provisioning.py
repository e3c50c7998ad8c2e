"""Asks an autoscaler for the nodes of a whole gang, with one ProvisioningRequest.

A gang has a request while its newest refusal has the condition `Unschedulable` (see `pod_events`).
The request lists the pods that the gang lacks, by shape, and these pods have an annotation with
its name: the autoscaler then adds no nodes for each pod by itself. `pod_events` writes a new
condition only after the annotation. If the request fails, the next one follows after a pause.
Requests, annotations and pauses are like those of Kueue.

Invariants: the names are derived from the ledger, so several binders create a request once. Pods
name only requests that exist, and a request is deleted after its pods are freed of it."""

import asyncio
import contextlib
import itertools
import logging
import math
from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from apportion.binder.kubernetes.claims import has_claims
from apportion.core.ledger.fold import Change
from apportion.core.ledger.handlers.gangs import missing
from apportion.core.ledger.moments import SECOND, micros_of
from apportion.core.ledger.state import PENDING, PodState, State
from apportion.core.placement.feasibility.causes import of_no_node
from apportion.core.workloads.adoption.placement_annotations import PREFIX
from apportion.runtime.kube.client import (
    CONFLICT,
    MERGE_PATCH,
    NOT_FOUND,
    KubeApi,
    KubeRefused,
    KubeUnavailable,
    pod_path,
)
from apportion.runtime.kube.watch import Discovery
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.process.clock import BackOff, Clock
from apportion_schemas import PodConstraints, PodGroupGone, PodGroupObserved, PodRefused
from apportion_schemas.decoding import from_outside

API: Final = "autoscaling.x-k8s.io"
KIND: Final = "provisioningrequests"
VERSIONS: Final = ("v1", "v1beta1")  # with the same fields
CONSUMES: Final = f"{API}/consume-provisioning-request"
CLASS: Final = f"{API}/provisioning-class-name"
GANG: Final = f"{PREFIX}gang"  # a label without a value, and an annotation with the gang's name
KUEUE: Final = "kueue.x-k8s.io/"
OURS: Final = "apportion-"
ENDED: Final = ("Failed", "BookingExpired", "CapacityRevoked")
LOOK_S: Final = 10.0  # the autoscaler's own interval
SOON_S: Final = 0.5  # the pods of a gang are refused at the same time
HOLD_S: Final = 30.0  # how long a refused pod may wait for its annotation
AGAIN_S: Final = 300.0  # interval of attempts while the API server refuses
BACK_OFF: Final = BackOff(60.0, 1_800.0)  # Kueue's defaults: pauses between requests of a gang
ATTEMPTS_MAX: Final = 4  # Kueue's default: a request, and 3 more if it fails
GANGS_MAX: Final = 10  # requests of one namespace; the autoscaler handles one in each of its loops
SETS_MAX: Final = 32  # limit of `spec.podSets`
NAME_MAX: Final = 200  # of 253, less prefix, digest, and the numbers of attempt and template
# the fields on which it depends where a pod fits: a template needs no commands and no variables
POD_FIELDS: Final = (
    "affinity", "hostNetwork", "nodeSelector", "overhead", "resources", "tolerations",
    "topologySpreadConstraints",
)  # fmt: skip
CONTAINER_FIELDS: Final = ("image", "name", "ports", "restartPolicy")
FORBIDDEN: Final = 403
FIXES: Final = {
    FORBIDDEN: (
        "if the permission is missing, set binder.provisioning.enabled of the chart; else correct "
        "what refuses it, such as a quota"
    ),
    NOT_FOUND: "install the CRD of Cluster Autoscaler",
}
REFUSALS: Final = (KubeRefused, msgspec.DecodeError)  # of one object

_log = logging.getLogger(__name__)


class _Owner(Struct, frozen=True, rename="camel", omit_defaults=True):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None


class _Meta(Struct, frozen=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[_Owner, ...] | None = None


class _Pod(Struct, frozen=True):
    metadata: _Meta = _Meta()
    spec: dict[str, Any] = {}

    @property
    def consumes(self) -> str:
        """Return the request that the pod names; `KUEUE` if Kueue requests its nodes; or empty."""
        notes = self.metadata.annotations or {}
        names = (*notes, *(self.metadata.labels or ()))
        managed = any(name.startswith(KUEUE) for name in names)
        return notes.get(CONSUMES, KUEUE if managed else "")

    @property
    def owner(self) -> _Owner:
        """Return the pod's controller, or the pod if it has none."""
        for each in self.metadata.owner_references or ():
            if each.controller:
                return msgspec.structs.replace(each, controller=None)
        return _Owner("v1", "Pod", self.metadata.name, self.metadata.uid)

    def template(self, claims: frozenset[str]) -> dict[str, Any]:
        """Return a template with what decides where the pod fits, and with these volume claims."""
        spec: dict[str, Any] = {
            field: self.spec[field] for field in POD_FIELDS if field in self.spec
        }
        for part in ("initContainers", "containers"):
            spec[part] = [
                {field: each[field] for field in CONTAINER_FIELDS if field in each}
                | {"resources": {**each.get("resources", {}), "claims": []}}
                for each in self.spec.get(part) or ()
            ]
        spec["volumes"] = [
            volume
            for volume in self.spec.get("volumes") or ()
            if volume.get("persistentVolumeClaim", {}).get("claimName") in claims
        ]
        return {"metadata": {"labels": self.metadata.labels or {}}, "spec": spec}


class _Spec(Struct, frozen=True, rename="camel"):
    pod_sets: tuple[msgspec.Raw, ...] = ()


class _Condition(Struct, frozen=True, rename="camel"):
    type: str
    status: str
    last_transition_time: str | None = None


class _Status(Struct, frozen=True):
    conditions: tuple[_Condition, ...] | None = None


class _Request(Struct, frozen=True):
    metadata: _Meta
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def full_name(self) -> str:
        """Return the request's namespace and name."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def gang(self) -> str:
        """Return the gang in the request's namespace that it is for, or an empty string."""
        gang = (self.metadata.annotations or {}).get(GANG, "")
        return gang if gang.startswith(f"{self.metadata.namespace}/") else ""

    @property
    def ended(self) -> int | None:
        """Return when the request failed or expired, in microseconds since 1970; else None."""
        for each in self.status.conditions or ():
            if each.type in ENDED and each.status == "True":
                return micros_of(each.last_transition_time or "") or 0
        return None


class _Requests(Struct, frozen=True):
    items: tuple[_Request, ...] | None = None


class _Demand(NamedTuple):
    """The pods that a gang lacks, by template; `name` is the request's name without its attempt."""

    gang: str
    namespace: str
    since: int
    name: str
    sets: list[list[PodState]]

    @property
    def key(self) -> str:
        """Return the name with its namespace."""
        return f"{self.namespace}/{self.name}"


_decode_pod = from_outside(msgspec.json.Decoder(_Pod).decode)
_decode_requests = from_outside(msgspec.json.Decoder(_Requests).decode)


class _Annotations:
    """Reads and writes the annotations that name a request."""

    def __init__(self, api: KubeApi, provisioning_class: str) -> None:
        self._api = api
        self._class = provisioning_class
        self.named: dict[str, str] = {}  # what each pod consumes, by uid

    async def read(self, pod: PodState) -> _Pod | None:
        """Return the pod as the API server has it, or None if it is gone."""
        body = await self._api.find(pod_path(pod.submitted.namespace, pod.submitted.name))
        read = _decode_pod(body) if body is not None else _Pod()
        if read.metadata.uid != pod.uid:
            return None
        self.named[pod.uid] = read.consumes
        return read

    async def _write(self, pod: PodState, name: str) -> None:
        """Name the request in the pod's annotations, or no request if `name` is empty."""
        notes = {CONSUMES: name or None, CLASS: self._class if name else None}
        body = {"metadata": {"uid": pod.uid, "annotations": notes}}
        path = f"{pod_path(pod.submitted.namespace, pod.submitted.name)}/status"
        try:
            await self._api.change("PATCH", path, body, content_type=MERGE_PATCH)
        except KubeRefused as error:
            if error.status != NOT_FOUND:
                raise
        self.named[pod.uid] = name

    async def release(self, pods: Iterable[PodState], name: str) -> None:
        """Remove the annotation from those of the pods that name this request."""
        for pod in pods:
            # Another program may have changed the annotation since.
            if self.named.get(pod.uid, name) == name:
                read = await self.read(pod)
                if read is not None and read.consumes == name:
                    await self._write(pod, "")

    async def name(self, demand: _Demand, name: str) -> None:
        """Name the request in annotations of the gang's pods that consume no other request."""
        for pod in itertools.chain(*demand.sets):
            if pod.uid not in self.named:
                await self.read(pod)
            said = self.named.get(pod.uid, name)
            if said != name and _ours(said):
                await self._write(pod, name)


class Provisioning:
    """Keeps one ProvisioningRequest for each gang that new nodes would help."""

    def __init__(self, api: KubeApi, state: State, clock: Clock, provisioning_class: str) -> None:
        self._api = api
        self._state = state
        self._clock = clock
        self._class = provisioning_class
        self._discovery = Discovery(api, clock, (API,))
        self._gangs: dict[str, _Demand | None] = {}  # of those that may need a request
        self._touched: dict[str, None] = {}  # gangs whose demand may have changed
        self._kept: set[str] = set()  # gangs without a demand whose request is not deleted yet
        self._open = True  # requests of ours may exist
        self._version = ""  # of the API, as the server has it
        self._news = asyncio.Event()
        self._notes = _Annotations(api, provisioning_class)
        self._alive: set[str] = set()  # requests that exist, with their namespace
        self._later: dict[str, float] = {}  # when a demand is tried again, by name
        self._warned: set[int] = set()
        self._held: dict[str, dict[str, float]] = {}  # by gang: pods by uid, each with a deadline
        self._off = False  # the API server refuses to list requests
        self._looking = False  # the annotations of a large gang take longer than HOLD_S

    def observe(self, change: Change) -> None:
        """Record a change of the fold. Pass this method to the reader."""
        data = change.data
        pods = [pod for pod in (change.pod, change.before) if pod is not None]
        gangs = [pod.submitted.group for pod in pods]
        if isinstance(data, PodRefused) and change.pod is not None and gangs[0]:
            if self._hold(change.pod) or gangs[0] not in self._gangs:
                self._news.set()
            self._gangs.setdefault(gangs[0])
        elif isinstance(data, PodGroupObserved | PodGroupGone):
            gangs.append(data.group)
        for gang in gangs:
            if gang in self._gangs:
                self._touched[gang] = None

    def _hold(self, pod: PodState) -> bool:
        """Hold a refused pod, unless it consumes a request or requests are refused."""
        if self._off or self._notes.named.get(pod.uid):
            return False
        until_s = self._clock.monotonic() + HOLD_S
        self._held.setdefault(pod.submitted.group, {}).setdefault(pod.uid, until_s)
        return True

    def holds(self, uid: str) -> bool:
        """Return True if a refused pod may soon name a request.

        Until then, the autoscaler must not see that it is `Unschedulable`."""
        pod = self._state.pods.get(uid)
        held = self._held.get(pod.submitted.group, {}) if pod is not None else {}
        return uid in held and (self._looking or self._clock.monotonic() < held[uid])

    async def run(self, reader: Reader[Change]) -> None:
        """Keep the requests up to date until cancelled."""
        for pod in self._state.pods.values():
            if pod.phase is PENDING and pod.refusal is not None and pod.submitted.group:
                self._hold(pod)
        await reader.caught_up()
        self._gangs |= dict.fromkeys(self._state.groups)
        self._touched |= dict.fromkeys(self._gangs)
        while True:
            self._news.clear()
            self._looking = True
            try:
                await self.look()
                self._off = False
            except (KubeUnavailable, *REFUSALS) as error:
                if not self._report(error, "gangs"):
                    self._version = ""
                    self._off = True
                    self._held.clear()
            self._looking = False
            await self._clock.pause(SOON_S)
            if self._off:
                await self._clock.pause(AGAIN_S)
            elif self._gangs or self._open:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S - SOON_S):
                        await self._news.wait()
            else:
                await self._news.wait()

    async def look(self) -> None:
        """Create and delete requests once. Raises KubeRefused and KubeUnavailable."""
        wanted = self._wanted()
        asking = {demand.gang for demand in wanted.values()}
        self._held = {gang: pods for gang, pods in self._held.items() if gang in asking}
        if not (wanted or self._open):
            return
        found = await self._found()
        if found is None:
            return
        self._open = True  # also if an error ends this method
        left = known = frozenset(self._alive)
        chosen = self._chosen(wanted, found)
        for gang in asking - {demand.gang for demand in chosen}:
            self._held.pop(gang, None)
        later = {each.gang for each in chosen if not await self._serve(each, found)}
        self._kept.clear()
        for key in found.keys() - wanted.keys():
            for request in found[key].values():
                if self._is_kept(request):
                    self._kept.add(request.gang)
                    left -= {request.full_name}
                elif request.gang not in later:
                    await self._remove(request)
        self._open = await self._forget() or bool(left | (self._alive - known))
        self._later = {key: at_s for key, at_s in self._later.items() if key in wanted}

    def _wanted(self) -> dict[str, _Demand]:
        """Return the demands by key, and compute those of gangs that have changed."""
        touched, self._touched = self._touched, {}
        for gang in touched:
            group = self._state.groups.get(gang)
            if group is None or all(pod.phase is not PENDING for pod in group.pods.values()):
                del self._gangs[gang]
            else:
                self._gangs[gang] = demand_of(self._state, gang, self._class)
            self._open |= gang in self._kept
        nominated = _nominated(self._state)
        demands = [each for each in self._gangs.values() if each and each.gang not in nominated]
        return {demand.key: demand for demand in demands}

    def _chosen(
        self, wanted: dict[str, _Demand], found: dict[str, dict[int, _Request]]
    ) -> list[_Demand]:
        """Return the demands that have a request, then the oldest ones up to the limit."""
        chosen = [demand for key, demand in wanted.items() if key in found]
        count: Counter[str] = Counter()
        for demand in chosen:
            last = max(found[demand.key])
            if last < ATTEMPTS_MAX or found[demand.key][last].ended is None:
                count[demand.namespace] += 1  # the autoscaler handles this request
        for demand in sorted(wanted.values(), key=lambda each: (each.since, each.gang)):
            if demand.key not in found and count[demand.namespace] < GANGS_MAX:
                count[demand.namespace] += 1
                chosen.append(demand)
        return chosen

    def _is_kept(self, request: _Request) -> bool:
        """Return True if a request stays, although its gang has no demand at the moment.

        An ended request counts the attempts. The gang of another one may be placed soon."""
        group = self._state.groups.get(request.gang)
        if group is None or group.observed is None or not group.together:
            return False
        if self._gangs.get(request.gang) and request.gang not in _nominated(self._state):
            return False  # it has another request now
        pending = any(pod.phase is PENDING for pod in group.pods.values())
        soon = bool(group.held) or request.gang in _nominated(self._state)
        return pending and (soon or request.ended is not None)

    async def _serve(self, planned: _Demand, found: dict[str, dict[int, _Request]]) -> bool:
        """Keep the gang's request. Return False if the next attempt may succeed."""
        demand = demand_of(self._state, planned.gang, self._class)
        if demand is None or demand.key != planned.key or demand.gang in _nominated(self._state):
            return False  # changed while the API server handled the requests of other gangs
        held = tuple(self._held.get(demand.gang, ()))
        try:
            await self._keep(demand, found.get(demand.key, {}))
        except REFUSALS as error:
            if self._report(error, f"gang {demand.gang}"):
                return False
            self._later[demand.key] = self._clock.monotonic() + AGAIN_S
        for uid in held:
            self._held.get(demand.gang, {}).pop(uid, None)
        return True

    async def _forget(self) -> bool:
        """Forget pods that are gone, and free the others of requests that do not exist.

        Return True if there were any such requests."""
        found = False
        for uid, name in tuple(self._notes.named.items()):
            pod = self._state.pods.get(uid)
            if pod is None or pod.phase is not PENDING:
                del self._notes.named[uid]
            elif _ours(name) and name and f"{pod.submitted.namespace}/{name}" not in self._alive:
                found = True
                try:
                    await self._notes.release((pod,), name)
                except REFUSALS as error:
                    self._report(error, f"gang {pod.submitted.group}")
        return found

    async def _found(self) -> dict[str, dict[int, _Request]] | None:
        """Return our requests by key and attempt; None if the server is not known yet."""
        if not self._version:
            await self._discovery.look()
            served = self._discovery.versions(API, KIND)
            if served is None:
                return None  # the server has not answered yet
            self._version = next((each for each in VERSIONS if each in served), "")
            if not self._version:
                raise KubeRefused(NOT_FOUND, "", f"this cluster does not serve {KIND}.{API}")
        body = await self._api.get(f"/apis/{API}/{self._version}/{KIND}", {"labelSelector": GANG})
        found: dict[str, dict[int, _Request]] = {}
        self._alive.clear()
        for request in _decode_requests(body).items or ():
            meta = request.metadata
            name, _, attempt = meta.name.rpartition("-")
            if GANG in (meta.labels or {}) and name.startswith(OURS) and attempt.isdecimal():
                found.setdefault(f"{meta.namespace}/{name}", {})[int(attempt)] = request
                self._alive.add(request.full_name)
        return found

    async def _keep(self, demand: _Demand, found: dict[int, _Request]) -> None:
        """Create the gang's request, or the next one after a failure, and annotate its pods."""
        attempt = max(found, default=0)
        due = self._is_due(demand, found.get(attempt), attempt)
        if due and await self._create(demand, f"{demand.name}-{attempt + 1}"):
            attempt += 1
        if attempt:
            await self._notes.name(demand, f"{demand.name}-{attempt}")
        for request in found.values():
            if request.metadata.name != f"{demand.name}-{attempt}":
                await self._remove(request)

    def _is_due(self, demand: _Demand, last: _Request | None, attempt: int) -> bool:
        """Return True if the gang gets its next request now."""
        if self._clock.monotonic() < self._later.get(demand.key, -math.inf):
            return False
        if last is None:
            return True
        if last.ended is None or attempt >= ATTEMPTS_MAX:
            return False
        next_us = last.ended + int(BACK_OFF.after(attempt) * SECOND)
        return self._clock.now().timestamp() * SECOND >= next_us

    async def _create(self, demand: _Demand, name: str) -> bool:
        """Create the request and its templates. Return False if the gang gets none now."""
        if len(demand.sets) > SETS_MAX:
            said = f"its pods have {len(demand.sets)} shapes, more than the {SETS_MAX} of a request"
            self._later[demand.key] = math.inf
            self._report(ValueError(said), f"gang {demand.gang}")
            return False
        owners: dict[str, _Owner] = {}
        templates: list[dict[str, Any]] = []
        for pods in demand.sets:
            read = [each for pod in pods if (each := await self._notes.read(pod)) is not None]
            if len(read) < len(pods):
                return False  # the ledger has yet to learn that a pod is gone
            if any(not _ours(each.consumes) for each in read):
                self._later[demand.key] = math.inf
                return False
            pod = read[0]
            owners[pod.owner.uid] = pod.owner
            claims = frozenset.intersection(*(frozenset(p.submitted.volume_claims) for p in pods))
            templates.append(pod.template(claims))
        meta = {
            "namespace": demand.namespace,
            "labels": {GANG: ""},
            "annotations": {GANG: demand.gang},
            "ownerReferences": list(owners.values()),
        }
        sets = [
            {"podTemplateRef": {"name": f"{name}-{at}"}, "count": len(pods)}
            for at, pods in enumerate(demand.sets)
        ]
        spec = {"provisioningClassName": self._class, "podSets": sets}
        within, api = f"namespaces/{demand.namespace}", f"{API}/{self._version}"
        there, requests = f"/api/v1/{within}/podtemplates", f"/apis/{api}/{within}/{KIND}"
        created: list[str] = []
        try:
            # The autoscaler fails a request without its templates, so these are created first.
            for at, template in enumerate(templates):
                made = {"metadata": {**meta, "name": f"{name}-{at}"}, "template": template}
                if await _have(self._api, there, "v1", "PodTemplate", made):
                    created.append(f"{there}/{name}-{at}")
            made = {"metadata": {**meta, "name": name}, "spec": spec}
            await _have(self._api, requests, api, "ProvisioningRequest", made)
        except KubeRefused as error:
            # A quota refuses also what another binder has created already.
            if not _passing(error) and await self._api.find(f"{requests}/{name}") is None:
                for path in created:
                    await self._api.request("DELETE", path)
            raise
        self._alive.add(f"{demand.namespace}/{name}")
        self._warned.clear()
        _log.info("ProvisioningRequest %s created for gang %s", name, demand.gang)
        return True

    async def _remove(self, request: _Request) -> None:
        """Delete a request with its templates, and the annotations that name it."""
        meta = request.metadata
        group = self._state.groups.get(request.gang)
        pods = () if group is None else tuple(group.pods.values())
        within = f"namespaces/{meta.namespace}"
        itself = f"/apis/{API}/{self._version}/{within}/{KIND}/{meta.name}"
        templates = [
            f"/api/v1/{within}/podtemplates/{meta.name}-{at}"
            for at in range(len(request.spec.pod_sets))
        ]
        try:
            # Without a request, the autoscaler may add a node for each pod.
            await self._notes.release((pod for pod in pods if pod.phase is PENDING), meta.name)
            # Templates that stay after an interruption are deleted with the controller of the pods.
            for path in (itself, *templates):
                answer = await self._api.request("DELETE", path)
                if not answer.ok and answer.status != NOT_FOUND:
                    raise answer.refusal()
                self._alive.discard(request.full_name)
        except REFUSALS as error:
            self._report(error, f"gang {request.gang}")

    def _report(self, error: Exception, whose: str) -> bool:
        """Log an error. Return True if the next attempt may succeed.

        A refusal is logged once for each status, until a request is created."""
        if isinstance(error, KubeUnavailable) or _passing(error):
            _log.info("ProvisioningRequests not updated (%s), retrying: %s", whose, error)
            return True
        status = error.status if isinstance(error, KubeRefused) else 0
        if status not in self._warned:
            self._warned.add(status)
            fix = FIXES.get(status, "correct this")
            said = "no ProvisioningRequest for %s: %s; %s, or start the binder without %s"
            _log.warning(said, whose, error, fix, "--provisioning-class")
        return False


async def _have(
    api: KubeApi, path: str, version: str, kind: str, document: dict[str, Any]
) -> bool:  # fmt: skip
    """Create an object. Return False if another binder has, in the meantime or before.

    Raises KubeRefused and KubeUnavailable."""
    try:
        await api.change("POST", path, {"apiVersion": version, "kind": kind, **document})
    except KubeRefused as error:
        if error.reason != "AlreadyExists":
            raise
        return False
    return True


def _nominated(state: State) -> set[str]:
    """Return the gangs for which other pods are evicted."""
    return {state.pods[uid].submitted.group for uid in state.nominated}


def _ours(consumed: str) -> bool:
    return not consumed or consumed.startswith(OURS)


def _passing(error: Exception) -> bool:
    # a conflict: the object, or the quota that counts it, has changed at the same time
    return isinstance(error, KubeRefused) and (error.passing or error.status == CONFLICT)


def _selecting(wishes: list[PodConstraints]) -> list[str]:
    """Return the names of the labels by which these constraints select pods."""
    selectors = [
        each
        for one in dict.fromkeys(wishes)
        for each in (
            *(term.pods for term in (*one.affinity, *one.anti_affinity)),
            *(preferred.term.pods for preferred in one.preferred),
            *(spread.pods for spread in one.spread),
        )
    ]
    return sorted({each.key for selector in selectors for each in selector.expressions})


def demand_of(state: State, gang: str, provisioning_class: str) -> _Demand | None:
    """Return which pods of a gang need new nodes to start, or None if new nodes would not help."""
    group = state.groups.get(gang)
    if group is None:
        return None
    tasks, others = missing(group)
    waiting = [pod for pod in group.pods.values() if pod.phase is PENDING and not pod.terminating]
    waiting.sort(key=lambda pod: (pod.submitted_revision, pod.uid))
    refusals = [(pod.refused_revision, pod.refusal) for pod in waiting if pod.refusal is not None]
    if not group.together or group.observed is None or group.held or not refusals:
        return None  # `held`: its pods are placed in several batches
    if of_no_node(max(refusals, key=lambda each: each[0])[1]) is not None:
        return None
    if any(pod.submitted.chooser or has_claims(pod.submitted) for pod in waiting):
        return None
    names = _selecting([pod.submitted.shape.pods for pod in waiting])
    sets: dict[bytes, list[PodState]] = {}
    for pod in waiting:
        task = pod.submitted.task
        if tasks[task] > 0:
            tasks[task] -= 1
        elif others > 0:
            others -= 1
        else:
            continue
        labels = [(name, pod.submitted.labels.get(name)) for name in names]
        key = pod.shape_key + (msgspec.json.encode(labels) if labels else b"")
        sets.setdefault(key, []).append(pod)
    if not sets or others or +tasks:
        return None
    digest = sha256(f"{gang} {group.since} {provisioning_class}".encode())
    for key in sorted(sets):
        digest.update(b" %d " % len(sets[key]) + key)
    namespace, *_, leaf = gang.split("/")
    name = f"{OURS}{leaf.replace('.', '-')[:NAME_MAX]}-{digest.hexdigest()[:12]}"
    return _Demand(gang, namespace, group.since, name, [sets[key] for key in sorted(sets)])
