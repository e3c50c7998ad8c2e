"""Names that look like ours and are not: a slip of the pen would be passed over in silence.

A resource that nobody reads counts as one that nodes offer, and no node does, and limits no device;
an annotation that nobody reads has no effect; more than all cores of a device are cut to these.
Invariant: a name with a domain that is read here is known, or is told
of; and a name of any domain that is nearly one of ours is told of with the one that it is near to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final, NamedTuple

from apportion.core.dialects import annotations as preferences
from apportion.core.dialects import cambricon, listing
from apportion.core.dialects.errors import within
from apportion.core.dialects.names import DialectConfig
from apportion.core.manifests import harmless
from apportion.core.manifests.limits import QUEUE, QUOTA
from apportion.core.manifests.resource_quota import OF_CLAIMS
from apportion_schemas.quantities import WHOLE

NEAR: Final = 0.8
NEAR_OF_OTHERS: Final = 0.88
"""How alike a name of a foreign domain must be to be taken for a slip."""
DEPTH_MAX: Final = 32
DIGITS_MAX: Final = 18
_CLAMPED: Final = (
    "is {}, a percentage of one device, and counts as 100, a device alone, as in HAMi; "
    "write from 0 to 100"
)
OWN: Final = frozenset(
    (
        preferences.SCORING_WEIGHTS,
        preferences.NODE_POLICY,
        preferences.DEVICE_POLICY,
        preferences.GROUP_POLICY,
        "scheduling.k8s.io/group-name",
        "scheduling.volcano.sh/group-min-member",
        "scheduling.volcano.sh/queue-name",
        "volcano.sh/numa-topology-policy",
        "volcano.sh/preemptable",
        "volcano.sh/queue-name",
        "volcano.sh/task-spec",
    )
)
WRITTEN: Final = ("hami.io/", "volcano.sh/vgpu-", "apportion.dev/", "tencent.com/")
"""How names begin that schedulers and plugins write on pods that they have placed."""
OF_NODES: Final = ("cpu", "memory", "pods", "ephemeral-storage")
"""What a queue limits of nodes, beside huge pages and what has a domain."""


class Suspect(NamedTuple):
    """A name in a manifest that is probably not meant so, and why it is thought so."""

    field: str
    why: str


def suspects(document: object, config: DialectConfig, *, placed: bool = False) -> Iterator[Suspect]:
    """The suspicious names of a document, wherever in it its pods stand.

    `placed`: it may hold what schedulers write on pods; their names are passed over.
    """
    about = document if isinstance(document, dict) else {}
    if about.get("kind") in (QUEUE[1], QUOTA[1]):
        yield from _of_limit(about, config)
        return
    yield from _walk(document, "", config, placed=placed, depth=0)


def _of_limit(document: Mapping[Any, Any], config: DialectConfig) -> Iterator[Suspect]:
    """What a queue or a quota names that is of no device, nor of a node; a quota is of devices."""
    of_queue, spec = document["kind"] == QUEUE[1], document.get("spec")
    part = "capability" if of_queue else "hard"
    limited = spec.get(part) if isinstance(spec, dict) else None
    before = ("",) if of_queue else ("", *OF_CLAIMS)
    known = frozenset(prefix + name for name in listing.claimed(config) for prefix in before)
    for name in limited if isinstance(limited, dict) else ():
        if not isinstance(name, str) or name in known:
            continue
        if "/" in name:
            hint = _hint(name, known)
            is_slip = bool(hint) or _domain(name) in _domains(known)
        else:
            hint = _meant(name, OF_NODES, NEAR)
            is_slip = of_queue and name not in OF_NODES and not name.startswith("hugepages-")
        if is_slip:
            said = f"is not known here, and limits no device{hint}"
            yield Suspect(within(f"spec.{part}", name), said)


def _walk(
    value: object,
    field: str,
    config: DialectConfig,
    *,
    placed: bool,
    depth: int,
) -> Iterator[Suspect]:
    if depth > DEPTH_MAX:
        return
    if isinstance(value, list):
        for place, each in enumerate(value):
            yield from _walk(each, f"{field}[{place}]", config, placed=placed, depth=depth + 1)
        return
    if not isinstance(value, dict):
        return
    for key, each in value.items():
        at = f"{field}.{key}" if field else str(key)
        if key == "annotations" and isinstance(each, dict):
            yield from _annotations(each, at, placed=placed)
        elif key == "resources" and isinstance(each, dict):
            for kind in ("limits", "requests"):
                if isinstance(each.get(kind), dict):
                    yield from _resources(each[kind], f"{at}.{kind}", config)
        else:
            yield from _walk(each, at, config, placed=placed, depth=depth + 1)


def _annotations(found: Mapping[Any, Any], at: str, *, placed: bool) -> Iterator[Suspect]:
    known = _known_annotations()
    for key in found:
        if not isinstance(key, str) or key in known or (placed and key.startswith(WRITTEN)):
            continue
        hint = _hint(key, known)
        if hint or _domain(key) in _domains(known):
            yield Suspect(within(at, key), f"is not known here, and has no effect{hint}")


def _resources(found: Mapping[Any, Any], at: str, config: DialectConfig) -> Iterator[Suspect]:
    known = listing.claimed(config)
    for key in found:
        if not isinstance(key, str) or "/" not in key:
            continue
        if key in known:
            if key in (config.hami.cores, cambricon.CORES) and _exceeds(found[key]):
                yield Suspect(within(at, key), _CLAMPED.format(found[key]))
            continue
        hint = _hint(key, known)
        if hint or _domain(key) in _domains(known):
            yield Suspect(
                within(at, key),
                f"is not known here: only a node that offers it by this name takes the pod{hint}",
            )


def _exceeds(percent: object) -> bool:
    """Whether it is more than all of a device."""
    said = str(percent)
    return said.isdecimal() and len(said) <= DIGITS_MAX and int(said) > WHOLE


def _hint(key: str, known: Collection[str]) -> str:
    cutoff = NEAR if _domain(key) in _domains(frozenset(known)) else NEAR_OF_OTHERS
    return _meant(key, known, cutoff)


def _meant(key: str, known: Collection[str], cutoff: float) -> str:
    near = get_close_matches(key, known, n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""


def _domain(key: str) -> str:
    return key.partition("/")[0] if "/" in key else ""


@lru_cache(maxsize=16)
def _domains(known: frozenset[str]) -> frozenset[str]:
    return frozenset(map(_domain, known)) - {""}


@lru_cache(maxsize=1)
def _known_annotations() -> frozenset[str]:
    """All that some dialect, the manifests or a note of what has no effect knows."""
    return frozenset((*listing.reserved(), *listing.recovers(), *OWN, *harmless.ANNOTATIONS))
