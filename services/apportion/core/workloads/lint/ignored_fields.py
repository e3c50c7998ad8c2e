"""The fields of a pod that never affect its placement, with the reason.

Invariant: every field of the newest API is read (`kube`), refused (`unsupported`) or here; a test
with a real API server checks that none is ignored silently."""

from collections.abc import Mapping

_KUBELET = "the kubelet's business, on whatever node the pod is"
_NETWORK = "names and addresses, alike on every node"
_SECURITY = "what the containers may do, on whatever node the pod is"
_ANY_NODE = "a volume that every node has, or makes for itself"


def _group(reason: str, fields: str) -> dict[str, str]:
    return dict.fromkeys(fields.split(), reason)


# of `spec`
POD_FIELDS: Mapping[str, str] = {
    **_group(
        _KUBELET,
        "activeDeadlineSeconds imagePullSecrets readinessGates restartPolicy"
        " terminationGracePeriodSeconds",
    ),
    **_group(
        _NETWORK,
        "dnsConfig dnsPolicy enableServiceLinks hostAliases hostname hostnameOverride"
        " setHostnameAsFQDN subdomain",
    ),
    **_group(
        _SECURITY,
        "automountServiceAccountToken hostIPC hostPID hostUsers securityContext serviceAccount"
        " serviceAccountName shareProcessNamespace",
    ),
    "ephemeralContainers": "they come when the pod runs, and ask for nothing",
    "os": "kube-scheduler does not look at it either; select kubernetes.io/os",
    "runtimeClassName": "the API server writes its overhead and node selector into the pod",
}
# of `spec.containers[]` and `spec.initContainers[]`
CONTAINER_FIELDS: Mapping[str, str] = {
    **_group(
        _KUBELET,
        "args command env[].valueFrom envFrom imagePullPolicy lifecycle livenessProbe"
        " readinessProbe resizePolicy restartPolicyRules startupProbe stdin stdinOnce tty"
        " terminationMessagePath terminationMessagePolicy volumeDevices volumeMounts workingDir",
    ),
    "image": "which nodes have it already counts for nothing",
    "ports[].name": _NETWORK,
    "resources.claims": "they name claims of the pod, which are read with it or refused",
    "securityContext": _SECURITY,
}

_NOT_ASKED = "kube-scheduler does not ask which nodes have it either; select them"
# of `spec.volumes[]`
VOLUME_FIELDS: Mapping[str, str] = {
    **_group(
        "how the kubelet mounts it",
        "awsElasticBlockStore.fsType awsElasticBlockStore.partition awsElasticBlockStore.readOnly"
        " gcePersistentDisk.fsType gcePersistentDisk.partition"
        " iscsi.chapAuthDiscovery iscsi.chapAuthSession iscsi.fsType iscsi.initiatorName"
        " iscsi.iscsiInterface iscsi.lun iscsi.portals iscsi.secretRef iscsi.targetPortal"
        " rbd.fsType rbd.keyring rbd.secretRef rbd.user persistentVolumeClaim.readOnly",
    ),
    **_group(_NOT_ASKED, "azureDisk cinder fc portworxVolume vsphereVolume"),
    **_group(
        _ANY_NODE,
        "azureFile cephfs configMap downwardAPI emptyDir flexVolume flocker gitRepo glusterfs"
        " hostPath image nfs photonPersistentDisk projected quobyte scaleIO secret storageos",
    ),
    "csi": "made by its driver on the node; it does not count towards the driver's limit there",
    "name": "its name within the pod",
}
# of parts of `spec` that are otherwise read
OTHER_FIELDS: Mapping[str, str] = {
    "resources.claims": "they name claims of the pod, which are read with it or refused",
    "tolerations[].tolerationSeconds": "how long the pod stays once the taint comes",
}


# fields that a user may expect to have an effect
EXPECTED: Mapping[str, str] = {
    "os": POD_FIELDS["os"],
    **{
        f"volumes[].{kind}": VOLUME_FIELDS[kind]
        for kind in ("azureDisk", "cinder", "csi", "fc", "portworxVolume", "vsphereVolume")
    },
}

_POLICY = "nodes are scored by the cluster's policy"
_TOGETHER = "tasks are neither drawn together nor kept apart"
_BUDGET = "no pod is spared for its job; a PodDisruptionBudget is obeyed where it can be"
# annotations of Volcano that have no effect here (its `labels.go` and its plugins)
ANNOTATIONS: Mapping[str, str] = {
    "scheduling.volcano.sh/queue-allocation-gate": "a queue that is full holds the pod back by "
    "itself, and a gate of this name, once the pod has it, waits for Volcano's scheduler",
    "sla-waiting-time": "how long a pod has waited does not move it forward",
    "volcano.sh/cooldown-time": "a pod that may be evicted may be evicted at any time",
    "volcano.sh/hierarchy": "queues have no parents",
    "volcano.sh/hierarchy-weights": "queues have no parents",
    "volcano.sh/jdb-max-unavailable": _BUDGET,
    "volcano.sh/jdb-min-available": _BUDGET,
    "volcano.sh/qos-level": "no node is offered twice, and every pod counts alike",
    "volcano.sh/resource-strategy-scoring-type": _POLICY,
    "volcano.sh/resource-strategy-weight": _POLICY,
    "volcano.sh/revocable-zone": "all nodes serve at any time",
    "volcano.sh/sla-waiting-time": "how long a pod has waited does not move it forward",
    "volcano.sh/task-priority": "the pods of a job go by their own priority",
    "volcano.sh/task-topology-affinity": _TOGETHER,
    "volcano.sh/task-topology-anti-affinity": _TOGETHER,
    "volcano.sh/task-topology-task-order": _TOGETHER,
}

_RECLAIM = "nothing is taken back from a queue"
# fields of `spec` of a Volcano Queue that have no effect here
QUEUE_FIELDS: Mapping[str, str] = {
    "affinity": "pods of the queue go to nodes of every group; select nodes in the pods",
    "deserved": f"{_RECLAIM}, and what is free goes by the queues' weights; use weight",
    "dequeueStrategy": "a pod that fits nowhere never holds back others of its queue",
    "extendClusters": "pods stay in this cluster",
    "guarantee": "nothing is held free for a queue; use capability of the other queues",
    "parent": "queues have no parents: the limits of the parent do not count",
    "priority": "the next queue is the one with the least share for its weight; use weight",
    "reclaimable": f"{_RECLAIM}, whatever is written here",
    "type": "queues are of one type",
}
# values of these fields that mean what is done here anyway
QUEUE_AS_HERE: Mapping[str, object] = {
    "dequeueStrategy": "traverse", "parent": "root", "priority": 0,
}  # fmt: skip


# of `spec` of a Volcano Job, for the values that are not refused
JOB_FIELDS: Mapping[str, str] = {
    "tasks[].topologyPolicy": "no NUMA node of the CPUs is preferred to another"
}


def every() -> dict[str, str]:
    """Return all fields as paths below `spec`, with the reason of each."""
    found = {**POD_FIELDS, **OTHER_FIELDS}
    for part in ("containers[]", "initContainers[]"):
        found |= {f"{part}.{path}": why for path, why in CONTAINER_FIELDS.items()}
    return found | {f"volumes[].{path}": why for path, why in VOLUME_FIELDS.items()}
