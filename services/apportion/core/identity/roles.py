"""The table of roles: each role's purpose, and the subjects that it may use.

Subjects may contain `{name}`, the identity's name, and `{node}`, expanded for each of its nodes.

No client is in the ledger's account, because a client there could have the server's replies sent
into the ledger or to its API (see `sharing`). Agents run on nodes with tenants and have their own
account: a misdirected reply reaches only other agents. Services that answer users, kube-schedulers
or the API server share an account, because none of them takes requests over NATS. Users have a
third account. Auditors have a fourth, separate from the account with their copy. Each writing
service has an account for itself.

Invariants: an event has one writer, as in the catalogue. A role that may send to any reply subject
(`answering`) cannot send a request to itself."""

from typing import Final, Literal

import msgspec

# `copy`: the auditors' copy of the stream, without snapshots
Reads = Literal["everything", "configuration", "copy", "nothing"]

# The configuration of a ledger whose beginning was dropped
KEPT_CONFIGURATION: Final = (
    "$JS.STORE.API.DIRECT.GET.OBJ_APPORTION_BEGINNING.$O.APPORTION_BEGINNING.C.configuration"
)


# `NODES`: agents. `FRONT`: services reached over HTTP. `PEOPLE`: users. `READERS`: auditors
Account = Literal[
    "APPORTION", "STORE", "AUDIT", "BOOTSTRAP", "NODES", "FRONT", "PEOPLE", "WATCHER", "INTAKE",
    "BINDER", "SCHEDULER", "DEFRAG", "READERS", "AUTH",
]  # fmt: skip
LEDGER: Final = "APPORTION"  # the ledger's account
STORE: Final = "STORE"
"""The account with the buckets for snapshots. It has no users.

A consumer can deliver to any subject of its account, and its creator chooses the subject. So
subjects that the ledger's consumers must not write to are in another account."""
AUDIT: Final = "AUDIT"  # the account of the auditors' copy, with its own limits; it has no users
# The account that creates the ledger and the auditors' copy, which only it can reach
BOOTSTRAP: Final = "BOOTSTRAP"
AUTH: Final = "AUTH"  # the account of the callout
ANSWERS_BESIDE: Final = "_R_.>"
"""The server's reply subjects for other accounts, each with 64 random bits.

No client subscribes to them, and no request may name one."""


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """A role on the bus: its purpose, its account, and what it may do."""

    name: str
    does: str
    account: Account
    reads: Reads = "everything"
    consumers: int = 4  # the most at one time
    appends: tuple[str, ...] = ()  # subjects below `apportion.v1`
    sends: tuple[str, ...] = ()  # full subjects to publish to
    hears: tuple[str, ...] = ()  # full subjects to subscribe to
    answering: bool = False  # may reply to any message that it receives


ROLES: Final = (
    Role(
        name="bootstrap",
        does="creates and trims the ledger: `apportion ledger create | resize | trim`",
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
            # the state at the start of a trimmed ledger: only bootstrap writes and purges it
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
        does="reports on its nodes and gives containers their allocated devices",
        account="NODES",
        sends=(
            # events that the intake appends for it, and current usage, which is not stored
            "apportion.intake.{node}",
            # requests that the intake sends to the ledger's server for it
            "apportion.reading.{node}",
            "apportion.usage.{node}",
            "apportion.beat.agent.{node}",
        ),
        hears=("apportion.command.agent.{node}", "apportion.command.agent.{node}.>"),
        answering=True,
    ),
    Role(
        name="intake",
        does="checks and appends agents' reports; reads the ledger for agents; attests snapshots",
        account="INTAKE",
        appends=("inventory.*", "allocation.*", "usage.*", "intake.*"),
        sends=(
            "apportion.beat.intake.>",
            # which snapshots of schedulers match the ledger
            "$O.APPORTION_SNAPSHOTS.C.attested.*",
            # the consumers of agents that read one node's part; never the shared queue
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
        does="reports pods, nodes and other objects of Kubernetes or a manifest folder",
        account="WATCHER",
        appends=("workload.*", "adoption.>", "cluster.>"),
        sends=("apportion.beat.watcher.>",),
        hears=("apportion.beat.>",),
    ),
    Role(
        name="scheduler",
        does="places pods, writes prices and snapshots, records which agents stop reporting",
        account="SCHEDULER",
        appends=("placement.*", "pending.*", "limits.>", "policy.prices", "presence.*"),
        sends=(
            "apportion.beat.scheduler.>",
            # snapshots: any scheduler writes them and deletes old ones
            "$O.APPORTION_SNAPSHOTS.C.*",
            "$O.APPORTION_SNAPSHOTS.M.*",
            "$JS.STORE.API.STREAM.PURGE.OBJ_APPORTION_SNAPSHOTS",
            # not `answering`: it receives its own heartbeats, whose reply subject it could choose
            ANSWERS_BESIDE,
        ),
        hears=("apportion.command.scheduler.*", "apportion.beat.>"),
        consumers=16,
    ),
    Role(
        name="binder",
        does="binds pods to their chosen nodes",
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
        does="answers users and programs from its own copy of the state; records their cordons",
        account="FRONT",
        appends=("operator.node.*", "operator.device.*"),
        sends=("apportion.beat.gateway.>", "$SYS.REQ.USER.INFO"),
        hears=("apportion.beat.>", "apportion.usage.*"),
        consumers=16,
    ),
    Role(
        name="extender",
        does="answers kube-scheduler and forwards the node that kube-scheduler chose for a pod",
        account="FRONT",
        sends=("apportion.beat.extender.>", "apportion.command.scheduler.*"),
        hears=("apportion.beat.>",),
    ),
    Role(
        name="admission",
        does="the webhook: checks and patches new pods; reads only the configuration",
        account="FRONT",
        reads="configuration",
    ),
    Role(
        name="operator",
        does="the command line: records users' changes, and pods submitted without Kubernetes",
        account="PEOPLE",
        appends=("operator.>", "workload.*", "adoption.>", "cluster.>"),
        sends=(
            "apportion.command.agent.>",
            # this user's own permissions: `apportion doctor`
            "$SYS.REQ.USER.INFO",
            # readers that would halt at a format: `apportion ledger enable`
            "$JS.API.CONSUMER.LIST.APPORTION",
            # `ledger trim` must not drop a configuration that is stored nowhere else
            KEPT_CONFIGURATION,
        ),
        hears=("apportion.beat.>", "apportion.usage.*"),
        consumers=32,
    ),
    Role(
        name="defrag",
        does="the job that runs `apportion defrag` on a schedule: cordons nodes and lifts cordons",
        account="DEFRAG",
        reads="nothing",
        appends=("operator.node.*",),
        sends=(
            # the newest revision, and the formats that the ledger has enabled
            "$JS.API.STREAM.INFO.APPORTION",
            "$JS.API.STREAM.MSG.GET.APPORTION",
        ),
    ),
    Role(
        name="auditor",
        does="reads a copy of the ledger with any NATS client",
        account="READERS",
        reads="copy",
        hears=("apportion.v1.>", "apportion.beat.>", "apportion.usage.*"),
        consumers=16,
    ),
    Role(
        name="callout",
        does="gives the NATS server the identity and permissions of a ServiceAccount",
        account=AUTH,
        reads="nothing",
        hears=("$SYS.REQ.USER.AUTH",),
        answering=True,
    ),
)
BY_NAME: Final = {role.name: role for role in ROLES}
