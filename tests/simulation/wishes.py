"""The requests of users: pods and gangs that are created, changed and deleted.

Watchers read the requests as a source of pods. Invariant: as long as the requests are unchanged,
`observe` returns the same object. A watcher then has nothing to do."""

from __future__ import annotations

import random

from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.watcher.local.reconcile import Observation, Source
from apportion_schemas import Ask, Configuration, DeviceConstraints, PodGroupObserved, Shape
from tests.simulation.loop import rest

LOOK_EVERY_S = 1.0
NAMESPACE = "sim"
UID_PREFIX = "u"
QUEUES = ("", "", "a", "b")
MEMORY_MIB = (1024, 2048, 4096, 8000, 12_000, 15_360)
CORES = (0, 0, 10, 25, 30, 50, 100)


class Wishes(Source):
    """The pods and gangs that all simulated users request."""

    def __init__(self, chance: random.Random, of_queues: random.Random, *, pods_max: int) -> None:
        self._chance = chance
        self._of_queues = of_queues
        self._pods_max = pods_max
        self._pods: dict[str, PodDraft] = {}
        self._groups: dict[str, PodGroupObserved] = {}
        self._members: dict[str, list[str]] = {}
        self._number = 0
        self._observation = Observation()

    def uid(self, key: str, incarnation: int) -> str:
        return f"{UID_PREFIX}-{key.partition('/')[2]}-{incarnation}"

    def incarnation(self, key: str, uid: str) -> int:
        number = uid.rpartition("-")[2]
        if not number.isdecimal() or self.uid(key, int(number)) != uid:
            return 0
        return int(number)

    async def observe(self, configuration: Configuration | None = None) -> Observation:
        """Return the pods and gangs that users request now."""
        del configuration
        return self._observation

    async def changed(self) -> None:
        """Wait for one interval, whether or not the requests change."""
        await rest(LOOK_EVERY_S)

    @property
    def wanted(self) -> list[str]:
        """Return the names of the pods that users request now, as `namespace/name`."""
        return list(self._pods)

    def stir(self) -> None:
        """Simulate one or several actions of users."""
        for _ in range(self._chance.choice((1, 1, 2, 4))):
            self._do()
        self._observation = Observation(
            pods=dict(self._pods), groups=dict(self._groups), seen=frozenset(self._pods)
        )

    def _do(self) -> None:
        deed = self._chance.random()
        if deed < 0.5 or not self._pods:
            self._submit()
        elif deed < 0.65:
            self._submit_gang()
        elif deed < 0.9:
            self._delete()
        else:
            self._edit()

    def _submit(self) -> None:
        if len(self._pods) < self._pods_max:
            self._want(self._draft(self._shape()))

    def _submit_gang(self) -> None:
        size = self._chance.randint(2, 4)
        if len(self._pods) + size > self._pods_max:
            return
        self._number += 1
        name = f"{NAMESPACE}/gang{self._number}"
        shape = self._shape()
        drafts = [self._draft(shape, group=name) for _ in range(size)]
        for draft in drafts:
            self._want(draft)
        least = size if self._chance.random() < 0.7 else size - 1
        queue = self._of_queues.choice(QUEUES) or "default"
        self._groups[name] = PodGroupObserved(group=name, min_available=least, queue=queue)
        self._members[name] = [f"{NAMESPACE}/{draft.name}" for draft in drafts]

    def _delete(self) -> None:
        key = self._any()
        group = self._pods[key].group
        if group and self._chance.random() < 0.7:
            for member in self._members.pop(group, []):
                self._pods.pop(member, None)
            self._groups.pop(group, None)
        else:
            self._pods.pop(key)

    def _edit(self) -> None:
        """Replace a pod under the same name, which makes it a new pod with another uid."""
        key = self._any()
        if not self._pods[key].group:
            namespace, _, name = key.partition("/")
            self._pods[key] = PodDraft(
                namespace=namespace, name=name, shape=self._shape(), dialect="plain"
            )

    def _any(self) -> str:
        return self._chance.choice(list(self._pods))

    def _want(self, draft: PodDraft) -> None:
        self._pods[f"{draft.namespace}/{draft.name}"] = draft

    def _draft(self, shape: Shape, group: str = "") -> PodDraft:
        self._number += 1
        return PodDraft(
            namespace=NAMESPACE,
            name=f"pod{self._number}",
            shape=shape,
            dialect="plain",
            priority=self._chance.choice((0, 0, 0, 10)),
            group=group,
            queue=self._of_queues.choice(QUEUES),
        )

    def _shape(self) -> Shape:
        chance = self._chance
        if chance.random() < 0.1:
            return Shape(asks=(Ask(container="main", family="nvidia", cores=100),))
        asks = tuple(
            Ask(
                container=f"c{number}",
                family="nvidia",
                count=chance.choice((1, 1, 1, 2)),
                memory_mib=chance.choice(MEMORY_MIB),
                cores=chance.choice(CORES),
            )
            for number in range(chance.choice((1, 1, 1, 2)))
        )
        picky = chance.random() < 0.1
        wants = DeviceConstraints(use_types=("T4",)) if picky else DeviceConstraints()
        policy = chance.choice(("", "", "binpack", "spread"))
        return Shape(asks=asks, devices=wants, node_policy=policy)
