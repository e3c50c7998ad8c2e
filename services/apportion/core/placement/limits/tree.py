"""The declared tree of queues: the parent of each queue, and what each queue claims."""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Final, NamedTuple

from apportion.core.devices.worth import DEVICE
from apportion.core.placement.limits import quotas
from apportion.core.placement.limits.entitlements import UNLIMITED
from apportion.core.placement.limits.quotas import MODEL, Amount, Quota
from apportion.core.workloads.dialects.names import DialectConfig, dialect_config
from apportion_schemas import Configuration, QueueObserved

ROOT: Final = "root"  # Volcano's name of the queue above all others
OWN: Final = "/"  # behind the name of a queue with queues below it: its own pods


class Claims(NamedTuple):
    """What a queue declares for its entitlement: values by amount, weight and priority."""

    guarantee: dict[Amount, int]
    deserved: dict[Amount, int]
    limit: dict[Amount, int]
    weight: int
    priority: int


PLAIN: Final = Claims({}, {}, {}, 1, 0)  # of a queue that does not exist, and of a queue's own pods


class QueueTree:
    """All queues of one state, and the queues that they name as parents."""

    def __init__(self, queues: Mapping[str, QueueObserved], configuration: Configuration) -> None:
        config = dialect_config(configuration)
        self.limits: dict[str, Quota] = {}
        self.names: dict[Amount, tuple[str, int]] = {}  # name and unit of each amount in a claim
        self.children: dict[str, list[str]] = {}
        self._claims: dict[str, Claims] = {}
        self._paths: dict[str, tuple[str, ...]] = {}
        for name, queue in queues.items():
            quota = Quota(queue, configuration)
            if quota.limits:
                self.limits[name] = quota
            self._claims[name] = Claims(
                self._amounts(queue.guarantee, queue.cards_guarantee, config),
                self._amounts(queue.deserved, queue.cards_deserved, config),
                self._amounts(queue.capability, {}, config),
                queue.weight,
                queue.priority,
            )
            path = self._paths[name] = path_in(queues, name)
            for below, above in pairwise(path):
                names = self.children.setdefault(above, [])
                if below not in names:
                    names.append(below)
        cards = (each.cards_guarantee | each.cards_deserved for each in queues.values())
        self.models = tuple(sorted({key for named in cards for key in named}))
        self.lends = any(each.deserved for each in self._claims.values())
        self.keeps_order = any(each.fifo for each in queues.values())
        guaranteed = {amount for each in self._claims.values() for amount in each.guarantee}
        self.floors = {amount: self._floor(amount) for amount in sorted(guaranteed)}
        # the amounts that a queue may use depend on the use by other queues
        self.entangled = bool(self.lends or self.floors or self.keeps_order)

    def account(self, queue: str) -> str:
        """Return the name under which the queue's own pods count."""
        return queue + OWN if queue in self.children else queue

    def path_of(self, account: str) -> tuple[str, ...]:
        """Return the account, then the queues above it, and then `ROOT`."""
        queue = account.removesuffix(OWN)
        path = self._paths.get(queue) or ((queue, ROOT) if queue != ROOT else (ROOT,))
        return path if queue == account else (account, *path)

    def owner(self, queue: str) -> str:
        """Return the queue whose pods one scheduler must place, as they have a limit in common.

        It is the queue below `ROOT` on the path, if that path has a limit. It is `ROOT` if `ROOT`
        has a limit or all queues are entangled. It is empty if there is no limit."""
        path = self.path_of(queue)
        if self.entangled or ROOT in self.limits:
            return ROOT
        return path[-2] if any(each in self.limits for each in path) else ""

    def claims(self, name: str) -> Claims:
        """Return what a queue claims."""
        return self._claims.get(name, PLAIN)

    def _amounts(
        self, named: dict[str, int], cards: dict[str, int], config: DialectConfig
    ) -> dict[Amount, int]:
        found: dict[Amount, int] = {}
        for name, much in named.items():
            amount, unit = quotas.entitling(name, config)
            self.names.setdefault(amount, (name, unit))
            found[amount] = min(much * unit, found.get(amount, UNLIMITED))
        for key, much in cards.items():
            self.names.setdefault((MODEL, key), (key, DEVICE))
            found[MODEL, key] = much * DEVICE
        return found

    def _floor(self, amount: Amount) -> Counter[str]:
        # What the queues below each queue are guaranteed, before any pod is counted.
        found = Counter[str]()
        above = {below: name for name, names in self.children.items() for below in names}
        for name in sorted(above, key=lambda each: -len(self.path_of(each))):
            kept = self.claims(name).guarantee.get(amount, 0)
            found[above[name]] += max(found[name], kept)
        return found


def path_in(queues: Mapping[str, QueueObserved], name: str) -> tuple[str, ...]:
    """Return the queue, then those above it, and then `ROOT`.

    A queue whose parents form a circle counts as a child of `ROOT`."""
    path = [name]
    while path[-1] != ROOT:
        queue = queues.get(path[-1])
        parent = (queue.parent if queue is not None else "") or ROOT
        if parent in path:
            return (name, ROOT)
        path.append(parent)
    return tuple(path)
