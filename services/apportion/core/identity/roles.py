"""The table: what each role does, reads, sends and hears.

Subjects hold `{name}`, which is the identity's, and `{node}`, once for each of its nodes.

Whoever is in one account with the ledger can have the server's answers sent into it, or to its API
(see `sharing`); so nobody is, and all are beside it. Agents, on machines where tenants are, have an
account to themselves: an answer that one of them sends astray reaches other agents, who take no
such command. Those who answer people, kube-schedulers and the API server have another one, and what
they have in common is that nobody asks them anything over NATS. People have a third; auditors a
fourth, beside the account that has their copy. A service that writes has one for itself, so that
what one sends astray reaches no other.

Invariants: an event has one writer, as the catalogue says; nobody who is `answering`, and so may
send to whatever a request names as its reply, can send a request to himself."""

from typing import Final, Literal

import msgspec

Reads = Literal["everything", "configuration", "copy", "nothing"]
"""`copy`: the auditors' own copy of the stream, without its snapshots."""

KEPT_CONFIGURATION: Final = (
    "$JS.STORE.API.DIRECT.GET.OBJ_APPORTION_BEGINNING.$O.APPORTION_BEGINNING.C.configuration"
)
"""The configuration of a ledger whose beginning was dropped."""


Account = Literal[
    "APPORTION", "STORE", "AUDIT", "BOOTSTRAP", "NODES", "FRONT", "PEOPLE", "WATCHER", "INTAKE",
    "BINDER", "SCHEDULER", "READERS", "AUTH",
]  # fmt: skip
"""`NODES` is that of agents; `FRONT` of those whom the world outside reaches, over HTTP; `PEOPLE`
of people, at the command line; `READERS` of auditors, who only read along.
"""
LEDGER: Final = "APPORTION"  # the account that has the ledger
STORE: Final = "STORE"
"""The account that has the buckets of states. It has no users.

A consumer delivers within its own account to any subject that its owner names. So what the ledger's
consumers must not write is in another account.
"""
AUDIT: Final = "AUDIT"
"""That has the auditors' copy of the stream, with limits of its own; nobody is in it."""
BOOTSTRAP: Final = "BOOTSTRAP"
"""That of who makes the ledger, and the auditors' copy of it: from nowhere else is it reached."""
AUTH: Final = "AUTH"  # that of who says who somebody is
ANSWERS_BESIDE: Final = "_R_.>"
"""Where the server wants the answers to those in other accounts: below it, every request has a
subject that the server makes of 64 random bits, that nobody hears, and that no request may name."""


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """One row.

    `appends` are subjects below `apportion.v1`, `sends` and `hears` are whole ones. `answering`: it
    may send to the reply of any message that it was sent. `consumers`: how many readers of the
    ledger it may have at once."""

    name: str
    does: str
    account: Account
    reads: Reads = "everything"
    consumers: int = 4
    appends: tuple[str, ...] = ()
    sends: tuple[str, ...] = ()
    hears: tuple[str, ...] = ()
    answering: bool = False


ROLES: Final = (
    Role(
        name="bootstrap",
        does="makes the ledger, and drops its beginning: `apportion ledger create | resize | trim`",
        account=BOOTSTRAP,
        reads="nothing",
        sends=(
            "$JS.API.INFO",
            "$JS.API.STREAM.INFO.APPORTION",
            "$JS.API.STREAM.CREATE.APPORTION",
            "$JS.API.STREAM.UPDATE.APPORTION",
            "$JS.API.STREAM.PURGE.APPORTION",
            "$JS.STORE.API.STREAM.INFO.OBJ_APPORTION_SNAPSHOTS",
            "$JS.STORE.API.STREAM.CREATE.OBJ_APPORTION_SNAPSHOTS",
            # the state with which a trimmed ledger begins: bootstrap alone writes and purges it
            "$JS.STORE.API.STREAM.INFO.OBJ_APPORTION_BEGINNING",
            "$JS.STORE.API.STREAM.CREATE.OBJ_APPORTION_BEGINNING",
            "$JS.STORE.API.STREAM.PURGE.OBJ_APPORTION_BEGINNING",
            "$JS.STORE.API.DIRECT.GET.OBJ_APPORTION_BEGINNING",
            "$O.APPORTION_BEGINNING.>",
            # the auditors' copy
            "$JS.AUDIT.API.STREAM.INFO.APPORTION",
            "$JS.AUDIT.API.STREAM.CREATE.APPORTION",
            "$JS.AUDIT.API.STREAM.PURGE.APPORTION",
        ),
    ),
    Role(
        name="agent",
        does="tells of its nodes, and hands out their shares",
        account="NODES",
        sends=(
            # what the intake is to append for it, and what is used now, which nobody stores
            "apportion.intake.{node}",
            # what the intake is to ask the ledger's server for it
            "apportion.reading.{node}",
            "apportion.usage.{node}",
            "apportion.beat.agent.{node}",
        ),
        hears=("apportion.command.agent.{node}", "apportion.command.agent.{node}.>"),
        answering=True,
    ),
    Role(
        name="intake",
        does="judges what agents report and appends it; reads for agents; attests snapshots",
        account="INTAKE",
        appends=("inventory.*", "allocation.*", "usage.*", "intake.*"),
        sends=(
            "apportion.beat.intake.>",
            # which of the schedulers' snapshots are what the ledger folds to
            "$O.APPORTION_SNAPSHOTS.C.attested.*",
            # the consumers of agents that read the part of one node; never the shared queue
            "$JS.API.CONSUMER.CREATE.APPORTION.*",
            "$JS.API.CONSUMER.INFO.APPORTION.*",
            "$JS.API.CONSUMER.DELETE.APPORTION.*",
        ),
        hears=("apportion.intake.*", "apportion.reading.*"),
        answering=True,
        consumers=8,
    ),
    Role(
        name="watcher",
        does="tells of pods, nodes and what else Kubernetes or a folder of manifests has",
        account="WATCHER",
        appends=("workload.*", "adoption.>", "cluster.>"),
        sends=("apportion.beat.watcher.>",),
        hears=("apportion.beat.>",),
    ),
    Role(
        name="scheduler",
        does="places pods, writes prices and snapshots, and notes which agents are silent",
        account="SCHEDULER",
        appends=("placement.*", "pending.*", "policy.prices", "presence.*"),
        sends=(
            "apportion.beat.scheduler.>",
            # snapshots: any scheduler writes them, and frees the old ones
            "$O.APPORTION_SNAPSHOTS.C.*",
            "$O.APPORTION_SNAPSHOTS.M.*",
            "$JS.STORE.API.STREAM.PURGE.OBJ_APPORTION_SNAPSHOTS",
            # not `answering`: it hears its own beats, whose reply it could choose
            ANSWERS_BESIDE,
        ),
        hears=("apportion.command.scheduler.*", "apportion.beat.>"),
        consumers=16,
    ),
    Role(
        name="binder",
        does="binds pods to the nodes that were decided",
        account="BINDER",
        appends=("binding.*",),
        sends=(
            "apportion.beat.binder.>",
            # the one shared queue
            "$JS.API.CONSUMER.CREATE.APPORTION.binder",
            "$JS.API.CONSUMER.CREATE.APPORTION.binder.>",
            "$JS.API.CONSUMER.INFO.APPORTION.binder",
            "$JS.API.CONSUMER.MSG.NEXT.APPORTION.binder",
            "$JS.ACK.APPORTION.binder.>",
        ),
        hears=("apportion.beat.>",),
        consumers=16,
    ),
    Role(
        name="gateway",
        does="answers people and programs from a fold of its own; writes what they cordon",
        account="FRONT",
        appends=("operator.node.*", "operator.device.*"),
        sends=("apportion.beat.gateway.>", "$SYS.REQ.USER.INFO"),
        hears=("apportion.beat.>", "apportion.usage.*"),
        consumers=16,
    ),
    Role(
        name="extender",
        does="answers kube-scheduler, and hands on where it wants a pod",
        account="FRONT",
        sends=("apportion.beat.extender.>", "apportion.command.scheduler.*"),
        hears=("apportion.beat.>",),
    ),
    Role(
        name="admission",
        does="the webhook: reads the configuration, and appends nothing",
        account="FRONT",
        reads="configuration",
    ),
    Role(
        name="operator",
        does="the command line: what people do, and what they submit where there is no Kubernetes",
        account="PEOPLE",
        appends=("operator.>", "workload.*", "adoption.>", "cluster.>"),
        sends=(
            "apportion.command.agent.>",
            # what this user itself may do: `apportion doctor`
            "$SYS.REQ.USER.INFO",
            # who would halt at a format: `apportion ledger enable`
            "$JS.API.CONSUMER.LIST.APPORTION",
            # what `ledger trim` may drop: not a configuration that is kept nowhere else
            KEPT_CONFIGURATION,
        ),
        hears=("apportion.beat.>", "apportion.usage.*"),
        consumers=32,
    ),
    Role(
        name="auditor",
        does="reads along with any NATS client, in a copy of the ledger",
        account="READERS",
        reads="copy",
        hears=("apportion.v1.>", "apportion.beat.>", "apportion.usage.*"),
        consumers=16,
    ),
    Role(
        name="callout",
        does="says who a ServiceAccount is, and what it may do: the server asks it",
        account=AUTH,
        reads="nothing",
        hears=("$SYS.REQ.USER.AUTH",),
        answering=True,
    ),
)
BY_NAME: Final = {role.name: role for role in ROLES}
