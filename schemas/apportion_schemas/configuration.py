"""The configuration of a cluster, which an operator writes and every service obeys.

The document is itself the event's payload, key by key, so that the ledger shows what was applied.
The keys of `nvidia` and `nodeconfig` are those of the HAMi and Volcano device plugins. Invariant: a
field's default is what services do without that key."""

from typing import Annotated, Literal

from msgspec import Meta, field

from apportion_schemas.catalogue import event
from apportion_schemas.operations import NodeWeights, Policy
from apportion_schemas.quantities import (
    COUNT_MAX,
    Count,
    Index,
    MemoryMib,
    Name,
    Payload,
    Percent,
    Text,
)
from apportion_schemas.workload import Names

NODES_MAX = 4096
SCHEDULERS_MAX = 16
MODELS_MAX = 32
GROUPS_MAX = 8
SLOTS_MAX = 250
NAMESPACES_MAX = 256

ResourceName = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$",
        max_length=317,  # a DNS name of 253, a slash, a name of 63
    ),
]
Scaling = Annotated[float, Meta(ge=0.01, le=100)]
Slots = Annotated[int, Meta(ge=1, le=SLOTS_MAX)]
MigStrategy = Literal["none", "mixed"]
OperatingMode = Literal["hami-core", "mig", "mps"]


class MigCount(Payload, frozen=True):
    """A MIG profile, how many instances of it (`count`), and the MiB of one instance (`memory`)."""

    name: Annotated[str, Meta(min_length=1, max_length=32)]
    memory: Annotated[int, Meta(ge=1, le=1 << 24)]
    count: Annotated[int, Meta(ge=1, le=32)]


class MigGroup(Payload, frozen=True):
    """One set of MIG instances into which a device may be divided."""

    group: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.]+$", max_length=32)]
    geometries: Annotated[tuple[MigCount, ...], Meta(min_length=1, max_length=8)]


class MigGeometries(Payload, frozen=True, rename="camel"):
    """The only groups of MIG instances into which devices of these `models` may be divided."""

    models: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=MODELS_MAX)]
    allowed_geometries: Annotated[tuple[MigGroup, ...], Meta(min_length=1, max_length=GROUPS_MAX)]


class NvidiaConfiguration(Payload, frozen=True, rename="camel"):
    """The section `nvidia`: resource names, defaults of requests, and how GPUs are offered."""

    dialect: Literal["", "hami", "volcano-vgpu"] = ""
    resource_count_name: ResourceName | None = None
    resource_memory_name: ResourceName | None = None
    resource_memory_percentage_name: ResourceName | None = None
    resource_core_name: ResourceName | None = None
    resource_priority_name: ResourceName | None = None
    overwrite_env: bool = False
    default_memory: MemoryMib = 0
    default_cores: Percent = 0
    default_gpu_num: Count = field(default=1, name="defaultGPUNum")
    device_split_count: Slots = 10
    device_memory_scaling: Scaling = 1.0
    device_core_scaling: Scaling = 1.0
    gpu_memory_factor: Annotated[int, Meta(ge=1, le=1024)] = 1
    disable_core_limit: bool = False
    mig_strategy: MigStrategy = "none"
    known_mig_geometries: Annotated[tuple[MigGeometries, ...], Meta(max_length=64)] = ()


class FilterDevices(Payload, frozen=True):
    """The devices of a node that are not offered to pods, listed by uuid or index."""

    uuid: Names = ()
    index: Annotated[tuple[Index, ...], Meta(max_length=COUNT_MAX)] = ()


class NodeConfiguration(Payload, frozen=True, rename=lambda name: name.replace("_", "")):
    """An entry of `nodeconfig[]`: settings of one node; None means the cluster's setting."""

    name: Name
    operating_mode: OperatingMode | None = None
    device_memory_scaling: Scaling | None = None
    device_core_scaling: Scaling | None = None
    device_split_count: Slots | None = None
    mig_strategy: MigStrategy | None = None
    filter_devices: FilterDevices = FilterDevices()


class PolicyConfiguration(Payload, frozen=True):
    """The section `policy`: how nodes and devices are ranked. None keeps the current setting."""

    nodes: Policy | None = None
    devices: Policy | None = None
    weights: NodeWeights | None = None


class QueuesConfiguration(Payload, frozen=True, rename="camel"):
    """The section `queues`: how queues divide the surplus.

    The surplus is what is left once each queue has what it deserves. If `usage_half_life` (`7d`,
    `12h`) is empty, past use has no effect. If `reserve_after` (`10m`) is empty, no nodes are
    reserved for pods that wait for long."""

    usage_half_life: Annotated[str, Meta(max_length=16)] = ""
    usage_weight: Annotated[float, Meta(ge=0, le=10)] | None = None  # None: 1
    reclaim_surplus: bool = True  # False: a queue takes back only what it deserves
    reserve_after: Annotated[str, Meta(max_length=16)] = ""


class IdleConfiguration(Payload, frozen=True, rename="camel"):
    """The section `idle`: what happens to pods that do no work on their devices for a long time.

    If `after` (`4h`, `90m`) is empty, nothing happens. The section applies to the pods of
    `namespaces`, or of all namespaces if this is empty."""

    after: Annotated[str, Meta(max_length=16)] = ""
    below: Annotated[int, Meta(ge=0, le=50)] = 0  # percent of the share; 0: no work at all
    action: Literal["notify", "reclaim"] = "notify"
    namespaces: Annotated[tuple[Name, ...], Meta(max_length=NAMESPACES_MAX)] = ()


class Configuration(Payload, frozen=True, rename="camel"):
    """The whole document that `apportion config` sets; a missing key has its default."""

    nvidia: NvidiaConfiguration = NvidiaConfiguration()
    nodeconfig: Annotated[tuple[NodeConfiguration, ...], Meta(max_length=NODES_MAX)] = ()
    policy: PolicyConfiguration = PolicyConfiguration()
    queues: QueuesConfiguration = QueuesConfiguration()
    idle: IdleConfiguration = IdleConfiguration()
    scheduler_names: Annotated[tuple[Name, ...], Meta(max_length=SCHEDULERS_MAX)] = ()
    extended_scheduler_names: Annotated[tuple[Name, ...], Meta(max_length=SCHEDULERS_MAX)] = ()


@event("operator.configuration", "operator", born=5)
class ConfigurationChanged(Payload, frozen=True):
    """An operator replaced the configuration with this document."""

    by: Name
    reason: Text = ""
    configuration: Configuration = Configuration()
