"""The facts about an installation that the doctor checks; a missing fact is None."""

from msgspec import Struct


class Skew(Struct, frozen=True):
    """How many seconds the clock of a machine or writer (`who`) is ahead of the ledger server's."""

    who: str
    seconds: float


class LedgerFacts(Struct, frozen=True, kw_only=True):
    """The ledger's server and its stream, as a client sees them. Ages are by the server's clock."""

    user: str
    server: str
    oldest: str  # the oldest server versions accepted
    replicas: int = 1
    lagging: tuple[str, ...] = ()  # servers without the whole stream
    drifted: tuple[str, ...] = ()  # wrong settings of the stream
    lost_records: int = 0  # missing from the stream
    size_bytes: int = 0
    max_bytes: int = -1
    first_revision: int = 0
    last_revision: int = 0
    skews: tuple[Skew, ...] = ()
    missing: tuple[str, ...] | None = None  # subjects needed but denied
    sync_always: bool | None = None  # from the monitoring port
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
    """The last revision that a receipt covers (0: none), and the age of the newest receipt.

    The age is by this machine's clock."""

    folder: str
    last: int = 0
    newest_age_s: float = 0.0


class FoldFacts(Struct, frozen=True, kw_only=True):
    """The revision that the gateway has reached, and the ledger's last revision at that time."""

    revision: int
    last_revision: int
    unready: str = ""


class FailedDevices(Struct, frozen=True):
    """A node's failed devices, the pods on them, and the cordons on the node or devices."""

    node: str
    devices: int
    pods: int
    held: tuple[str, ...] = ()
    cordoned: tuple[str, ...] = ()


class SilentAgent(Struct, frozen=True):
    """A node whose agent sends no heartbeats, since when, and the number of its pods."""

    node: str
    time: str
    pods: int = 0


class Cordoned(Struct, frozen=True):
    """A cordoned node or device, and the reasons as text."""

    target: str
    words: str


class ClusterFacts(Struct, frozen=True, kw_only=True):
    """Facts about nodes and agents, from the state."""

    revision: int
    nodes: int = 0
    devices: int = 0
    failed: tuple[FailedDevices, ...] = ()
    cordoned: tuple[Cordoned, ...] = ()
    silent: tuple[SilentAgent, ...] = ()
    simulated: tuple[str, ...] = ()  # silent simulated nodes
    simulated_nodes: int = 0
    refused: tuple[tuple[str, str], ...] = ()  # node and cause of each refused report
    without_agent: tuple[str, ...] = ()  # with devices in Kubernetes
    without_node: tuple[str, ...] = ()  # not nodes of the cluster
    plugins: tuple[tuple[str, str, str], ...] = ()  # node, system of its plugin, problem
    overtaken: tuple[tuple[str, str], ...] = ()  # pods of ours that others bound, and their nodes
    drivers: dict[str, tuple[str, ...]] = {}  # nodes by driver version
    refused_events: int = 0
    late_events: int = 0  # refused, written while a pod ended
    last_refusal: str = ""  # without the late events


class StarvingGang(Struct, frozen=True):
    """A gang that has been pending for a long time."""

    group: str
    pod: str  # the newest pod
    waits_s: float
    needed: int  # pods to start together; 0 without a PodGroup
    present: int  # pods that exist
    overtaken: int  # later pods placed, of no higher priority


class WaitingFacts(Struct, frozen=True, kw_only=True):
    """How many pods are pending, which of them can never fit, and which gangs are starving."""

    waiting: int = 0
    never: tuple[str, ...] = ()
    starving: tuple[StarvingGang, ...] = ()


class SchedulerFacts(Struct, frozen=True, kw_only=True):
    """The schedulers that send heartbeats, as `name/life`, where `life` is an id of the process."""

    members: tuple[str, ...] = ()


class PriceFacts(Struct, frozen=True, kw_only=True):
    """The gateway's price file, and what prevents a cost report, if anything."""

    file: str
    problem: str = ""


class Unserved(Struct, frozen=True):
    """A `spec.schedulerName` of pending pods that no scheduler has looked at."""

    name: str
    pods: int
    first: str  # the full name of one of the pods


class KubeFacts(Struct, frozen=True, kw_only=True):
    """The API server as one user sees it."""

    url: str
    version: str = ""
    problem: str = ""  # why it does not answer
    denied: tuple[str, ...] = ()  # what the services need and the user may not do
    webhook: str | None = ""  # ready or an error; None: not allowed to read
    unserved: tuple[Unserved, ...] | None = ()  # None: not allowed to list pods


class Facts(Struct, frozen=True, kw_only=True):
    """The facts that the doctor has gathered; a missing fact is None."""

    ledger: LedgerFacts | None = None
    ledger_problem: str = ""
    frozen: str | None = None  # a key of `FREEZES`, or empty
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
