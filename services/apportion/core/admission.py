"""Admission, pure: `admit` is the whole of what the webhook decides; the service `admission` calls
it over the wire. It takes one request about one pod and says what becomes of it.

In order: our own annotations are nobody's to write; what is labelled to be skipped and what another
scheduler places is left alone; a pod that asks for a device and names no scheduler gets ours; a pod
that we, or an extended kube-scheduler, will place is read as the watcher will read it, and is
rejected where that fails; what it leaves out is filled in.

Invariant: a pod that is no business of ours goes through, whatever it holds; and unchanged, but for
GPUs that are hidden from it where the configuration says so."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from apportion.core.workloads import kube
from apportion.core.workloads.adoption.placement_annotations import PREFIX
from apportion.core.workloads.dialects import DialectConfig, hami, volcano_vgpu
from apportion.core.workloads.dialects.borrowing import joined
from apportion.core.workloads.dialects.dialect import SLOT
from apportion.core.workloads.dialects.listing import claimed, count_names, families_of
from apportion.core.workloads.dialects.nvidia import FAMILY as NVIDIA
from apportion.core.workloads.document import ManifestError, cleaned, entries, part, typed, within
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.core.workloads.pods.template import ManifestConfig, containers_of, devices_only
from apportion.core.workloads.reading import read_document
from apportion.core.workloads.schedulers import Chooser, SchedulerNames
from apportion_schemas import Ask

IGNORE = "ignore"
SKIP_LABELS = ("hami.io/webhook", "apportion.dev/webhook")
"""With the value `ignore`, on a pod; on a namespace the webhook's selector minds them."""
CREATE, UPDATE = "CREATE", "UPDATE"
_NAMELESS = "pod"

Patch = dict[str, Any]


class Rules(Struct, frozen=True, kw_only=True):
    """What pods are judged by. `scheduler` is the name that is filled in; `writer` is the one user
    who may write our annotations. `overwrite_env` and `disable_core_limit` are the keys of the
    configuration."""

    config: ManifestConfig = ManifestConfig()
    names: SchedulerNames = SchedulerNames()
    scheduler: str = "apportion"
    writer: str = "system:serviceaccount:apportion:binder"
    overwrite_env: bool = False
    disable_core_limit: bool = False


class Asked(Struct, frozen=True, kw_only=True):
    """One request: `pod` and `before` are documents; `namespace` and `user` are the request's."""

    operation: str
    pod: Any
    before: Any = None
    namespace: str = "default"
    user: str = ""


class Admitted(Struct, frozen=True):
    """The pod goes through, with these JSON patches (RFC 6902); `why` names the case."""

    why: str
    patches: tuple[dict[str, Any], ...] = ()


class Rejected(Struct, frozen=True):
    """The pod does not go through; the error names the field, the value and the fix."""

    error: ManifestError


def admit(asked: Asked, rules: Rules) -> Admitted | Rejected:
    """What becomes of the request."""
    try:
        if asked.operation == CREATE:
            return _created(asked, rules)
        if asked.operation == UPDATE and rules.writer != asked.user:
            _refuse_own(asked.before, asked.pod)
    except ManifestError as error:
        return Rejected(error)
    return Admitted("update" if asked.operation == UPDATE else "not looked at")


def _refuse_own(before: Any, after: Any, when: str = "") -> None:
    """Refuse a pod in which one of our annotations is added, rewritten or removed.

    They say what a pod holds, so a person could mislead others with them. Invariant: a pod is never
    created with one, and only our binder's account changes one.

    Raises ManifestError: names the annotation."""
    was, now = (
        {
            key: value
            for key, value in part(pod, "metadata", "annotations").items()
            if str(key).startswith(PREFIX)
        }
        for pod in (before, after)
    )
    for key in {**was, **now}:
        if was.get(key) != now.get(key):
            raise ManifestError(
                within("metadata.annotations", key),
                now.get(key),
                f"is written by Apportion alone{when}",
                f"leave it as it was: {was[key]}" if key in was else "remove it",
            )


def _created(asked: Asked, rules: Rules) -> Admitted:
    _refuse_own(None, asked.pod, ", when the pod is bound")
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
    # The pod as the watcher will see it, with a stand-in for a name that is yet to be made.
    name = metadata.get("name") or str(metadata.get("generateName") or "").rstrip("-.") or _NAMELESS
    metadata = {**metadata, "name": name, "namespace": asked.namespace}
    document = {**asked.pod, "apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    if chooser is Chooser.EXTENDED:
        document = devices_only(document)
    clean = cleaned(document)
    (draft,) = read_document(clean, rules.config).pods
    # A kube-scheduler gets no slots: it may miss them where others plug in.
    slots = chooser is not Chooser.EXTENDED
    patches = [*_filled(clean, draft, rules.config.dialects, slots=slots), *_hidden(spec, rules)]
    if rules.disable_core_limit:
        # Containers that ask for GPUs use any cores that are free, unless they say otherwise.
        names = {ask.container for ask in _asks(draft) if ask.family == NVIDIA}
        for base, container in _containers(spec):
            if container.get("name") in names:
                patches += _set(container, base, CORES, UNLIMITED, over=False)
    takes = chooser is Chooser.NOBODY
    if takes:
        patches.insert(0, {"op": "add", "path": "/spec/schedulerName", "value": rules.scheduler})
    return Admitted("taken" if takes else "read", tuple(patches))


# What the environment of containers says of GPUs: `overwriteEnv` and `disableCoreLimit`.
#
# A container runtime that is NVIDIA's by default shows all GPUs of the node to a container that
# asks for none, unless `NVIDIA_VISIBLE_DEVICES` says otherwise; HAMi-core holds a container to
# its cores unless `GPU_CORE_UTILIZATION_POLICY` does. Invariant: a container that may do anything
# anyhow, or that gets its GPUs in a way that is not ours, is left as it is.

VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
NOTHING: Final = "none"
CORES: Final = "GPU_CORE_UTILIZATION_POLICY"
UNLIMITED: Final = "disable"
_FOREIGN: Final = "nvidia.com/"
"""Resources of NVIDIA's own plugin; a container that asks for one has GPUs of it."""


def _hidden(spec: Mapping[str, Any], rules: Rules) -> Iterator[Patch]:
    """Hides the node's GPUs from containers that ask for none, whatever they themselves say."""
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


def _containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for kind in ("initContainers", "containers"):
        for place, container in entries(spec, kind):
            yield f"/spec/{kind}/{place}", container


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


# What is filled in where a container leaves it out: HAMi's admission defaults.
#
# The amounts are those that reading the container gives (`defaultGPUNum`, `defaultMem`,
# `defaultCores`), so a device plugin that only sees resources sees what was decided on. A pod in
# the plain names alone is left as it is: another amount beside them would make it a pod of
# another dialect. A container whose dialect counts no devices gets a slot, so that its kubelet
# asks the agent about it. Invariant: a pod that is filled in reads to the same asks as before.


def _filled(
    clean: dict[str, Any], draft: PodDraft, config: DialectConfig, *, slots: bool
) -> Iterator[Patch]:
    """JSON patches that add the amounts which containers lack; `slots` among them, or not."""
    names = {hami.NAME: config.hami, volcano_vgpu.NAME: config.volcano_vgpu}.get(draft.dialect)
    wanted = {ask.container: ask for ask in _asks(draft)}
    for container in containers_of(typed(clean, kube.Pod).spec, "spec"):
        said, ask = {*container.limits, *container.requests}, wanted.get(container.name)
        if ask is None:
            continue
        added: dict[str, int] = {}
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
        # The container names a resource, so it has `resources`.
        base = "/" + container.field.replace("[", "/").replace("]", "").replace(".", "/")
        path, amounts = f"{base}/resources/limits", {key: str(n) for key, n in added.items()}
        if amounts and not container.limits:
            yield {"op": "add", "path": path, "value": amounts}
            continue
        for name, amount in amounts.items():
            pointer = name.replace("~", "~0").replace("/", "~1")  # RFC 6901
            yield {"op": "add", "path": f"{path}/{pointer}", "value": amount}


def _asks(draft: PodDraft) -> tuple[Ask, ...]:
    """Of all containers, also such as take no devices of their own; of each its own is the last."""
    return (*joined(draft.shape.asks), *draft.borrowing)
