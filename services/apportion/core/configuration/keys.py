"""Every key with its meaning and the services that obey it, for the guide.

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
    obeyed_by: str
    also: str = ""


KEYS: tuple[Key, ...] = (
    Key("nvidia.dialect",
        "whose names the resource names below are, `hami` or `volcano-vgpu`; without it, Volcano's "
        "where one of them begins with `volcano.sh/`, else HAMi's", READERS),
    Key("nvidia.resourceCountName", "the resource that counts GPUs", READERS),
    Key("nvidia.resourceMemoryName", "the resource that asks for GPU memory", READERS),
    Key("nvidia.resourceMemoryPercentageName",
        "the resource that asks for a part of the GPU memory", READERS),
    Key("nvidia.resourceCoreName", "the resource that asks for compute, in percent", READERS),
    Key("nvidia.resourcePriorityName", "the resource that gives a priority: 0 is high", READERS),
    Key("nvidia.overwriteEnv",
        "at admission: `NVIDIA_VISIBLE_DEVICES=none` for containers that ask for no GPU, so that "
        "the node's are hidden from them", "admission"),
    Key("nvidia.defaultMemory",
        "MiB of a container that asks for a GPU without memory; 0 is the whole card", READERS),
    Key("nvidia.defaultCores", "percent of a container that asks for a GPU without cores", READERS),
    Key("nvidia.defaultGPUNum", "GPUs of a container that asks for memory or cores alone", READERS),
    Key("nvidia.deviceSplitCount", "containers that may share one card", AGENT),
    Key("nvidia.deviceMemoryScaling",
        "memory that is offered, as a multiple of what the card has; above 1 oversubscribes",
        AGENT),
    Key("nvidia.deviceCoreScaling", "compute that is offered, as a multiple of 100 percent", AGENT),
    Key("nvidia.gpuMemoryFactor",
        "MiB in one unit of GPU memory, in manifests and in Volcano's annotations",
        f"{READERS}, {BINDER}", also="memoryFactor"),
    Key("nvidia.disableCoreLimit",
        "at admission: `GPU_CORE_UTILIZATION_POLICY=disable` for containers that ask for a GPU and "
        "do not say it themselves, so that none is held to its share of compute", "admission",
        also="disablecorelimit"),
    Key("nvidia.migStrategy",
        "`mixed`: a pod may ask for MIG instances by profile, as in `nvidia.com/mig-1g.5gb`; "
        "`none`: such a name is what a node's own plugin offers under it", READERS),
    Key("nvidia.knownMigGeometries",
        "the only ways in which cards of a model are cut: groups of instances by profile, memory "
        "and count; a model without an entry is cut freely", SCHEDULER),
    Key("nodeconfig[].name", "the node that this entry is about", AGENT),
    Key("nodeconfig[].operatingmode",
        "how the node's GPUs are shared: `hami-core`, `mig` or `mps`; without it, as the card is",
        AGENT),
    Key("nodeconfig[].devicememoryscaling", "`deviceMemoryScaling` of this node", AGENT),
    Key("nodeconfig[].devicecorescaling", "`deviceCoreScaling` of this node", AGENT),
    Key("nodeconfig[].devicesplitcount", "`deviceSplitCount` of this node", AGENT),
    Key("nodeconfig[].migstrategy",
        "must be that of `nvidia.migStrategy`: names mean the same on every node", READERS),
    Key("nodeconfig[].filterdevices.uuid",
        "devices of this node that are not offered, by their id", AGENT),
    Key("nodeconfig[].filterdevices.index",
        "devices of this node that are not offered, by their index", AGENT),
    Key("policy.nodes",
        "how nodes are preferred, from the time of this change on; the newest of this and "
        "`apportion policy set` counts", SCHEDULER),
    Key("policy.devices", "how the devices of a node are preferred, likewise", SCHEDULER),
    Key("policy.weights",
        "how much `cpu`, `memory` and `devices` count, 0 to 1000 each, where nodes are preferred "
        "by their load (`binpack`, `spread`)", SCHEDULER),
    Key("schedulerNames",
        "the values of `spec.schedulerName` whose pods are taken from Kubernetes; without it, "
        "those of the watcher's --scheduler-name", "watcher, admission"),
    Key("extendedSchedulerNames",
        "the values of `spec.schedulerName` whose pods a kube-scheduler places that asks our "
        "extender; of these, pods that ask for devices are taken, and placed where it says",
        "watcher, admission, extender"),
)  # fmt: skip
