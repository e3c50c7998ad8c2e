"""Checks of what folds the ledger, of nodes and their agents, and of the Kubernetes cluster."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from apportion.core.doctor.facts import ClusterFacts, Facts
from apportion.core.doctor.found import (
    Found,
    age,
    broken,
    counted,
    counted_nodes,
    ok,
    soon,
    unknown,
)
from apportion.core.explain.health import FREEZES, found_silent, moving
from apportion.core.explain.text.event_text import LISTED, listed
from apportion.core.explain.text.words import device_words, many, nodes

FOLD_BEHIND_SOON: Final = 1_000
FEW: Final = 2
"""So many names beside the first are read in a sentence; more of them are counted."""
MUTE: Final = "the ledger's server does not answer"
"""Why nothing is known of what is told over it."""
CURE: Final = (
    "look at the agent's log on that node; what nobody can explain may be the work of somebody who "
    "has taken the node over"
)
CURES: Final[dict[str, str]] = {
    "device-of-another-node": "start the agent of the node that had the card, or delete that node",
    "flapping": "`apportion history NODE` tells which card fails and recovers: cordon it",
    "implausible-device": "a model that is new goes into the device catalogue; another card lies",
    "implausible-time": "set the clock of that node",
    "unknown-format": "upgrade the intakes, which come before the agents",
}
"""What to do about a report that an intake refuses, by its cause."""
LET_IN: Final = "ask with the token of somebody who may read the doctor, or everything"
OLDEST_DRIVER: Final = 450
"""The first branch of NVIDIA's driver that knows MIG."""


def gateway(facts: Facts) -> Found | None:
    """Whether the gateway answers this verb at all."""
    if facts.not_let_in:
        return soon(f"answers, and not this: {facts.gateway_problem}", LET_IN)
    if facts.gateway_problem:
        fix = "start one, or tell where it is: --gateway URL or APPORTION_GATEWAY"
        return broken(facts.gateway_problem, fix)
    return None if facts.fold is None or facts.fold.unready else ok("answers")


def folds(facts: Facts) -> Found | None:
    """Whether the gateway's fold is up to the end of the ledger."""
    fold = facts.fold
    if fold is None:
        return None
    if facts.ledger_problem:
        return unknown(f"{MUTE}; the gateway has folded up to revision {fold.revision:,}")
    if fold.unready:
        return broken(f"the gateway is not ready: {fold.unready}", "wait, or look at its log")
    behind = fold.last_revision - fold.revision
    if behind > FOLD_BEHIND_SOON:
        return soon(
            f"the gateway is {behind:,} events behind the ledger",
            "ask again; if it stays so, give it more processor",
        )
    return ok(f"the gateway is at revision {fold.revision:,}, the end of the ledger")


def placements(facts: Facts) -> Found | None:
    """Whether anything prevents that pods are placed and started."""
    if facts.frozen is None:
        return None
    if facts.ledger_problem:
        return unknown(MUTE)
    if not facts.frozen:
        return ok("nothing prevents that pods are placed")
    why, fix = FREEZES.get(facts.frozen, (facts.frozen, "look at the logs of the schedulers"))
    return broken(f"no pod is placed or started: {why}", fix)


def never_fitting(facts: Facts) -> Found | None:
    """Whether pods wait that no node, queue or quota of this cluster could ever hold."""
    found = facts.waiting
    if found is None:
        return None
    if not found.never:
        return ok(f"every pod that waits could fit ({many(found.waiting, 'pod')})")
    return soon(
        f"{many(len(found.never), 'pod')} can never fit: {listed(list(found.never))}",
        f"`apportion why {found.never[0]}` names what every node lacks, or the limit; change what "
        "the pod requests, add such a node, or delete the pod",
    )


def starving(facts: Facts) -> Found | None:
    """Whether gangs wait for long while others are placed, or for pods that do not come."""
    found = facts.waiting
    if found is None:
        return None
    if not found.starving:
        return ok("no gang waits for long")
    first = found.starving[0]
    names = listed([gang.group for gang in found.starving])
    words = f"starving: {names}; {first.group} has waited {age(first.waits_s)} "
    if not first.needed:
        words, fix = words + "for its PodGroup", "create the PodGroup, or delete the pods"
    elif first.present < first.needed:
        words += f"with {first.present:,} of {first.needed:,} pods"
        fix = "create the pods that are missing, lower minAvailable, or delete the gang"
    else:
        words += f"for {first.needed:,} places together"
        words += f", and {many(first.overtaken, 'later pod')} got placed" if first.overtaken else ""
        fix = (
            f"`apportion why {first.pod}` names the nearest nodes; cordon them until they are "
            "free, or give the gang a higher priority"
        )
    return soon(words, fix)


def schedulers(facts: Facts) -> Found | None:
    """Whether somebody decides, and each under a name of its own."""
    found = facts.schedulers
    if found is None:
        return None
    if facts.ledger_problem:
        return unknown(MUTE)
    if not found.members:
        return broken("no scheduler is heard: nothing is placed", "start `apportion scheduler`")
    names = Counter(member.rpartition("/")[0] for member in found.members)
    twice = sorted(name for name, count in names.items() if count > 1)
    if twice:
        return soon(
            f"{counted(twice, 'name')} of more than one scheduler: decisions do not tell whose "
            "they are",
            "give each a --name of its own",
        )
    return ok(counted(sorted(names), "scheduler"))


def agents(facts: Facts) -> Found | None:
    """Whether the agent of every node is heard."""
    cluster = facts.cluster
    if cluster is None:
        return None
    if facts.ledger_problem:
        return unknown(MUTE)
    if not cluster.silent:
        return ok(f"no agent is silent ({nodes(cluster.nodes)})")
    first = min(cluster.silent, key=lambda each: each.time)
    whose = f"the first was {first.node}, " if len(cluster.silent) > 1 else ""
    since = whose + found_silent(first.time)
    pods = sum(each.pods for each in cluster.silent)
    silent = counted_nodes([(each.node, "") for each in cluster.silent], "agent")
    held = [each.node for each in cluster.silent if each.pods]
    fix = _bring_back(cluster)
    # Where more nodes are silent than are heard, so many pods have nowhere to be moved to, and what
    # is wrong is rather with what the agents have in common.
    mostly_silent = len(cluster.silent) * 2 > cluster.nodes
    if held and not mostly_silent:
        fix += f". If it stays away {moving(held[0])}{_and_so(held)}"
    held_by = f", with {many(pods, 'pod')}" if pods else ""
    return broken(("not heard: ", *silent, f", {since}{held_by}"), fix)


def _bring_back(cluster: ClusterFacts) -> str:
    """What brings silent agents back, the likeliest first.

    One agent simulates many nodes, and `simulate lose` loses them one by one: where none of them is
    heard, it is rather the agent that has ended or is stopped. Beside silent agents of real nodes
    nobody knows.
    """
    start = (
        "start the agent there again (`kubectl -n apportion get pods -o wide`, or `systemctl "
        "status` on the node); the node takes pods by itself once it is heard"
    )
    if not cluster.simulated:
        return start
    back = f"`apportion simulate return {cluster.simulated[0]}`{_and_so(cluster.simulated)}"
    if len(cluster.simulated) < max(cluster.simulated_nodes, len(cluster.silent)):
        return f"{back}, if `simulate lose` lost it; else {start}"
    return (
        "look at the process of the agent that simulates, and at its log (logs/agent.log in the "
        "folder of `apportion up`): let it go on if it is stopped, else start it again; its nodes "
        f"take pods by themselves once it is heard. Where `simulate lose` was the cause: {back}"
    )


def _and_so(names: Sequence[str]) -> str:
    """That the same is for all but the first of these, with their names where they are few."""
    rest = list(names[1:])
    if len(rest) > FEW:
        return f", and so for the other {len(rest):,}"
    return f", and so for {listed(rest)}" if rest else ""


def reports(facts: Facts) -> Found | None:
    """Whether what agents say is taken."""
    cluster = facts.cluster
    if cluster is None:
        return None
    if not cluster.refused:
        return ok("no report of an agent is refused")
    said = counted_nodes([(name, f" ({why})") for name, why in cluster.refused], "node")
    node, cause = cluster.refused[0]
    cure = CURES.get(cause, CURE).replace("NODE", node)
    return soon(
        ("refused what the agents say of ", *said),
        f"`apportion get nodes` shows why; {cure}. An agent reports again within a minute",
    )


def devices(facts: Facts) -> Found | None:
    """Whether devices have failed, and pods are on them."""
    cluster = facts.cluster
    if cluster is None:
        return None
    if not cluster.failed:
        return ok(f"no device has failed ({cluster.devices:,} devices)")
    count = sum(failed.devices for failed in cluster.failed)
    pods = sum(failed.pods for failed in cluster.failed)
    where = counted_nodes([(failed.node, "") for failed in cluster.failed], "node")
    words = (f"{count:,} of {cluster.devices:,} devices failed, on ", *where)
    node = next((failed.node for failed in cluster.failed if failed.pods), cluster.failed[0].node)
    rest = [failed.node for failed in cluster.failed if failed.node != node]
    others = f", and so for {listed(rest)}" if rest else ""
    shows = f"`apportion get devices --node {node}` shows which, and why"
    if not pods:
        # What else keeps failed devices off offer, once they are well.
        shut = [device_words(target) for failed in cluster.failed for target in failed.cordoned]
        more = f", and so for {listed(shut[1:])}" if shut[1:] else ""
        opens = (
            f", but for what is cordoned, which `apportion uncordon {shut[0]}` opens again{more}"
            if shut
            else ""
        )
        return soon(
            (*words, "; no pod is on them"),
            f"{shows}{others}; repair them: they take pods by themselves then{opens}",
        )
    held = [device_words(device) for failed in cluster.failed for device in failed.held]
    more = f", and so for {listed(held[1:])}" if held[1:] else ""
    return broken(
        (*words, f"; {pods:,} pod{' is' if pods == 1 else 's are'} on them"),
        f"{shows}{others}; `apportion who {held[0]}` tells whose pods, `apportion drain {held[0]} "
        f"--reason WHY` moves them{more}",
    )


def cordons(facts: Facts) -> Found | None:
    """What people keep off offer, who and why: nothing is wrong with that, but it is forgotten."""
    cluster = facts.cluster
    if cluster is None:
        return None
    if not cluster.cordoned:
        return ok("no node or device is cordoned")
    said = [f"{device_words(each.target)}: {each.words}" for each in cluster.cordoned]
    more = len(said) - LISTED
    rest = [f"and {more:,} more, which `apportion get nodes` and `get devices` show"]
    return ok("cordoned: " + ";\n".join([*said[:LISTED], *(rest if more > 0 else ())]))


def nodes_without_agent(facts: Facts) -> Found | None:
    """Whether nodes have devices that nobody reports."""
    cluster = facts.cluster
    if cluster is None:
        return None
    if not cluster.without_agent:
        return ok("every node with devices is reported by an agent")
    return soon(
        (
            *counted_nodes([(name, "") for name in cluster.without_agent], "node"),
            " with devices that no agent reports",
        ),
        "let the agent's DaemonSet run there: its node selector and tolerations",
    )


def agents_without_node(facts: Facts) -> Found | None:
    """Whether agents report nodes that the cluster does not have."""
    cluster = facts.cluster
    if cluster is None:
        return None
    if not cluster.without_node:
        return ok("every agent is on a node of the cluster")
    return soon(
        f"{counted(cluster.without_node, 'agent')} on no node of the cluster",
        "give the agent the --node that `kubectl get nodes` shows",
    )


def drivers(facts: Facts) -> Found | None:
    """Whether drivers are recent, and alike."""
    cluster = facts.cluster
    if cluster is None or not cluster.drivers:
        return None
    old = [
        f"{version} on {', '.join(there[:2])}"
        for version, there in cluster.drivers.items()
        if _branch(version) and _branch(version) < OLDEST_DRIVER
    ]
    if old:
        return soon(
            f"{counted(old, 'driver')} before {OLDEST_DRIVER}, which does not know MIG",
            f"install a driver of branch {OLDEST_DRIVER} or newer",
        )
    versions = [f"{version} ({len(there)})" for version, there in cluster.drivers.items()]
    if len({_branch(version) for version in cluster.drivers}) > 1:
        return soon(
            f"nodes have {counted(versions, 'driver')}",
            "containers of one image may run here and not there: bring all to one branch",
        )
    return ok(counted(versions, "driver"))


def refused_events(facts: Facts) -> Found | None:
    """Whether the ledger holds events that no reader applies, but for what came late."""
    cluster = facts.cluster
    if cluster is None:
        return None
    if not cluster.last_refusal:
        late = f", but for {many(cluster.late_events, 'word')} that came while the pod ended"
        return ok("every event of the ledger is applied" + (late if cluster.late_events else ""))
    return soon(
        f"{many(cluster.refused_events - cluster.late_events, 'event')} that no reader applies; "
        f"the last is at {cluster.last_refusal}",
        "`apportion verify` names them; one that goes on comes from a writer that is broken",
    )


def prices(facts: Facts) -> Found | None:
    """Whether the price file that the gateway was given has a price for every model."""
    found = facts.prices
    if found is None:
        return None
    if not found.problem:
        return ok(f"{found.file} has a price for every model of the fleet")
    return broken(
        f"no report of the cost can be made from {found.file}: {found.problem}",
        "mend that file; the next report reads it anew",
    )


def _branch(version: str) -> int:
    """The number before the first dot, 0 where there is none."""
    head = version.partition(".")[0]
    return int(head) if head.isascii() and head.isdecimal() else 0


# Checks of the Kubernetes cluster, as the person who asks sees it.

OLDEST: Final = (1, 20)
"""The oldest API server that the nightly tests run on."""


def api_server(facts: Facts) -> Found | None:
    """Whether it answers, and is of a version that we work with."""
    kube = facts.kube
    if kube is None:
        return None
    if kube.problem:
        return broken(kube.problem, "look at the kubeconfig: `kubectl version` must answer")
    match = re.match(r"v?(\d+)\.(\d+)", kube.version)
    oldest = ".".join(map(str, OLDEST))
    if match is None:
        return soon(
            f"{kube.url} is of version {kube.version!r}", f"use Kubernetes {oldest} or newer"
        )
    if (int(match[1]), int(match[2])) < OLDEST:
        return broken(
            f"{kube.url} is of version {kube.version}", f"use Kubernetes {oldest} or newer"
        )
    return ok(f"{kube.url} is of version {kube.version}")


def rights(facts: Facts) -> Found | None:
    """Whether the user of the kubeconfig may do what the services do."""
    kube = facts.kube
    if kube is None or kube.problem:
        return None
    if kube.denied:
        return soon(
            f"this user may not {counted(kube.denied, 'request')}",
            "the services need it; apply deploy/kubernetes/rbac, or ask as their accounts: a "
            "kubeconfig with their token",
        )
    return ok("this user may do all that watcher and binder do")


def webhook(facts: Facts) -> Found | None:
    """Whether a webhook that is set up is there to answer."""
    kube = facts.kube
    if kube is None or kube.problem or kube.webhook is None:
        return None
    if not kube.webhook:
        return ok("no webhook is set up")
    if kube.webhook == "ready":
        return ok("the webhook has a certificate and somebody who answers")
    return broken(
        f"the webhook is set up, and {kube.webhook}",
        "start `apportion admission` with its Service, or delete the webhook configuration",
    )
