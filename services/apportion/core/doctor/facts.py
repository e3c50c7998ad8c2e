"""What was gathered of an installation; a part that nobody could look at is None."""

from msgspec import Struct


class Skew(Struct, frozen=True):
    """By how many seconds the clock of `who` is before that of the ledger's server."""

    who: str
    seconds: float


class LedgerFacts(Struct, frozen=True, kw_only=True):
    """The ledger's server and its stream, as a client sees them.

    `oldest` says which versions of the server this build needs. `drifted` are the settings of the
    stream that are not as they must be, in words, and `lost_records` are gone between its first and
    its last. `lagging` are servers of the cluster that do not hold all of the stream. `skews` are
    of this machine and of those who wrote last. `missing` are subjects that this user needs and may
    not use; None where nobody could ask. `sync_always`, and how much of the server's disk the
    ledger may take, are known only from the server's monitoring port. Ages are in seconds by the
    server's clock."""

    user: str
    server: str
    oldest: str
    replicas: int = 1
    lagging: tuple[str, ...] = ()
    drifted: tuple[str, ...] = ()
    lost_records: int = 0
    size_bytes: int = 0
    max_bytes: int = -1
    first_revision: int = 0
    last_revision: int = 0
    skews: tuple[Skew, ...] = ()
    missing: tuple[str, ...] | None = None
    sync_always: bool | None = None
    store_bytes: int = 0
    store_max_bytes: int = 0
    snapshot_revision: int = 0
    snapshot_age_s: float = 0.0
    snapshots_doubtful: int = 0


class ArchiveFacts(Struct, frozen=True, kw_only=True):
    """The archives of a folder: how many, and how old the newest is by this machine's clock."""

    folder: str
    archives: int
    newest_age_s: float = 0.0


class ReceiptFacts(Struct, frozen=True, kw_only=True):
    """Up to which revision the receipts of a folder reach, 0 where there is none, and since when.

    The age of the newest is in seconds by this machine's clock."""

    folder: str
    last: int = 0
    newest_age_s: float = 0.0


class FoldFacts(Struct, frozen=True, kw_only=True):
    """How far the gateway has folded while the ledger was at `last_revision`, or why it has not."""

    revision: int
    last_revision: int
    unready: str = ""


class FailedDevices(Struct, frozen=True):
    """How many devices of a node have failed, how many pods hold shares of them, and of which.

    `cordoned` is what a cordon besides keeps off offer: some of these devices, or the whole node.
    """

    node: str
    devices: int
    pods: int
    held: tuple[str, ...] = ()
    cordoned: tuple[str, ...] = ()


class SilentAgent(Struct, frozen=True):
    """A node whose agent was found silent, when, and how many pods are placed there."""

    node: str
    time: str
    pods: int = 0


class Cordoned(Struct, frozen=True):
    """A node or a device that nothing new may go onto, and in words who said so, when and why."""

    target: str
    words: str


class ClusterFacts(Struct, frozen=True, kw_only=True):
    """What a fold says of nodes and agents.

    `simulated` are those of the silent nodes that are not real, and `simulated_nodes` is how many
    are not in all; `refused` are nodes with the cause for which an intake did not take what their
    agents said; `without_agent` have GPUs or NPUs by what Kubernetes says, and nobody reports them;
    `without_node` are reported and no node of the cluster. `drivers` are nodes by the version of
    their driver. Of `refused_events`, which changed nothing, `late_events` are words that came
    while the pod ended; `last_refusal` is the newest of the others."""

    revision: int
    nodes: int = 0
    devices: int = 0
    failed: tuple[FailedDevices, ...] = ()
    cordoned: tuple[Cordoned, ...] = ()
    silent: tuple[SilentAgent, ...] = ()
    simulated: tuple[str, ...] = ()
    simulated_nodes: int = 0
    refused: tuple[tuple[str, str], ...] = ()
    without_agent: tuple[str, ...] = ()
    without_node: tuple[str, ...] = ()
    drivers: dict[str, tuple[str, ...]] = {}
    refused_events: int = 0
    late_events: int = 0
    last_refusal: str = ""


class StarvingGang(Struct, frozen=True):
    """A gang that has waited long, with the name of its newest pod.

    `needed` is how many pods must start together, 0 where no PodGroup declares it; `present` is how
    many it has. `overtaken` counts placed pods of no higher priority that were submitted later."""

    group: str
    pod: str
    waits_s: float
    needed: int
    present: int
    overtaken: int


class WaitingFacts(Struct, frozen=True, kw_only=True):
    """How many pods wait, the names of those that can never fit, and the gangs that starve."""

    waiting: int = 0
    never: tuple[str, ...] = ()
    starving: tuple[StarvingGang, ...] = ()


class SchedulerFacts(Struct, frozen=True, kw_only=True):
    """The schedulers that beat, each as `name/life`, where a life is one process."""

    members: tuple[str, ...] = ()


class PriceFacts(Struct, frozen=True, kw_only=True):
    """The gateway's price file, and why no report of the cost can be made from it, if none can."""

    file: str
    problem: str = ""


class KubeFacts(Struct, frozen=True, kw_only=True):
    """The API server, as one user sees it.

    `problem` is why it cannot be asked; `denied` is what this user may not do of what the services
    do. `webhook` is empty where none is set up, else `ready` or what is wrong with it; None where
    this user may not look."""

    url: str
    version: str = ""
    problem: str = ""
    denied: tuple[str, ...] = ()
    webhook: str | None = ""


class Facts(Struct, frozen=True, kw_only=True):
    """All that was gathered; what could not be reached is in the two problems. `not_let_in`: the
    gateway's is that it does not let in who asks. `frozen` is a key of `FREEZES`, empty if pods can
    be placed."""

    ledger: LedgerFacts | None = None
    ledger_problem: str = ""
    frozen: str | None = None
    gateway_problem: str = ""
    not_let_in: bool = False
    archives: ArchiveFacts | None = None
    receipts: ReceiptFacts | None = None
    fold: FoldFacts | None = None
    cluster: ClusterFacts | None = None
    waiting: WaitingFacts | None = None
    schedulers: SchedulerFacts | None = None
    prices: PriceFacts | None = None
    kube: KubeFacts | None = None
