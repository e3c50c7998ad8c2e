"""The rule of the webhook: `admit` takes one request about one pod and says what becomes of it.

In order: our own annotations are nobody's to write; what is labelled to be skipped and what another
scheduler places is left alone; a pod that asks for a device and names no scheduler gets ours; a pod
that we, or an extended kube-scheduler, will place is read as the watcher will read it, and is
rejected where that fails; what it leaves out is filled in.

Invariant: a pod that is no business of ours goes through, whatever it holds; and unchanged, but for
GPUs that are hidden from it where the configuration says so.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from apportion.core.admission.defaults import limit_patches, missing_limits
from apportion.core.admission.environment import Patch, hidden, unlimited
from apportion.core.admission.own import check_changed, check_created
from apportion.core.workloads import kube
from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.dialects.borrowing import joined
from apportion.core.workloads.dialects.listing import claimed, families_of
from apportion.core.workloads.dialects.nvidia import FAMILY as NVIDIA
from apportion.core.workloads.document import cleaned, typed
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.core.workloads.pods.devices_only import devices_only
from apportion.core.workloads.pods.template import ManifestConfig, containers_of
from apportion.core.workloads.reading import read_document
from apportion.core.workloads.schedulers import Chooser, SchedulerNames
from apportion_schemas import Ask

IGNORE = "ignore"
SKIP_LABELS = ("hami.io/webhook", "apportion.dev/webhook")
"""With the value `ignore`, on a pod; on a namespace the webhook's selector minds them."""
CREATE, UPDATE = "CREATE", "UPDATE"
_NAMELESS = "pod"


class Rules(Struct, frozen=True, kw_only=True):
    """What pods are judged by. `scheduler` is the name that is filled in; `writer` is the one user
    who may write our annotations. `overwrite_env` and `disable_core_limit` are the keys
    of the configuration.
    """

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
        if asked.operation == UPDATE:
            if rules.writer != asked.user:
                check_changed(asked.before, asked.pod)
            return Admitted("update")
        if asked.operation != CREATE:
            return Admitted("not looked at")
        check_created(asked.pod)
        return _created(asked, rules)
    except ManifestError as error:
        return Rejected(error)


def _created(asked: Asked, rules: Rules) -> Admitted:
    metadata, spec = _part(asked.pod, "metadata"), _part(asked.pod, "spec")
    labels = _part(metadata, "labels")
    if any(labels.get(key) == IGNORE for key in SKIP_LABELS):
        return Admitted("skipped")
    named = spec.get("schedulerName")
    chooser = rules.names.chooser(named if isinstance(named, str) else "")
    if chooser is Chooser.OTHERS:
        return Admitted("of another scheduler")
    if chooser is not Chooser.US and not _asks_for_devices(spec, rules.config):
        return Admitted("no device", tuple(_hidden(spec, rules)))
    document = _document(asked, metadata)
    if chooser is Chooser.EXTENDED:
        document = devices_only(document)
    clean = cleaned(document)
    (draft,) = read_document(clean, rules.config).pods
    patches = [
        *_filled(clean, draft, rules, chooser),
        *_hidden(spec, rules),
        *_freed(spec, draft, rules),
    ]
    takes = chooser is Chooser.NOBODY
    if takes:
        patches.insert(0, {"op": "add", "path": "/spec/schedulerName", "value": rules.scheduler})
    return Admitted("taken" if takes else "read", tuple(patches))


def _filled(
    clean: dict[str, Any], draft: PodDraft, rules: Rules, chooser: Chooser
) -> list[dict[str, Any]]:
    """Its defaults; no slots for a kube-scheduler, which may miss them where others plug in."""
    spec, dialects = typed(clean, kube.Pod).spec, rules.config.dialects
    containers = containers_of(spec, "spec")
    slots = chooser is not Chooser.EXTENDED
    missing = missing_limits(containers, _asks(draft), draft.dialect, dialects, slots=slots)
    return [patch for each, added in missing for patch in limit_patches(each, added)]


def _hidden(spec: Mapping[str, Any], rules: Rules) -> Iterator[Patch]:
    """`overwriteEnv`, where it is set."""
    if rules.overwrite_env:
        ours, dialects = claimed(rules.config.dialects), rules.config.dialects
        yield from hidden(
            spec, lambda name: name in ours and NVIDIA in families_of((name,), dialects)
        )


def _freed(spec: Mapping[str, Any], draft: PodDraft, rules: Rules) -> Iterator[Patch]:
    """`disableCoreLimit`, where it is set."""
    if rules.disable_core_limit:
        asks = (ask for ask in _asks(draft) if ask.family == NVIDIA)
        yield from unlimited(spec, {ask.container for ask in asks})


def _asks(draft: PodDraft) -> tuple[Ask, ...]:
    """Of all containers, also such as take no devices of their own; of each its own is the last."""
    return (*joined(draft.shape.asks), *draft.borrowing)


def _document(asked: Asked, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The pod as the watcher will see it, with a stand-in for a name that is yet to be made."""
    name = metadata.get("name") or str(metadata.get("generateName") or "").rstrip("-.") or _NAMELESS
    named = {**metadata, "name": name, "namespace": asked.namespace}
    return {**asked.pod, "apiVersion": "v1", "kind": "Pod", "metadata": named}


def _asks_for_devices(spec: Mapping[str, Any], config: ManifestConfig) -> bool:
    ours = claimed(config.dialects)
    for kind in ("containers", "initContainers"):
        containers = spec.get(kind)
        for container in containers if isinstance(containers, list) else ():
            resources = _part(container, "resources")
            for amounts in (_part(resources, "limits"), _part(resources, "requests")):
                if not ours.isdisjoint(amounts):
                    return True
    return False


def _part(whole: Any, key: str) -> dict[str, Any]:
    """The object below a key; an empty one where there is none, which reading will refuse."""
    found = whole.get(key) if isinstance(whole, dict) else None
    return found if isinstance(found, dict) else {}
