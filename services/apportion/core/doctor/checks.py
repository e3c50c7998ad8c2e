"""The doctor's checks, one function each, and the table that lists them."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from apportion.core.answers.doctor import CheckAnswer, CheckState
from apportion.core.answers.reads import Part, joined
from apportion.core.doctor.facts import (
    ArchiveFacts,
    ClusterFacts,
    Facts,
    KubeFacts,
    LedgerFacts,
    PriceFacts,
    SchedulerFacts,
    WaitingFacts,
)
from apportion.core.explain.health import FREEZES, moment, moving
from apportion.core.explain.text.words import LISTED, device_words, listed, many, nodes
from apportion.core.workloads.pods.gangs import KAI_SCHEDULER
from apportion.core.workloads.schedulers import OURS

Words = str | tuple[str | Part, ...]  # a finding: a sentence, or its parts if it names nodes
SKEW_SOON_S: Final = 2.0
SKEW_BROKEN_S: Final = 30.0  # users read times, and leases depend on clocks
DISK_SOON: Final = 0.8
DISK_BROKEN: Final = 0.95
LONG_EVENTS: Final = 100_000  # with more events since a snapshot, every restart takes seconds
REPLICAS: Final = 3
ARCHIVE_AGE_SOON_S: Final = 8 * 86_400.0
RECEIPT_AGE_SOON_S: Final = 25 * 3_600.0  # receipts are written hourly, or at least daily
FOLD_BEHIND_SOON: Final = 1_000
FEW: Final = 2  # names listed in addition to the first; more are only counted
MUTE: Final = "the ledger's server does not answer"
CURE: Final = (
    "check the agent's log on that node; if nothing explains the report, the node may be "
    "compromised"
)
CURES: Final[dict[str, str]] = {
    "device-of-another-node": "start the agent of the device's previous node, or delete that node",
    "flapping": "`apportion history NODE` shows which device fails and recovers; cordon it",
    "implausible-device": "add the model to the device catalogue, or correct the wrong report",
    "implausible-time": "correct the clock of that node",
    "unknown-format": "upgrade the intakes before the agents",
}
LET_IN: Final = "use the token of a user who may read the doctor's results"
OLDEST_DRIVER: Final = 450  # the first branch of NVIDIA's driver that supports MIG
OLDEST: Final = (1, 20)  # the oldest API server in the nightly tests


class Found(NamedTuple):
    """The result of one check: its state, the finding, and the fix."""

    state: CheckState
    parts: tuple[str | Part, ...]
    fix: str = ""

    @property
    def words(self) -> str:
        """Return the finding as one sentence."""
        return joined(self.parts)


def ok(words: str) -> Found:
    """Return a result in the state `ok`: the check found nothing wrong."""
    return Found("ok", (words,))


def warning(words: Words, fix: str) -> Found:
    """Return a result in the state `warning`: it works today, but needs attention."""
    return Found("warning", (words,) if isinstance(words, str) else words, fix)


def unknown(words: str) -> Found:
    """Return a result in the state `unknown`, because another failed check prevents this one."""
    return Found("unknown", (f"unknown: {words}",))


def broken(words: Words, fix: str) -> Found:
    """Return a result in the state `broken`: something fails now, or may lose data."""
    return Found("broken", (words,) if isinstance(words, str) else words, fix)


def counted_nodes(nodes: Sequence[tuple[str, str]], what: str) -> tuple[str | Part, ...]:
    """Return a count with the first few nodes, each with its note."""
    parts: list[str | Part] = [f"{len(nodes):,} {what}{'' if len(nodes) == 1 else 's'}: "]
    for at, (name, note) in enumerate(nodes[:LISTED]):
        parts += [", " if at else "", Part(name=name), note]
    parts.append(f" and {len(nodes) - LISTED:,} more" if len(nodes) > LISTED else "")
    return tuple(part for part in parts if part)


def counted(names: Sequence[str], what: str) -> str:
    """Return a count with the first few names, as in `2 nodes: a, b`."""
    return f"{len(names):,} {what}{'' if len(names) == 1 else 's'}: {listed(list(names))}"


def age(seconds: float) -> str:
    """Format a duration in one unit, as in `3 min` or `2 days`."""
    for size, unit in ((86_400, "day"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if unit == 'day' and count != 1 else ''}"
    return f"{max(seconds, 0):.0f} s"


def size(count: int) -> str:
    """Format a number of bytes with a binary unit, as in `1.5 GiB`."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << power:
            return f"{count / (1 << power):,.1f} {unit}"
    return f"{count} B"


def reachable(facts: Facts) -> Found | None:
    """Check that the ledger's server answers."""
    if facts.ledger_problem:
        fix = (
            "start nats-server, or set its address with --nats URL or APPORTION_NATS_URL; if it "
            "runs but does not answer, check its process, log, CPU and disk"
        )
        return broken(facts.ledger_problem, fix)
    ledger = facts.ledger
    if ledger is None:
        return None
    first, last = ledger.first_revision, ledger.last_revision
    return ok(f"connected as {ledger.user}; revisions {first:,} to {last:,}")


def server(ledger: LedgerFacts) -> Found | None:
    """Report the version of nats-server and the oldest versions that this build accepts."""
    return ok(f"nats-server {ledger.server}; required: {ledger.oldest}")


def durability(ledger: LedgerFacts) -> Found | None:
    """Check that writes are on disk before they are acknowledged (`sync_interval: always`)."""
    if ledger.sync_always is None:
        return warning(
            "cannot see whether the server syncs each write before acknowledging it",
            "pass --monitor with the URL of its monitoring port, and set `jetstream { "
            "sync_interval: always }` as in Apportion's nats.conf",
        )
    if not ledger.sync_always:
        return broken(
            "the server acknowledges writes before they are on disk; a power failure loses up to "
            "two minutes of the ledger",
            "set `jetstream { sync_interval: always }` in its configuration and restart it",
        )
    return ok("every write is on disk before it is acknowledged (sync_interval: always)")


def replicas(ledger: LedgerFacts) -> Found | None:
    """Check how many servers have the stream, and that they are in sync."""
    if ledger.lagging:
        return broken(
            f"out of sync with the leader: {counted(ledger.lagging, 'server')} "
            f"({ledger.replicas} in total)",
            "check the log and the disk of that server",
        )
    if ledger.replicas < REPLICAS:
        return warning(
            f"the ledger is on only {many(ledger.replicas, 'server')}; losing a disk can lose it",
            "in production, run three servers and `apportion ledger create --replicas 3`",
        )
    return ok(f"the ledger is on {ledger.replicas} servers, all in sync")


def stream(ledger: LedgerFacts) -> Found | None:
    """Check the stream's settings that the ledger's guarantees depend on."""
    if ledger.drifted:
        return broken("; ".join(ledger.drifted), "restore these settings, or start a new ledger")
    if ledger.lost_records:
        return broken(
            f"{many(ledger.lost_records, 'event')} missing from the middle of the ledger",
            "run `apportion verify` to find the first; keep a copy of the server's store",
        )
    return ok("the stream has Apportion's settings")


def disk(facts: Facts) -> Found | None:
    """Check that neither the ledger's stream nor the disk of its server is nearly full."""
    ledger = facts.ledger
    if ledger is None:
        return None
    takes = f"the ledger uses {size(ledger.size_bytes)}"
    parts = [
        (ledger.size_bytes, ledger.max_bytes, " of its limit of {most} ({part:.0%})"),
        (
            ledger.store_bytes,
            ledger.store_max_bytes,
            "; its server's disk has {used} of {most} in use ({part:.0%})",
        ),
    ]
    limited = [part for part in parts if part[1] > 0]
    full = facts.frozen == "ledger-full"
    if not limited and not full:
        return ok(f"{takes}; it has no known limit")
    used, most, said = max(limited, key=lambda part: part[0] / part[1], default=(0, 1, ""))
    words = takes + said.format(used=size(used), most=size(most), part=used / most)
    words += "; it accepts no more events" if full else ""
    fix = (
        "archive and trim it (`apportion ledger archive FILE`, `apportion ledger trim`), or give "
        "it more space (`apportion ledger resize`, and max_file_store of the server)"
    )
    if used / most >= DISK_BROKEN or full:
        return broken(words, fix)
    return warning(words, fix) if used / most >= DISK_SOON else ok(words)


def clocks(ledger: LedgerFacts) -> Found | None:
    """Check that the clocks of this machine and of writers agree with the ledger server's clock."""
    if not ledger.skews:
        return None
    worst = max(ledger.skews, key=lambda skew: abs(skew.seconds))
    seconds = abs(worst.seconds)
    if seconds < SKEW_SOON_S:
        return ok(f"{len(ledger.skews)} clocks are within {SKEW_SOON_S:g} s of the server's")
    side = "ahead of" if worst.seconds > 0 else "behind"
    words = f"the clock of {worst.who} is {age(seconds)} {side} the ledger server's"
    fix = "synchronize the clocks with NTP (chrony, systemd-timesyncd)"
    return broken(words, fix) if seconds >= SKEW_BROKEN_S else warning(words, fix)


def permissions(ledger: LedgerFacts) -> Found | None:
    """Check that the NATS user has the permissions of its role."""
    if ledger.missing is None:
        return None
    if ledger.missing:
        return broken(
            f"{ledger.user} lacks permission for {counted(ledger.missing, 'subject')}",
            "copy the role's permissions from the nats.conf of this version",
        )
    return ok(f"{ledger.user} has all permissions of its role")


def snapshots(ledger: LedgerFacts) -> Found | None:
    """Check that a recent snapshot exists, so that a restart folds few events."""
    behind = ledger.last_revision - max(ledger.snapshot_revision, ledger.first_revision - 1)
    if not ledger.snapshot_revision and ledger.first_revision > 1:
        return broken(
            "the ledger's beginning was dropped and there is no snapshot, so nothing can start",
            "restore the beginning from an archive; see the recovery guide",
        )
    if ledger.snapshots_doubtful:
        return broken(
            f"{many(ledger.snapshots_doubtful, 'snapshot')} not attested by an intake, so not used",
            "check /readyz and the logs of the intakes; if none runs, start one; otherwise the "
            "snapshot may be forged: replace the schedulers' key, then delete the snapshot",
        )
    if behind > LONG_EVENTS:
        return warning(
            f"{behind:,} events since the newest snapshot; each restart replays them",
            "run a scheduler with --snapshot-every, and check its log",
        )
    if not ledger.snapshot_revision:
        return ok(f"no snapshot yet; the ledger has {many(behind, 'event')}")
    since = age(ledger.snapshot_age_s)
    return ok(f"the newest snapshot is {since} old and {many(behind, 'event')} behind")


def archives(found: ArchiveFacts) -> Found | None:
    """Check that there is a recent archive of the ledger."""
    fix = "run `apportion ledger archive FILE` every day, and store it on another machine"
    if not found.archives:
        return warning(f"no archive (*.jsonl) in {found.folder}", fix)
    words = f"{found.archives} in {found.folder}; the newest is {age(found.newest_age_s)} old"
    return warning(words, fix) if found.newest_age_s > ARCHIVE_AGE_SOON_S else ok(words)


def receipts(facts: Facts) -> Found | None:
    """Check that there is a recent signed receipt of the ledger's contents."""
    found = facts.receipts
    if found is None:
        return None
    fix = "run `apportion receipt write` every hour, as a user who does not run the ledger"
    if not found.last:
        return warning(f"no receipt in {found.folder}", fix)
    newest = facts.ledger.last_revision if facts.ledger else 0
    behind = f"; {many(newest - found.last, 'event')} since" if newest > found.last else ""
    words = f"receipts up to revision {found.last:,}, {age(found.newest_age_s)} old{behind}"
    return warning(words, fix) if behind and found.newest_age_s > RECEIPT_AGE_SOON_S else ok(words)


def gateway(facts: Facts) -> Found | None:
    """Check that the gateway answers."""
    if facts.not_let_in:
        return warning(f"reachable, but access is denied: {facts.gateway_problem}", LET_IN)
    if facts.gateway_problem:
        fix = "start one, or set its address with --gateway URL or APPORTION_GATEWAY"
        return broken(facts.gateway_problem, fix)
    return None if facts.fold is None or facts.fold.unready else ok("reachable")


def folds(facts: Facts) -> Found | None:
    """Check that the gateway has folded all events of the ledger."""
    fold = facts.fold
    if fold is None:
        return None
    if facts.ledger_problem:
        return unknown(f"{MUTE}; the gateway is at revision {fold.revision:,}")
    if fold.unready:
        return broken(f"the gateway is not ready: {fold.unready}", "wait, or check its log")
    behind = fold.last_revision - fold.revision
    if behind > FOLD_BEHIND_SOON:
        return warning(
            f"the gateway is {behind:,} events behind the ledger",
            "run the doctor again; if the gateway is still behind, give it more CPU",
        )
    return ok(f"the gateway is at revision {fold.revision:,}, the end of the ledger")


def placements(frozen: str) -> Found:
    """Check that pods can be placed and started. `frozen` is the reason if they cannot."""
    if not frozen:
        return ok("nothing prevents pods from being placed")
    why, fix = FREEZES.get(frozen, (frozen, "check the logs of the schedulers"))
    return broken(f"no pod is placed or started: {why}", fix)


def never_fitting(found: WaitingFacts) -> Found | None:
    """Check for pending pods that no node, queue or quota can ever fit."""
    if not found.never:
        return ok(f"every pending pod could fit ({many(found.waiting, 'pod')})")
    return warning(
        f"{many(len(found.never), 'pod')} can never fit: {listed(list(found.never))}",
        f"`apportion why {found.never[0]}` shows what each node lacks, or the limit; change what "
        "the pod requests, add such a node, or delete the pod",
    )


def starving(found: WaitingFacts) -> Found | None:
    """Check for gangs that have been pending for a long time while later pods were placed."""
    if not found.starving:
        return ok("no gang has been pending for long")
    first = found.starving[0]
    names = listed([gang.group for gang in found.starving])
    words = f"starving: {names}; {first.group} has been pending for {age(first.waits_s)}, "
    if not first.needed:
        words, fix = words + "without its PodGroup", "create the PodGroup, or delete the pods"
    elif first.present < first.needed:
        words += f"with {first.present:,} of {first.needed:,} pods"
        fix = "create the pods that are missing, lower minAvailable, or delete the gang"
    else:
        words += f"because {many(first.needed, 'pod')} must be placed together"
        words += f"; {many(first.overtaken, 'later pod')} placed since" if first.overtaken else ""
        fix = (
            f"`apportion why {first.pod}` shows the nearest nodes; cordon them until they are "
            "free, or raise the gang's priority"
        )
    return warning(words, fix)


def schedulers(found: SchedulerFacts) -> Found | None:
    """Check that a scheduler runs, and that no two schedulers have the same name."""
    if not found.members:
        return broken("no scheduler reports, so nothing is placed", "start `apportion scheduler`")
    names = Counter(member.rpartition("/")[0] for member in found.members)
    twice = sorted(name for name, count in names.items() if count > 1)
    if twice:
        return warning(
            "several schedulers have the same name, so their decisions look the same: "
            f"{listed(twice)}",
            "give each scheduler its own --name",
        )
    return ok(counted(sorted(names), "scheduler"))


def agents(cluster: ClusterFacts) -> Found | None:
    """Check that the agent of each node sends heartbeats."""
    if not cluster.silent:
        return ok(f"every agent reports ({nodes(cluster.nodes)})")
    first = min(cluster.silent, key=lambda each: each.time)
    whose = f"first noticed on {first.node}" if len(cluster.silent) > 1 else "noticed"
    since = f"{whose} at {moment(first.time)}"
    pods = sum(each.pods for each in cluster.silent)
    silent = counted_nodes([(each.node, "") for each in cluster.silent], "agent")
    held = [each.node for each in cluster.silent if each.pods]
    fix = _bring_back(cluster)
    # If most nodes are silent, there are few nodes to move pods to, and the cause is probably
    # something that the agents share.
    mostly_silent = len(cluster.silent) * 2 > cluster.nodes
    if held and not mostly_silent:
        fix += f". If it does not come back, {moving(held[0])}{_and_so(held)}"
    held_by = f"; {many(pods, 'pod')} there" if pods else ""
    return broken(("not reporting: ", *silent, f"; {since}{held_by}"), fix)


def _bring_back(cluster: ClusterFacts) -> str:
    """Return the fixes for silent agents, the likeliest first.

    `simulate lose` stops simulated nodes one by one. If all of them are silent, the agent that
    simulates them has probably stopped."""
    start = (
        "restart the agent there (`kubectl -n apportion get pods -o wide`, or `systemctl status` "
        "on the node); the node accepts pods again once its agent reports"
    )
    if not cluster.simulated:
        return start
    back = f"`apportion simulate return {cluster.simulated[0]}`{_and_so(cluster.simulated)}"
    if len(cluster.simulated) < max(cluster.simulated_nodes, len(cluster.silent)):
        return f"if `simulate lose` was used, run {back}; otherwise {start}"
    return (
        "check the process of the simulating agent and its log (logs/agent.log in the folder of "
        "`apportion up`); resume it if it is suspended, or start it again. Its nodes accept pods "
        f"again once it reports. If `simulate lose` was used, run {back}"
    )


def _and_so(names: Sequence[str]) -> str:
    rest = list(names[1:])
    if len(rest) > FEW:
        return f", and the same for the other {len(rest):,}"
    return f", and the same for {listed(rest)}" if rest else ""


def reports(cluster: ClusterFacts) -> Found | None:
    """Check that the intake accepts the reports of agents."""
    if not cluster.refused:
        return ok("no agent report is refused")
    said = counted_nodes([(name, f" ({why})") for name, why in cluster.refused], "node")
    node, cause = cluster.refused[0]
    cure = CURES.get(cause, CURE).replace("NODE", node)
    return warning(
        ("reports refused from ", *said),
        f"`apportion get nodes` shows why; {cure}. Agents report again within a minute",
    )


def devices(cluster: ClusterFacts) -> Found | None:
    """Check for failed devices, and for pods on them."""
    if not cluster.failed:
        return ok(f"no device has failed ({cluster.devices:,} devices)")
    count = sum(failed.devices for failed in cluster.failed)
    pods = sum(failed.pods for failed in cluster.failed)
    where = counted_nodes([(failed.node, "") for failed in cluster.failed], "node")
    words = (f"{count:,} of {cluster.devices:,} devices failed, on ", *where)
    node = next((failed.node for failed in cluster.failed if failed.pods), cluster.failed[0].node)
    rest = [failed.node for failed in cluster.failed if failed.node != node]
    others = f", and the same for {listed(rest)}" if rest else ""
    shows = f"`apportion get devices --node {node}` shows which and why"
    if not pods:
        # A cordon still closes a repaired device.
        shut = [device_words(target) for failed in cluster.failed for target in failed.cordoned]
        more = f", and the same for {listed(shut[1:])}" if shut[1:] else ""
        opens = (
            f", but cordoned ones only after `apportion uncordon {shut[0]}`{more}" if shut else ""
        )
        return warning(
            (*words, "; no pods on them"),
            f"{shows}{others}; the devices accept pods again once they are repaired{opens}",
        )
    held = [device_words(device) for failed in cluster.failed for device in failed.held]
    more = f", and the same for {listed(held[1:])}" if held[1:] else ""
    return broken(
        (*words, f"; {many(pods, 'pod')} on them"),
        f"{shows}{others}; `apportion who {held[0]}` lists its pods, `apportion drain {held[0]} "
        f"--reason WHY` moves them{more}",
    )


def cordons(cluster: ClusterFacts) -> Found | None:
    """List cordons with author and reason, because they are easily forgotten."""
    if not cluster.cordoned:
        return ok("no node or device is cordoned")
    said = [f"{device_words(each.target)}: {each.words}" for each in cluster.cordoned]
    more = len(said) - LISTED
    rest = [f"and {more:,} more; see `apportion get nodes` and `apportion get devices`"]
    return ok("cordoned: " + ";\n".join([*said[:LISTED], *(rest if more > 0 else ())]))


def nodes_without_agent(cluster: ClusterFacts) -> Found | None:
    """Check for nodes whose GPUs or NPUs no agent reports."""
    if not cluster.without_agent:
        return ok("every node with devices has an agent")
    return warning(
        (
            "no agent reports the devices of ",
            *counted_nodes([(name, "") for name in cluster.without_agent], "node"),
        ),
        "run the agent's DaemonSet there; check its node selector and tolerations",
    )


def agents_without_node(cluster: ClusterFacts) -> Found | None:
    """Check for agents on nodes that Kubernetes does not know."""
    if not cluster.without_node:
        return ok("every agent is on a node of the cluster")
    return warning(
        f"not a node of the cluster: {counted(cluster.without_node, 'agent')}",
        "set the agent's --node to the name that `kubectl get nodes` shows",
    )


def device_plugins(cluster: ClusterFacts) -> Found | None:
    """Check for nodes that keep the device plugin of HAMi, Volcano or a vendor, and the cost."""
    if not cluster.plugins:
        return None
    unread = [(node, f" ({problem})") for node, _, problem in cluster.plugins if problem]
    if unread:
        return warning(
            ("Apportion cannot read the devices that another system's plugin registers: ",
             *counted_nodes(unread, "node")),
            "start that plugin, or remove its annotation and run the agent there",
        )  # fmt: skip
    kept = counted_nodes([(node, "") for node, _, _ in cluster.plugins], "node")
    locked = any(plugin != "vendor" for _, plugin, _ in cluster.plugins)
    cost = "each node starts one pod at a time, and " if locked else ""
    return ok(
        joined(
            ("another plugin allocates the devices of ", *kept,
             f"; {cost}Apportion reports no usage there")
        )
    )  # fmt: skip


def second_scheduler(cluster: ClusterFacts) -> Found | None:
    """Check for pods that name one of our schedulers and that another scheduler bound."""
    if not cluster.overtaken:  # without another system, there is nothing to check
        calm = "no other scheduler binds the pods that name Apportion's schedulers"
        return ok(calm) if cluster.plugins else None
    bound = [f"{pod} on {node}" for pod, node in cluster.overtaken]
    return broken(
        f"another scheduler binds pods that name one of Apportion's schedulers: {listed(bound)}",
        "stop that scheduler, or list only names that it does not serve in `schedulerNames` of the "
        "configuration",
    )


def drivers(cluster: ClusterFacts) -> Found | None:
    """Check that all nodes have recent device drivers of the same release branch."""
    if not cluster.drivers:
        return None
    old = [
        f"{version} on {', '.join(there[:2])}"
        for version, there in cluster.drivers.items()
        if _branch(version) and _branch(version) < OLDEST_DRIVER
    ]
    if old:
        return warning(
            f"older than {OLDEST_DRIVER}, without MIG support: {counted(old, 'driver')}",
            f"install a driver of branch {OLDEST_DRIVER} or newer",
        )
    versions = [f"{version} ({len(there)})" for version, there in cluster.drivers.items()]
    if len({_branch(version) for version in cluster.drivers}) > 1:
        return warning(
            f"nodes have {counted(versions, 'driver')}",
            "use one driver branch on all nodes; otherwise an image may run on some nodes only",
        )
    return ok(counted(versions, "driver"))


def refused_events(cluster: ClusterFacts) -> Found | None:
    """Check for events that every reader skips, apart from those that only came too late."""
    if not cluster.last_refusal:
        late = f", except {many(cluster.late_events, 'late event')} about pods that had ended"
        return ok("every event of the ledger is applied" + (late if cluster.late_events else ""))
    return warning(
        f"{many(cluster.refused_events - cluster.late_events, 'event')} not applied by any reader; "
        f"the last at {cluster.last_refusal}",
        "`apportion verify` lists them; if their number grows, a program writes faulty events",
    )


def prices(found: PriceFacts) -> Found | None:
    """Check that the gateway's price file has a price for every model."""
    if not found.problem:
        return ok(f"{found.file} has a price for every model of the fleet")
    return broken(
        f"cost reports cannot use {found.file}: {found.problem}",
        "correct the file; the next report reads it again",
    )


def _branch(version: str) -> int:
    head = version.partition(".")[0]
    return int(head) if head.isascii() and head.isdecimal() else 0


def api_server(kube: KubeFacts) -> Found | None:
    """Check that the API server answers, and that its version is supported."""
    if kube.problem:
        return broken(kube.problem, "check the kubeconfig; `kubectl version` must work")
    match = re.match(r"v?(\d+)\.(\d+)", kube.version)
    oldest = ".".join(map(str, OLDEST))
    if match is None:
        return warning(
            f"{kube.url} has version {kube.version!r}", f"use Kubernetes {oldest} or newer"
        )
    if (int(match[1]), int(match[2])) < OLDEST:
        return broken(f"{kube.url} has version {kube.version}", f"use Kubernetes {oldest} or newer")
    return ok(f"{kube.url} has version {kube.version}")


def rights(kube: KubeFacts) -> Found | None:
    """Check that the user of the kubeconfig has the rights that the services need."""
    if kube.problem:
        return None
    if kube.denied:
        return warning(
            f"this user lacks {counted(kube.denied, 'permission')}",
            "the services need them; apply deploy/kubernetes/rbac, or use a kubeconfig with the "
            "token of their accounts",
        )
    return ok("this user has all permissions of the watcher and the binder")


def webhook(kube: KubeFacts) -> Found | None:
    """Check that the admission webhook is ready, if one is configured."""
    if kube.problem or kube.webhook is None:
        return None
    if not kube.webhook:
        return ok("no webhook is configured")
    if kube.webhook == "ready":
        return ok("the webhook has a certificate and a ready endpoint")
    return broken(
        f"the webhook is configured, but {kube.webhook}",
        "start `apportion admission` with its Service, or delete the webhook configuration",
    )


def pods_without_scheduler(kube: KubeFacts) -> Found | None:
    """Check for pending pods whose scheduler name no scheduler serves."""
    if kube.problem or kube.unserved is None:
        return None
    if not kube.unserved:
        return ok("a scheduler has looked at every pending pod")
    said = [
        f"{each.name or 'no name'} ({many(each.pods, 'pod')}, such as {each.first})"
        for each in kube.unserved
    ]
    first = kube.unserved[0].name
    fix = f"start the scheduler of that name, or add {first} to schedulerNames of Apportion's "
    fix += "configuration"
    if first in OURS:
        fix = (
            f"check that the watcher and a scheduler run, and that schedulerNames contains {first}"
        )
    if any(each.name == KAI_SCHEDULER for each in kube.unserved):
        fix += (
            "; pods of kai-scheduler also wait for KAI's pod-grouper, if the cluster has its CRDs"
        )
    return warning(f"pending pods name schedulers that do not run: {listed(said)}", fix)


class Check(NamedTuple):
    """A check of the doctor, its documentation link, and the part of the facts that it needs."""

    id: str
    examine: Callable[[Any], Found | None]
    link: str
    part: str = ""  # a field of the facts; empty: all facts
    heard: bool = False  # unknown while the ledger's server does not answer


CHECKS: tuple[Check, ...] = (
    Check("ledger", reachable, "tasks/operate.md"),
    Check("server", server, "tasks/upgrade.md", "ledger"),
    Check("durability", durability, "tasks/back-up-and-restore.md", "ledger"),
    Check("replicas", replicas, "tasks/back-up-and-restore.md", "ledger"),
    Check("stream", stream, "tasks/ledger-problems.md", "ledger"),
    Check("disk", disk, "tasks/ledger-problems.md"),
    Check("clocks", clocks, "tasks/operate.md", "ledger"),
    Check("permissions", permissions, "tasks/operate.md", "ledger"),
    Check("snapshots", snapshots, "tasks/back-up-and-restore.md", "ledger"),
    Check("archives", archives, "tasks/back-up-and-restore.md", "archives"),
    Check("receipts", receipts, "tasks/receipts.md"),
    Check("gateway", gateway, "tasks/operate.md"),
    Check("folds", folds, "tasks/operate.md"),
    Check("placements", placements, "tasks/operate.md", "frozen", heard=True),
    Check("schedulers", schedulers, "tasks/scale.md", "schedulers", heard=True),
    Check("never-fitting", never_fitting, "concepts/pods.md", "waiting"),
    Check("starving-gangs", starving, "tasks/queues.md", "waiting"),
    Check("agents", agents, "tasks/node-health.md", "cluster", heard=True),
    Check("reports", reports, "tasks/node-health.md", "cluster"),
    Check("devices", devices, "tasks/node-health.md", "cluster"),
    Check("cordons", cordons, "tasks/operate.md", "cluster"),
    Check("nodes-without-agent", nodes_without_agent, "tasks/node-health.md", "cluster"),
    Check("agents-without-node", agents_without_node, "tasks/node-health.md", "cluster"),
    Check("device-plugins", device_plugins, "tasks/take-over-nodes.md", "cluster"),
    Check("second-scheduler", second_scheduler, "tasks/migrate.md", "cluster"),
    Check("drivers", drivers, "tasks/node-health.md", "cluster"),
    Check("refused-events", refused_events, "tasks/ledger-problems.md", "cluster"),
    Check("prices", prices, "tasks/charge-back.md", "prices"),
    Check("kubernetes", api_server, "reference/kubernetes-versions.md", "kube"),
    Check("rbac", rights, "get-started/kubernetes.md", "kube"),
    Check("webhook", webhook, "tasks/webhook.md", "kube"),
    Check("pods-without-scheduler", pods_without_scheduler, "tasks/controllers.md", "kube"),
)


def examined(facts: Facts) -> tuple[CheckAnswer, ...]:
    """Run every check whose facts were gathered, and return the results."""
    answers = []
    for check in CHECKS:
        part = getattr(facts, check.part) if check.part else facts
        if part is None:
            continue
        found = unknown(MUTE) if check.heard and facts.ledger_problem else check.examine(part)
        if found is not None:
            answers.append(
                CheckAnswer(
                    id=check.id, state=found.state, words=found.words, parts=found.parts,
                    fix=found.fix,
                    link="" if found.state in {"ok", "unknown"} else check.link,
                )
            )  # fmt: skip
    return tuple(answers)
