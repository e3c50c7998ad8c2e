"""Compare the pods of manifests with live pods: new, same, changed or surplus.

Invariant: a workload or gang is replaced as a whole or not at all."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import compress
from operator import not_
from typing import Literal, TypeVar

from apportion.cli.client.gateway_client import Gateway
from apportion.cli.pods.append import Dropped, Ended, stands, submission_of
from apportion.core.answers.reads import GangAnswer, PodAnswer
from apportion.core.explain.manifest_diff import otherwise
from apportion.core.explain.text.answer_text import differing
from apportion.core.explain.text.vocabulary import PHASES
from apportion.core.ledger.state import shape_key, spec_digest
from apportion.core.workloads.kinds.drafts import PodDraft, submitted
from apportion.runtime.files.manifests import Wish
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion_schemas import PodGroupObserved

Held = Literal["submitted", "ended"]
Pod = TypeVar("Pod", PodDraft, PodAnswer)


@dataclass(slots=True)
class Compared:
    """The result of comparing manifests with live pods."""

    new: Wish
    gangs: dict[str, PodGroupObserved] = field(default_factory=dict)  # without new or changed pods
    same: list[str] = field(default_factory=list)
    waiting: list[PodAnswer] = field(default_factory=list)  # those of `same` without a node
    changed: list[tuple[PodDraft, PodAnswer]] = field(default_factory=list)  # new and live
    surplus: list[PodAnswer] = field(default_factory=list)
    held: dict[str, Held] = field(default_factory=dict)  # others of their workload changed

    def hold_back(self) -> None:
        """Move new and surplus pods to `held` if their workload or gang has changed pods."""
        wholes = {whole for each in self.changed for pod in each for whole in _wholes(pod)}
        new, pods = _parted(self.new.pods, wholes)
        surplus, self.surplus = _parted(self.surplus, wholes)
        self.held = {f"{pod.namespace}/{pod.name}": "submitted" for pod in new}
        self.held |= {f"{pod.namespace}/{pod.name}": "ended" for pod in surplus}
        settled = {pod.group for pod in new} - {pod.group for pod in pods}
        settled |= {pod.group for each in self.changed for pod in each}
        groups = {name: each for name, each in self.new.groups.items() if name not in settled}
        self.new = Wish(pods, groups)
        self.gangs = {name: each for name, each in self.gangs.items() if name not in settled}


def _parted(pods: list[Pod], wholes: set[tuple[str, str]]) -> tuple[list[Pod], list[Pod]]:
    theirs = [not wholes.isdisjoint(_wholes(pod)) for pod in pods]
    return list(compress(pods, theirs)), list(compress(pods, map(not_, theirs)))


def _wholes(pod: PodDraft | PodAnswer) -> Iterator[tuple[str, str]]:
    """Yield a key for the pod's owner and a key for its gang, if it has them."""
    if pod.owner:
        yield pod.namespace, pod.owner
    if pod.group:
        yield "", pod.group


def compared(wish: Wish, live: dict[str, PodAnswer], gateway: Gateway) -> Compared:
    """Compare each pod of `wish` with its live namesake, and find surplus pods."""
    found = Compared(only_new(wish, live), dict(wish.groups))
    for pod in wish.pods:
        there = live.get(f"{pod.namespace}/{pod.name}")
        if there is None:
            continue
        if there.phase == "rejected" or there.spec == spec_digest(
            shape_key(pod.shape), submitted(pod, "")
        ):
            found.same.append(f"{pod.namespace}/{pod.name}")
            found.waiting += [there] if there.phase in PHASES else []
        else:
            found.changed.append((pod, there))
    found.same.sort()
    for pod in (*found.new.pods, *(draft for draft, _ in found.changed)):
        found.gangs.pop(pod.group, None)
    groups = found.new.groups
    found.new.groups = {name: each for name, each in groups.items() if name not in found.gangs}
    # Surplus pods of workloads in `wish` that may have been scaled down.
    wanted = {f"{pod.namespace}/{pod.name}" for pod in wish.pods}
    for namespace in sorted({namespace for namespace, _ in wish.scaled}):
        _, pods = gateway.items("pods", PodAnswer, {"namespace": namespace})
        found.surplus += [
            pod for pod in pods
            if (namespace, pod.owner) in wish.scaled
            and f"{namespace}/{pod.name}" not in wanted
        ]  # fmt: skip
    return found


def only_new(wish: Wish, live: dict[str, PodAnswer]) -> Wish:
    """Return `wish` without its live pods and without gangs whose pods are all live."""
    new = [pod for pod in wish.pods if f"{pod.namespace}/{pod.name}" not in live]
    settled = {pod.group for pod in wish.pods} - {pod.group for pod in new}
    return Wish(new, {name: group for name, group in wish.groups.items() if name not in settled})


async def undeclared(
    ledger: JetStreamLedger, gateway: Gateway, gangs: dict[str, PodGroupObserved]
) -> dict[str, PodGroupObserved]:
    """Return those of `gangs` that the ledger lacks or declares with other values."""
    if not gangs:
        return {}
    _, known = await asyncio.to_thread(gateway.items, "gangs", GangAnswer)
    declared = {gang.group for gang in known if gang.declared}
    return {
        name: gang for name, gang in gangs.items()
        if name not in declared or await stands(ledger, gang) != gang
    }  # fmt: skip


async def difference(ledger: JetStreamLedger, draft: PodDraft, there: PodAnswer) -> list[str]:
    """Describe each field in which the draft differs from the live pod, as old → new."""
    try:
        was = (await submission_of(ledger, there)).data
    except Dropped:
        return ["the submission of the pod was trimmed from the ledger"]
    except Ended:
        return ["the pod has ended in the meantime"]
    return differing(otherwise(was, submitted(draft, there.uid)))
