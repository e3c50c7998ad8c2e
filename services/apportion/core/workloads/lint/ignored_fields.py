"""The fields of a pod that never affect its placement, each with the reason.

Invariant: every field of the newest API is read (`kube`), refused (`unsupported`) or listed here. A
test with a real API server checks that no other field is ignored."""

from collections.abc import Mapping

_KUBELET = "handled by the kubelet, in the same way on every node"
_NETWORK = "names and addresses, which do not depend on the node"
_SECURITY = "permissions of the containers, which do not depend on the node"
_ANY_NODE = "available or created on every node"
_CLAIMS = "refers to entries of `spec.resourceClaims`, which Apportion reads or rejects"


def _group(reason: str, fields: str) -> dict[str, str]:
    return dict.fromkeys(fields.split(), reason)


# of `spec`
POD_FIELDS: Mapping[str, str] = {
    **_group(
        _KUBELET, "imagePullSecrets readinessGates restartPolicy terminationGracePeriodSeconds"
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
    "ephemeralContainers": "added to a running pod, and cannot request resources",
    "evictionResponders": "called only for eviction requests, which Apportion does not create",
    "os": "kube-scheduler ignores it too; use a nodeSelector on kubernetes.io/os",
    "runtimeClassName": "the API server copies its overhead and node selector into the pod",
}
# of `spec.containers[]` and `spec.initContainers[]`
CONTAINER_FIELDS: Mapping[str, str] = {
    **_group(
        _KUBELET,
        "args command env[].valueFrom envFrom imagePullPolicy lifecycle livenessProbe"
        " readinessProbe resizePolicy restartPolicyRules startupProbe stdin stdinOnce tty"
        " terminationMessagePath terminationMessagePolicy volumeDevices volumeMounts workingDir",
    ),
    "image": "nodes that already have the image are not preferred",
    "ports[].name": _NETWORK,
    "resources.claims": _CLAIMS,
    "securityContext": _SECURITY,
}

_NOT_ASKED = "kube-scheduler does not check which nodes can mount it either; use a nodeSelector"
# of `spec.volumes[]`
VOLUME_FIELDS: Mapping[str, str] = {
    **_group(
        "mount options, handled by the kubelet",
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
    "csi": "created by its driver on the node, and not counted against the driver's volume limit",
    "name": "only names the volume within the pod",
}
# of parts of `spec` that are otherwise read
OTHER_FIELDS: Mapping[str, str] = {
    "resources.claims": _CLAIMS,
    "tolerations[].tolerationSeconds": (
        "applies only after placement: how long the pod stays once the taint is added"
    ),
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
_TOGETHER = "tasks are neither co-located nor kept apart"
_BUDGET = "jobs have no disruption budget; use a PodDisruptionBudget, which is honored if possible"
_SEGMENTS = "only the subGroups of a PodGroup divide its pods"
_NETWORK = "Apportion reads only networkTopology of the PodGroup, which Volcano's controller makes"
_TOPOLOGY = "Apportion reads only topologyConstraint of the PodGroup, which KAI's pod-grouper makes"
_MLU_TYPE = "Cambricon's plugin does not report the model of MLUs, and HAMi does not read it either"
# annotations of Cambricon, YuniKorn, KAI and Volcano (its `labels.go` and its plugins) without
# effect here
ANNOTATIONS: Mapping[str, str] = {
    "cambricon.com/nouse-mlutype": _MLU_TYPE,
    "cambricon.com/use-mlutype": _MLU_TYPE,
    "yunikorn.apache.org/task-groups": "pods are placed one by one; use a PodGroup for a gang",
    "kai.scheduler/segment-size": _SEGMENTS,
    "kai.scheduler/segment-topology-preferred-placement": _SEGMENTS,
    "kai.scheduler/segment-topology-required-placement": _SEGMENTS,
    "kai.scheduler/topology": _TOPOLOGY,
    "kai.scheduler/topology-preferred-placement": _TOPOLOGY,
    "kai.scheduler/topology-required-placement": _TOPOLOGY,
    "scheduling.volcano.sh/queue-allocation-gate": "pods of a full queue wait without "
    "a gate, and Apportion does not remove Volcano's",
    "sla-waiting-time": "waiting longer does not move a pod forward in the queue",
    "volcano.sh/cooldown-time": "an evictable pod can be evicted at any time",
    "volcano.sh/hierarchy": "spec.parent of a Queue sets its place in the tree",
    "volcano.sh/hierarchy-weights": "spec.weight of a Queue sets its weight",
    "volcano.sh/jdb-max-unavailable": _BUDGET,
    "volcano.sh/jdb-min-available": _BUDGET,
    "volcano.sh/network-topology-highest-tier": _NETWORK,
    "volcano.sh/network-topology-mode": _NETWORK,
    "volcano.sh/qos-level": "nodes are never oversubscribed, so pods have no QoS levels",
    "volcano.sh/resource-strategy-scoring-type": _POLICY,
    "volcano.sh/resource-strategy-weight": _POLICY,
    "volcano.sh/revocable-zone": "Apportion uses all nodes at all hours",
    "volcano.sh/sla-waiting-time": "waiting longer does not move a pod forward in the queue",
    "volcano.sh/task-priority": "the pods of a job are ordered by their own priority",
    "volcano.sh/task-topology-affinity": _TOGETHER,
    "volcano.sh/task-topology-anti-affinity": _TOGETHER,
    "volcano.sh/task-topology-task-order": _TOGETHER,
}

# fields of `spec` of a Volcano Queue that have no effect here
QUEUE_FIELDS: Mapping[str, str] = {
    "affinity": "pods of the queue can use nodes of every group; use a nodeSelector in the pods",
    "extendClusters": "pods stay in this cluster",
    "type": "all queues have the same type",
}
# the same of a KAI Queue
KAI_QUEUE_FIELDS: Mapping[str, str] = {
    "preemptMinRuntime": "a pod can be evicted for one of higher priority in its queue at any time"
}

# of `spec` of a Volcano PodGroup
POD_GROUP_FIELDS: Mapping[str, str] = {
    "priorityClassName": "the priority of a gang is the highest priority of its pods"
}
# of `spec` of a Volcano Job, for the values that are not refused
JOB_FIELDS: Mapping[str, str] = {"tasks[].topologyPolicy": "NUMA nodes of CPUs are not considered"}


def every() -> dict[str, str]:
    """Return why each ignored field of a pod has no effect; keys are paths below `spec`."""
    found = {**POD_FIELDS, **OTHER_FIELDS}
    for part in ("containers[]", "initContainers[]"):
        found |= {f"{part}.{path}": why for path, why in CONTAINER_FIELDS.items()}
    return found | {f"volumes[].{path}": why for path, why in VOLUME_FIELDS.items()}
