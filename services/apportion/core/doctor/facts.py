"""The facts about an installation that the doctor checks; a missing fact is None."""

from msgspec import Struct


class Skew(Struct, frozen=True):
    """How many seconds the clock of the machine or writer `who` is ahead of the ledger server's."""

    who: str
    seconds: float


class LedgerFacts(Struct, frozen=True, kw_only=True):
    """The ledger's server and its stream, as a client sees them.

    `oldest` names the oldest server versions that this build accepts. `drifted` lists settings of
    the stream that are wrong; `lost_records` counts records missing from it. `lagging` are servers
    without the complete stream. `skews` are those of this machine and of the latest writers.
    `missing` are subjects that this user needs but may not use; None if unknown. `sync_always` and
    the store sizes come from the server's monitoring port only. Ages are by the server's clock."""

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
    """The archives in a folder; the age of the newest is by this machine's clock."""

    folder: str
    archives: int
    newest_age_s: float = 0.0


class ReceiptFacts(Struct, frozen=True, kw_only=True):
    """The last revision that has a receipt, or 0; the age is by this machine's clock."""

    folder: str
    last: int = 0
    newest_age_s: float = 0.0


class FoldFacts(Struct, frozen=True, kw_only=True):
    """The revision that the gateway has reached, and the ledger's last one at that time."""

    revision: int
    last_revision: int
    unready: str = ""


class FailedDevices(Struct, frozen=True):
    """A node's failed devices, and how many of them are cordoned, directly or with the node."""

    node: str
    devices: int
    pods: int
    held: tuple[str, ...] = ()
    cordoned: tuple[str, ...] = ()


class SilentAgent(Struct, frozen=True):
    """A node whose agent was found silent, since when, and how many pods are placed there."""

    node: str
    time: str
    pods: int = 0


class Cordoned(Struct, frozen=True):
    """A cordoned node or device, with its cordons as text."""

    target: str
    words: str


class ClusterFacts(Struct, frozen=True, kw_only=True):
    """Facts about nodes and agents, from the state.

    `simulated` are silent simulated nodes, of `simulated_nodes` in all. `refused` has the nodes
    whose reports an intake refused, with the cause. `without_agent` have GPUs or NPUs in
    Kubernetes, but no agent reports them. `without_node` are reported by an agent, but are not
    nodes of the cluster. `drivers` has the nodes by driver version. Of `refused_events`,
    `late_events` were written while the pod ended; `last_refusal` is the newest of the others."""

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
    """A gang that has been pending for a long time; `pod` is its newest pod.

    `needed` pods must start together, 0 if no PodGroup declares the gang; `present` pods exist.
    `overtaken` counts placed pods of no higher priority that were submitted later."""

    group: str
    pod: str
    waits_s: float
    needed: int
    present: int
    overtaken: int


class WaitingFacts(Struct, frozen=True, kw_only=True):
    """How many pods are pending, which of them can never fit, and which gangs starve."""

    waiting: int = 0
    never: tuple[str, ...] = ()
    starving: tuple[StarvingGang, ...] = ()


class SchedulerFacts(Struct, frozen=True, kw_only=True):
    """The schedulers that send heartbeats, as `name/life`; `life` is an id of the process."""

    members: tuple[str, ...] = ()


class PriceFacts(Struct, frozen=True, kw_only=True):
    """The gateway's price file, and why it does not suffice for a cost report, if so."""

    file: str
    problem: str = ""


class KubeFacts(Struct, frozen=True, kw_only=True):
    """The API server as one user sees it; `problem` is why it does not answer.

    `denied` lists what the services need to do and this user may not do. `webhook` is empty if none
    is configured, else `ready` or an error; None if the user may not read it."""

    url: str
    version: str = ""
    problem: str = ""
    denied: tuple[str, ...] = ()
    webhook: str | None = ""


class Facts(Struct, frozen=True, kw_only=True):
    """All gathered facts; `frozen`, a key of `FREEZES` or empty, is why no pod can be placed."""

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
