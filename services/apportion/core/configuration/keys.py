"""Lists all configuration keys for the guide: what each means and which services read it.

Invariant: the table has exactly the keys of `Configuration`, in the same order."""

from typing import NamedTuple

AGENT = "agent"
READERS = "watcher, cli"
SCHEDULER = "scheduler"
BINDER = "binder"


class Key(NamedTuple):
    """One configuration key; `[]` in its path stands for every entry of a list."""

    path: str
    meaning: str
    read_by: str
    also: str = ""


KEYS: tuple[Key, ...] = (
    Key("nvidia.dialect",
        "the system whose rules apply to the resource names below: `hami` or `volcano-vgpu`. If "
        "unset, it is `volcano-vgpu` if one of the names begins with `volcano.sh/`, else `hami`",
        READERS),
    Key("nvidia.resourceCountName", "the resource that counts GPUs", READERS),
    Key("nvidia.resourceMemoryName", "the resource that requests GPU memory", READERS),
    Key("nvidia.resourceMemoryPercentageName",
        "the resource that requests a percentage of GPU memory", READERS),
    Key("nvidia.resourceCoreName", "the resource that requests compute, in percent", READERS),
    Key("nvidia.resourcePriorityName", "the resource that sets a priority; 0 is high", READERS),
    Key("nvidia.overwriteEnv",
        "if true, the webhook sets `NVIDIA_VISIBLE_DEVICES=none` in containers that request no "
        "GPU, which hides the node's GPUs from them", "admission"),
    Key("nvidia.defaultMemory",
        "memory in MiB for a container that requests a GPU without memory; 0 is the memory of the "
        "whole GPU",
        READERS),
    Key("nvidia.defaultCores",
        "compute in percent for a container that requests a GPU without cores", READERS),
    Key("nvidia.defaultGPUNum",
        "number of GPUs for a container that requests only memory or cores", READERS),
    Key("nvidia.deviceSplitCount", "how many containers can share one GPU", AGENT),
    Key("nvidia.deviceMemoryScaling",
        "memory that a GPU offers, as a multiple of its real memory; above 1, the memory is "
        "oversubscribed",
        AGENT),
    Key("nvidia.deviceCoreScaling",
        "compute that a GPU offers, as a multiple of its real compute", AGENT),
    Key("nvidia.gpuMemoryFactor",
        "MiB in one unit of GPU memory, in manifests and in Volcano's annotations",
        f"{READERS}, {BINDER}", also="memoryFactor"),
    Key("nvidia.disableCoreLimit",
        "if true, the webhook sets `GPU_CORE_UTILIZATION_POLICY=disable` in containers that "
        "request a GPU and do not set this variable, so their compute is not limited", "admission",
        also="disablecorelimit"),
    Key("nvidia.migStrategy",
        "`mixed`: pods can request MIG instances by profile, such as `nvidia.com/mig-1g.5gb`; "
        "`none`: such a name is an extended resource of the node's own device plugin", READERS),
    Key("nvidia.knownMigGeometries",
        "the allowed MIG partitions of GPU models, in groups of instances by profile, memory and "
        "count. A model without an entry can have any partition", SCHEDULER),
    Key("nodeconfig[].name", "the node of this entry", AGENT),
    Key("nodeconfig[].operatingmode",
        "how the node's GPUs are shared: `hami-core`, `mig` or `mps`; if unset, each GPU keeps its "
        "mode",
        AGENT),
    Key("nodeconfig[].devicememoryscaling", "`deviceMemoryScaling` for this node", AGENT),
    Key("nodeconfig[].devicecorescaling", "`deviceCoreScaling` for this node", AGENT),
    Key("nodeconfig[].devicesplitcount", "`deviceSplitCount` for this node", AGENT),
    Key("nodeconfig[].migstrategy",
        "must be the same as `nvidia.migStrategy`", READERS),
    Key("nodeconfig[].filterdevices.uuid",
        "ids of the devices of this node that get no pods", AGENT),
    Key("nodeconfig[].filterdevices.index",
        "indexes of the devices of this node that get no pods", AGENT),
    Key("policy.nodes",
        "the policy that ranks nodes. `apportion policy set` sets it too; the latest change "
        "applies", SCHEDULER),
    Key("policy.devices",
        "the policy that ranks the devices of a node. `apportion policy set` sets it "
        "too", SCHEDULER),
    Key("policy.weights",
        "weights of `cpu`, `memory` and `devices`, 0 to 1000 each; only for the policies `binpack` "
        "and `spread`, which rank nodes by their load", SCHEDULER),
    Key("queues.usageHalfLife",
        "after this time, past use of a queue counts half, as in `7d` or `12h`. Past use lowers a "
        "queue's part of the surplus. If unset, past use does not count", SCHEDULER),
    Key("queues.usageWeight",
        "weight of past use, 0 to 10, by default 1. With 0, past use is measured without effect. "
        "Needs `queues.usageHalfLife`", SCHEDULER),
    Key("queues.reclaimSurplus",
        "whether pods are evicted so that a queue gets its part of the surplus. If `false`, pods "
        "are evicted only for what a queue deserves, as with Volcano's plugin `capacity`",
        SCHEDULER),
    Key("queues.reserveAfter",
        "after this time, from `1m` to `30d`, a pending gang or pod with several devices gets a "
        "reservation of nodes. If unset, no nodes are reserved", SCHEDULER),
    Key("idle.after",
        "a pod is idle if it does no work on its devices for this long, from `1h` to `30d`, as in "
        "`4h`, `90m` or `2d`. If unset, idle pods are ignored", f"{SCHEDULER}, {BINDER}, {AGENT}"),
    Key("idle.below",
        "a share does no work in an hour if it never uses this percentage of the share or more, 0 "
        "to 50. With 0, any use counts as work", f"{SCHEDULER}, {BINDER}, {AGENT}"),
    Key("idle.action",
        "`notify`: an idle pod gets a Kubernetes event; `reclaim`: also, pending pods of the same "
        "queue and priority may evict it", f"{SCHEDULER}, {BINDER}, {AGENT}"),
    Key("idle.namespaces",
        "the section `idle` applies to pods of these namespaces; if unset, of all namespaces",
        f"{SCHEDULER}, {BINDER}"),
    Key("schedulerNames",
        "Apportion places the pods with one of these values of `spec.schedulerName`. If unset, "
        "the values are those of the watcher's `--scheduler-name`, by default `apportion`, "
        "`volcano` and `hami-scheduler`", "watcher, admission"),
    Key("extendedSchedulerNames",
        "values of `spec.schedulerName` of kube-schedulers that use the "
        "extender. Apportion places their pods that request devices, on the node that "
        "kube-scheduler chooses",
        "watcher, admission, extender"),
)  # fmt: skip
