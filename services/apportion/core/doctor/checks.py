"""The table of all checks, and what becomes of gathered facts by it."""

from collections.abc import Callable
from typing import NamedTuple

from apportion.core.answers.doctor import CheckAnswer
from apportion.core.doctor import of_cluster, of_ledger
from apportion.core.doctor.facts import Facts
from apportion.core.doctor.found import Found


class Check(NamedTuple):
    """One row: its name, the function that looks at the facts, and where to read on."""

    id: str
    examine: Callable[[Facts], Found | None]
    link: str


CHECKS: tuple[Check, ...] = (
    Check("ledger", of_ledger.reachable, "guides/operating.md"),
    Check("server", of_ledger.server, "guides/upgrading.md"),
    Check("durability", of_ledger.durability, "guides/recovery.md"),
    Check("replicas", of_ledger.replicas, "guides/recovery.md"),
    Check("stream", of_ledger.stream, "guides/recovery.md"),
    Check("disk", of_ledger.disk, "guides/recovery.md"),
    Check("clocks", of_ledger.clocks, "guides/operating.md"),
    Check("permissions", of_ledger.permissions, "guides/operating.md"),
    Check("snapshots", of_ledger.snapshots, "guides/recovery.md"),
    Check("archives", of_ledger.archives, "guides/recovery.md"),
    Check("receipts", of_ledger.receipts, "guides/receipts.md"),
    Check("gateway", of_cluster.gateway, "guides/operating.md"),
    Check("folds", of_cluster.folds, "guides/operating.md"),
    Check("placements", of_cluster.placements, "guides/operating.md"),
    Check("schedulers", of_cluster.schedulers, "guides/scaling.md"),
    Check("never-fitting", of_cluster.never_fitting, "guides/pods.md"),
    Check("starving-gangs", of_cluster.starving, "guides/queues.md"),
    Check("agents", of_cluster.agents, "guides/operating.md"),
    Check("reports", of_cluster.reports, "guides/nodes.md"),
    Check("devices", of_cluster.devices, "guides/operating.md"),
    Check("cordons", of_cluster.cordons, "guides/operating.md"),
    Check("nodes-without-agent", of_cluster.nodes_without_agent, "guides/nodes.md"),
    Check("agents-without-node", of_cluster.agents_without_node, "guides/nodes.md"),
    Check("drivers", of_cluster.drivers, "guides/nodes.md"),
    Check("refused-events", of_cluster.refused_events, "guides/recovery.md"),
    Check("prices", of_cluster.prices, "guides/reports.md"),
    Check("kubernetes", of_cluster.api_server, "guides/kubernetes.md"),
    Check("rbac", of_cluster.rights, "guides/kubernetes.md"),
    Check("webhook", of_cluster.webhook, "guides/admission.md"),
)


def examined(facts: Facts) -> tuple[CheckAnswer, ...]:
    """The outcome of every check whose facts were gathered."""
    answers = []
    for check in CHECKS:
        found = check.examine(facts)
        if found is not None:
            answers.append(
                CheckAnswer(
                    id=check.id, state=found.state, words=found.words, parts=found.parts,
                    fix=found.fix,
                    link="" if found.state in {"ok", "unknown"} else check.link,
                )
            )  # fmt: skip
    return tuple(answers)
