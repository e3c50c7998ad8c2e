"""List every key with its meaning and the services that read it, for the guide.

Invariant: the table has exactly the keys of `Configuration`, in its order (tested)."""

from typing import NamedTuple

AGENT = "agent"
READERS = "watcher, cli"
SCHEDULER = "scheduler"
BINDER = "binder"


class Key(NamedTuple):
    """One key; `[]` in its path stands for every entry of a list."""

    path: str
    meaning: str
    read_by: str
    also: str = ""


KEYS: tuple[Key, ...] = (
    Key("nvidia.dialect",
        "the dialect of the resource names below, `hami` or `volcano-vgpu`; if unset, Volcano's "
        "if one of them begins with `volcano.sh/`, else HAMi's", READERS),
    Key("nvidia.resourceCountName", "the resource that counts GPUs", READERS),
    Key("nvidia.resourceMemoryName", "the resource that requests GPU memory", READERS),
    Key("nvidia.resourceMemoryPercentageName",
        "the resource that requests a percentage of GPU memory", READERS),
    Key("nvidia.resourceCoreName", "the resource that requests compute, in percent", READERS),
    Key("nvidia.resourcePriorityName", "the resource that sets a priority; 0 is high", READERS),
    Key("nvidia.overwriteEnv",
        "at admission: sets `NVIDIA_VISIBLE_DEVICES=none` in containers that request no GPU, which "
        "hides the node's GPUs from them", "admission"),
    Key("nvidia.defaultMemory",
        "MiB for a container that requests a GPU without memory; 0 is the whole GPU", READERS),
    Key("nvidia.defaultCores", "percent for a container that requests a GPU without cores",
        READERS),
    Key("nvidia.defaultGPUNum", "GPUs for a container that requests only memory or cores", READERS),
    Key("nvidia.deviceSplitCount", "containers that can share one GPU", AGENT),
    Key("nvidia.deviceMemoryScaling",
        "offered memory, as a multiple of the GPU's memory; above 1 oversubscribes",
        AGENT),
    Key("nvidia.deviceCoreScaling", "offered compute, as a multiple of 100 percent", AGENT),
    Key("nvidia.gpuMemoryFactor",
        "MiB in one unit of GPU memory, in manifests and in Volcano's annotations",
        f"{READERS}, {BINDER}", also="memoryFactor"),
    Key("nvidia.disableCoreLimit",
        "at admission: sets `GPU_CORE_UTILIZATION_POLICY=disable` in containers that request a GPU "
        "and do not set it, so their compute is not limited", "admission",
        also="disablecorelimit"),
    Key("nvidia.migStrategy",
        "`mixed`: pods can request MIG instances by profile, such as `nvidia.com/mig-1g.5gb`; "
        "`none`: such a name is an extended resource of the node's own plugin", READERS),
    Key("nvidia.knownMigGeometries",
        "the allowed MIG partitions of a model: groups of instances by profile, memory and count; "
        "a model without an entry can have any partition", SCHEDULER),
    Key("nodeconfig[].name", "the node of this entry", AGENT),
    Key("nodeconfig[].operatingmode",
        "how the node's GPUs are shared: `hami-core`, `mig` or `mps`; if unset, each GPU keeps its "
        "mode",
        AGENT),
    Key("nodeconfig[].devicememoryscaling", "`deviceMemoryScaling` for this node", AGENT),
    Key("nodeconfig[].devicecorescaling", "`deviceCoreScaling` for this node", AGENT),
    Key("nodeconfig[].devicesplitcount", "`deviceSplitCount` for this node", AGENT),
    Key("nodeconfig[].migstrategy",
        "must equal `nvidia.migStrategy`, which applies to every node", READERS),
    Key("nodeconfig[].filterdevices.uuid",
        "devices of this node that are not offered, by their id", AGENT),
    Key("nodeconfig[].filterdevices.index",
        "devices of this node that are not offered, by their index", AGENT),
    Key("policy.nodes",
        "how nodes are ranked; `apportion policy set` sets it too, and whichever was set last "
        "applies", SCHEDULER),
    Key("policy.devices", "how the devices of a node are ranked; the same applies", SCHEDULER),
    Key("policy.weights",
        "weights of `cpu`, `memory` and `devices`, 0 to 1000 each, if nodes are ranked by load "
        "(`binpack`, `spread`)", SCHEDULER),
    Key("schedulerNames",
        "the values of `spec.schedulerName` whose pods Apportion places in Kubernetes; if unset, "
        "those of the watcher's --scheduler-name", "watcher, admission"),
    Key("extendedSchedulerNames",
        "the values of `spec.schedulerName` of kube-schedulers that use our extender; Apportion "
        "places their pods that request devices, on the node that kube-scheduler chooses",
        "watcher, admission, extender"),
)  # fmt: skip
