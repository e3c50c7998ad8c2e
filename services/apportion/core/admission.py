"""Decide whether the admission webhook admits a pod, and how it changes the pod.

Invariant: a pod that requests none of our devices is rejected only if it has one of our
annotations. It is changed only to hide GPUs from its containers (`overwriteEnv`)."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from apportion.core.grants.controls import PRIORITY
from apportion.core.workloads import kube
from apportion.core.workloads.adoption.placement_annotations import PREFIX
from apportion.core.workloads.dialects import DialectConfig, hami, volcano_vgpu
from apportion.core.workloads.dialects.borrowing import joined
from apportion.core.workloads.dialects.dialect import SLOT, Dialect
from apportion.core.workloads.dialects.listing import (
    claimed,
    count_names,
    families_of,
    parts,
    serves,
)
from apportion.core.workloads.dialects.nvidia import FAMILY as NVIDIA
from apportion.core.workloads.document import ManifestError, cleaned, entries, part, typed, within
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.core.workloads.pods import gangs
from apportion.core.workloads.pods.template import (
    CHECKPOINT,
    NOTICE,
    ManifestConfig,
    containers_of,
    devices_only,
)
from apportion.core.workloads.reading import read_document
from apportion.core.workloads.schedulers import Chooser, SchedulerNames
from apportion_schemas import Ask

IGNORE = "ignore"
# With the value `ignore`; on a namespace, the webhook's selector applies them
SKIP_LABELS = ("hami.io/webhook", "apportion.dev/webhook")
OF_USERS = (gangs.MODELS, CHECKPOINT, NOTICE)  # annotations with our prefix that users set
CREATE, UPDATE = "CREATE", "UPDATE"
_NAMELESS = "pod"

Patch = dict[str, Any]


class Rules(Struct, frozen=True, kw_only=True):
    """The settings of the webhook. Only the user `writer` may set our annotations."""

    config: ManifestConfig = ManifestConfig()
    names: SchedulerNames = SchedulerNames()
    scheduler: str = "apportion"
    writer: str = "system:serviceaccount:apportion:binder"
    overwrite_env: bool = False
    disable_core_limit: bool = False


class Asked(Struct, frozen=True, kw_only=True):
    """An admission request, with the pod's new and old object as undecoded JSON."""

    operation: str
    pod: Any  # the new object
    before: Any = None  # the old object
    namespace: str = "default"
    user: str = ""


class Admitted(Struct, frozen=True):
    """The pod is admitted with these JSON patches (RFC 6902) applied; `why` is a reason code."""

    why: str
    patches: tuple[dict[str, Any], ...] = ()


class Rejected(Struct, frozen=True):
    """The pod is rejected; `error` names the field, the value and the fix."""

    error: ManifestError


def admit(asked: Asked, rules: Rules) -> Admitted | Rejected:
    """Decide whether to admit the pod in this request, and with which changes."""
    try:
        if asked.operation == CREATE:
            return _created(asked, rules)
        if asked.operation == UPDATE and rules.writer != asked.user:
            _refuse_own(asked.before, asked.pod)
    except ManifestError as error:
        return Rejected(error)
    return Admitted("update" if asked.operation == UPDATE else "skipped")


def _refuse_own(before: Any, after: Any, when: str = "") -> None:
    """Raise `ManifestError` if one of our annotations was set or changed.

    Our annotations record a pod's allocation, so a user could mislead other components with them.
    Only the binder's account may write them."""
    was, now = (
        {
            key: value
            for key, value in part(pod, "metadata", "annotations").items()
            if str(key).startswith(PREFIX) and key not in OF_USERS
        }
        for pod in (before, after)
    )
    for key in {**was, **now}:
        if was.get(key) != now.get(key):
            raise ManifestError(
                within("metadata.annotations", key),
                now.get(key),
                f"is set only by Apportion{when}",
                f"restore it to {was[key]}" if key in was else "remove it",
            )


def _created(asked: Asked, rules: Rules) -> Admitted:
    _refuse_own(None, asked.pod, " when it binds the pod")
    metadata, spec = part(asked.pod, "metadata"), part(asked.pod, "spec")
    labels = part(metadata, "labels")
    if any(labels.get(key) == IGNORE for key in SKIP_LABELS):
        return Admitted("skipped")
    named = spec.get("schedulerName")
    chooser = rules.names.chooser(named if isinstance(named, str) else "")
    if chooser is Chooser.OTHERS:
        return Admitted("of another scheduler")
    ours = claimed(rules.config.dialects)
    asks = any(
        not ours.isdisjoint(part(container, "resources", kind))
        for _, container in _containers(spec)
        for kind in ("limits", "requests")
    )
    if chooser is not Chooser.US and not asks:
        return Admitted("no device", tuple(_hidden(spec, rules)))
    # The pod as the watcher will see it; a name that is generated later gets a stand-in.
    name = metadata.get("name") or str(metadata.get("generateName") or "").rstrip("-.") or _NAMELESS
    metadata = {**metadata, "name": name, "namespace": asked.namespace}
    document = {**asked.pod, "apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    if chooser is Chooser.EXTENDED:
        document = devices_only(document)
    clean = cleaned(document)
    (draft,) = read_document(clean, rules.config).pods
    # kube-scheduler would look for the slot resource, which nodes with other plugins lack.
    slots = chooser is not Chooser.EXTENDED
    patches = [*_filled(clean, draft, rules.config.dialects, slots=slots), *_hidden(spec, rules)]
    patches += _environment(spec, draft, rules)
    takes = chooser is Chooser.NOBODY
    if takes:
        patches.insert(0, {"op": "add", "path": "/spec/schedulerName", "value": rules.scheduler})
    return Admitted("taken" if takes else "read", tuple(_joined(patches)))


# Environment variables: `overwriteEnv`, `disableCoreLimit`, the priority, and those of vendors.
#
# If NVIDIA's container runtime is the default, a container that requests no GPU sees all GPUs of
# the node unless `NVIDIA_VISIBLE_DEVICES` is set. HAMi-core limits the cores of a container unless
# `GPU_CORE_UTILIZATION_POLICY` is set. Invariant: privileged containers, and those that get GPUs
# from NVIDIA's plugin or a ResourceClaim, are not changed.

VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
NOTHING: Final = "none"
CORES: Final = "GPU_CORE_UTILIZATION_POLICY"
UNLIMITED: Final = "disable"
_FOREIGN: Final = "nvidia.com/"  # resources of NVIDIA's own device plugin


def _hidden(spec: Mapping[str, Any], rules: Rules) -> Iterator[Patch]:
    """Yield patches that hide GPUs from the containers that request none."""
    ours, dialects = claimed(rules.config.dialects), rules.config.dialects
    for base, container in _containers(spec) if rules.overwrite_env else ():
        resources = part(container, "resources")
        names = {*part(resources, "limits"), *part(resources, "requests")}
        asks = any(
            (name in ours and NVIDIA in families_of((name,), dialects))
            or str(name).startswith(_FOREIGN)
            for name in names
        )
        privileged = part(container, "securityContext").get("privileged") is True
        if not asks and not privileged and not resources.get("claims"):
            yield from _set(container, base, VISIBLE, NOTHING, over=True)


def _environment(spec: Mapping[str, Any], draft: PodDraft, rules: Rules) -> Iterator[Patch]:
    """Yield patches that set environment variables of containers with devices.

    HAMi's webhook sets the priority; HAMi's plugin does not. On nodes without that plugin, our
    agent writes the priority into the region."""
    config, asks = rules.config.dialects, {ask.container: ask for ask in _asks(draft)}
    with_gpus = {ask.container for ask in _asks(draft) if ask.family == NVIDIA}
    priority = config.hami.priority or ""
    for base, container in _containers(spec):
        name, limits = container.get("name"), part(container, "resources", "limits")
        if name in with_gpus and priority in limits:
            yield from _set(container, base, PRIORITY, str(limits[priority]), over=False)
        if ask := asks.get(str(name)):
            for dialect in _dialects_of(draft, ask, config):
                for key, value in dialect.env(ask).items():
                    yield from _set(container, base, key, value, over=False)
        if rules.disable_core_limit and name in with_gpus:
            # It may use any free cores unless its manifest sets a policy.
            yield from _set(container, base, CORES, UNLIMITED, over=False)


def _containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for kind in ("initContainers", "containers"):
        for place, container in entries(spec, kind):
            yield f"/spec/{kind}/{place}", container


def _joined(patches: Iterable[Patch]) -> list[Patch]:
    """Merge patches that add `env` to the same container, because each would overwrite the last."""
    lists: dict[str, Patch] = {}
    found = []
    for patch in patches:
        path = patch["path"]
        if path in lists:
            lists[path]["value"] += patch["value"]
            continue
        if path.endswith("/env"):
            lists[path] = patch
        found.append(patch)
    return found


def _set(
    container: Mapping[str, Any], base: str, name: str, value: str, *, over: bool
) -> Iterator[Patch]:
    entry = {"name": name, "value": value}
    env = container.get("env")
    if not isinstance(env, list) or not env:
        yield {"op": "add", "path": f"{base}/env", "value": [entry]}
        return
    said = [
        at for at, each in enumerate(env) if isinstance(each, dict) and each.get("name") == name
    ]
    if not said:
        yield {"op": "add", "path": f"{base}/env/-", "value": entry}
    for at in said if over else ():
        if env[at] != entry:
            yield {"op": "replace", "path": f"{base}/env/{at}", "value": entry}


# Amounts that containers leave out: HAMi's admission defaults.
#
# They are the amounts that the scheduler reads (`defaultGPUNum`, `defaultMem`, `defaultCores`), so
# a device plugin that sees only resources agrees with it. A pod in plain `nvidia.com/gpu` style is
# left alone, because another amount would put it into another dialect. A container whose dialect
# counts no devices gets a slot, so that the kubelet calls the agent. One NPU of a 910C
# becomes the two of its module. Invariant: a patched pod has the same asks as before.


def _filled(
    clean: dict[str, Any], draft: PodDraft, config: DialectConfig, *, slots: bool
) -> Iterator[Patch]:
    known = {hami.NAME: config.hami, volcano_vgpu.NAME: config.volcano_vgpu}
    wanted = {ask.container: ask for ask in _asks(draft)}
    for container in containers_of(typed(clean, kube.Pod).spec, "spec"):
        said, ask = {*container.limits, *container.requests}, wanted.get(container.name)
        if ask is None:
            continue
        added, raised = dict[str, int](), dict[str, int]()
        dialects = tuple(_dialects_of(draft, ask, config))
        names = next((known[each.name] for each in dialects if each.name in known), None)
        if names is not None:
            if names.count not in said:
                added[names.count] = ask.count
            units, rest = divmod(ask.memory_mib or 0, config.memory_factor)
            if said.isdisjoint((names.memory, names.memory_percent)) and units and not rest:
                added[names.memory] = units
            if names.cores not in said and ask.cores:
                added[names.cores] = ask.cores
        elif slots and said.isdisjoint(count_names(config)):
            added[SLOT] = 1
        for dialect in dialects:
            added |= {key: n for key, n in dialect.fills(ask).items() if key not in said}
            one = (key for key in dialect.raises if str(container.limits.get(key)) == "1")
            raised |= {key: ask.count for key in one if ask.count == dialect.raises[key]}
        # `resources` exists, because the container names a resource.
        base = "/" + container.field.replace("[", "/").replace("]", "").replace(".", "/")
        of_limits, of_requests = (container.limits, added | raised), (container.requests, raised)
        for kind, (listed, those) in (("limits", of_limits), ("requests", of_requests)):
            path, amounts = f"{base}/resources/{kind}", {n: str(v) for n, v in those.items()}
            if amounts and not listed:
                yield {"op": "add", "path": path, "value": amounts}
                continue
            for name, amount in amounts.items():
                pointer = name.replace("~", "~0").replace("/", "~1")  # RFC 6901
                yield {"op": "add", "path": f"{path}/{pointer}", "value": amount}


def _dialects_of(draft: PodDraft, ask: Ask, config: DialectConfig) -> Iterator[Dialect]:
    """Yield the dialects of the pod that have names for devices of the ask's family."""
    for dialect in parts(draft.dialect):
        if serves(dialect, (ask.family,), config):
            yield dialect


def _asks(draft: PodDraft) -> tuple[Ask, ...]:
    """Return the device requests of all containers; those that borrow devices come last."""
    return (*joined(draft.shape.asks), *draft.borrowing)
