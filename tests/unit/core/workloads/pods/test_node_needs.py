"""Tests of what a pod requires of its node: CPU and memory, selector, affinity, ports and
tolerations."""

from typing import Any

import pytest

from apportion.core.placement.feasibility.nodes import labels
from apportion_schemas import HostPort, NodeExpression, PreferredTerm, Toleration
from tests.support.fleet import observed
from tests.support.ledger_of import Ledger
from tests.support.manifests import container, draft, pod, refused

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def using(name: str = "main", **fields: Any) -> dict[str, Any]:
    restart = {"restartPolicy": fields.pop("restart")} if "restart" in fields else {}
    return {"name": name, "resources": fields, **restart}


def amounts(**spec: Any) -> tuple[int, int]:
    """Return the CPU in millicores and the memory in MiB that a pod with this spec needs."""
    node = draft(pod(**spec)).shape.node
    return node.cpu_milli, node.memory_mib


def affinity(kind: str, value: object) -> dict[str, Any]:
    return pod(affinity={"nodeAffinity": {kind: value}})


def test_limit_is_the_request_where_there_is_none() -> None:
    """If a container has a limit for a resource but no request, the limit counts as the request, as
    in Kubernetes."""
    both = using(limits={"cpu": "2", "memory": "1Gi"}, requests={"cpu": "500m"})
    assert amounts(containers=[both]) == (500, 1024)


def test_amounts_are_rounded_up_once() -> None:
    """Amounts are first summed over all containers of a pod, and then rounded up."""
    parts = [using(f"c{i}", requests={"memory": "349526", "cpu": "0.1m"}) for i in range(3)]
    assert amounts(containers=parts) == (1, 2)
    assert amounts(containers=parts[:2]) == (1, 1)


def test_init_containers_count_by_their_peak() -> None:
    """Only the largest init container counts, and only beyond what the main containers need."""
    spec = {
        "containers": [using("a", requests={"cpu": 2}), using("b", requests={"cpu": 1})],
        "initContainers": [
            using("i", requests={"cpu": 1, "memory": "4Gi"}),
            using("j", requests={"cpu": 2.5}),
        ],
    }
    assert amounts(**spec) == (3000, 4096)


def test_sidecars_run_with_everything_after_them() -> None:
    """A sidecar's amounts are added to those of all containers that start after it."""
    spec = {
        "containers": [using("a", requests={"cpu": 1})],
        "initContainers": [
            using("early", requests={"cpu": 10}),
            using("side", requests={"cpu": 2}, restart="Always"),
            using("late", requests={"cpu": 9}),
        ],
    }
    assert amounts(**spec) == (11000, 0)
    spec["initContainers"] = spec["initContainers"][1:2]
    assert amounts(**spec) == (3000, 0)


def test_overhead_is_added() -> None:
    """A pod's `overhead` is added to the amounts of its containers."""
    assert amounts(containers=[using(requests={"cpu": 1})], overhead={"cpu": "250m"}) == (1250, 0)


def test_other_extended_resources() -> None:
    """A resource name that no dialect knows counts as an extended resource of the node. Ephemeral
    storage counts in bytes."""
    limits = {"example.com/fpga": "2", "hugepages-2Mi": "4Mi", "ephemeral-storage": "1k",
              "example.com/none": 0, "nvidia.com/mig-1g.5gb": 1, "nvidia.com/gpu": 1}  # fmt: skip
    assert draft(pod(limits)).shape.node.extended == {
        "ephemeral-storage": 1000, "example.com/fpga": 2, "hugepages-2Mi": 4 << 20,
        "nvidia.com/mig-1g.5gb": 1,
    }  # fmt: skip


def test_selector_tolerations_and_priority() -> None:
    """Selector, tolerations and priority are read from the spec."""
    found = draft(
        pod(
            nodeSelector={"gpu": "on"},
            tolerations=[{"operator": "Exists"}, {"key": "a", "value": "b", "effect": "NoExecute"}],
            priorityClassName="system-node-critical",
            schedulerName="volcano",
        )
    )
    assert found.shape.node.selector == {"gpu": "on"}
    assert found.shape.node.tolerations == (
        Toleration(operator="Exists"),
        Toleration(key="a", value="b", effect="NoExecute"),
    )
    assert (found.priority, found.scheduler_name) == (2_000_001_000, "volcano")
    assert draft(pod(priority=-5, priorityClassName="unknown")).priority == -5


def test_node_affinity() -> None:
    """A node must match one of the required terms. A preferred term that is empty has no effect."""
    zone = {"key": "zone", "operator": "In", "values": ["a", "b"]}
    size = {"key": "cores", "operator": "Gt", "values": ["32"]}
    terms = [{"matchExpressions": [zone, {"key": "spot", "operator": "DoesNotExist"}]},
             {"matchExpressions": [size]}]  # fmt: skip
    required = draft(affinity(REQUIRED, {"nodeSelectorTerms": terms})).shape.node.required
    in_zone = NodeExpression(key="zone", operator="In", values=("a", "b"))
    assert required == (
        (in_zone, NodeExpression(key="spot", operator="DoesNotExist")),
        (NodeExpression(key="cores", operator="Gt", values=("32",)),),
    )
    weighted = [{"weight": 7, "preference": {"matchExpressions": [zone]}},
                {"weight": 1, "preference": {}}]  # fmt: skip
    preferred = draft(affinity(PREFERRED, weighted)).shape.node.preferred
    assert preferred == (PreferredTerm(weight=7, term=(in_zone,)),)


def test_F14_match_fields() -> None:
    """A required term may also select nodes by name, with `metadata.name` in `matchFields`."""
    by_name = {"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}
    label = {"key": "zone", "operator": "Exists"}
    terms = [{"matchFields": [by_name], "matchExpressions": [label]}]
    required = draft(affinity(REQUIRED, {"nodeSelectorTerms": terms})).shape.node.required
    assert required == (
        (
            NodeExpression(key="zone", operator="Exists"),
            NodeExpression(key="metadata.name", operator="NotIn", values=("n1",), of_field=True),
        ),
    )


@pytest.mark.parametrize(
    ("field", "at", "says"),
    [
        ({"key": "metadata.uid", "operator": "In", "values": ["a"]}, "key", "metadata.name"),
        ({"key": "metadata.name", "operator": "Exists"}, "operator", "In, NotIn"),
        ({"key": "metadata.name", "operator": "In", "values": ["a", "b"]}, "values", "name one"),
    ],
)
def test_match_fields_refused(field: dict[str, Any], at: str, says: str) -> None:
    """A matchFields entry that the API server would refuse is refused."""
    error = refused(affinity(REQUIRED, {"nodeSelectorTerms": [{"matchFields": [field]}]}))
    assert error.field == f"{TERM}.matchFields[0].{at}"
    assert says in str(error)


def test_F14_host_ports() -> None:
    """Host ports of main containers and sidecars are read, each once. The address 0.0.0.0 means any
    address."""
    http = {"containerPort": 8080, "hostPort": 80, "hostIP": "0.0.0.0"}
    dns = {"containerPort": 53, "hostPort": 53, "protocol": "UDP", "hostIP": "10.0.0.1"}
    sidecar = container("s", ports=[dns]) | {"restartPolicy": "Always"}
    found = draft(
        pod(
            containers=[container("a", ports=[http]), container("b", ports=[http])],
            initContainers=[container("i", ports=[{"containerPort": 1, "hostPort": 1}]), sidecar],
        )
    )
    assert found.shape.node.ports == (
        HostPort(port=53, protocol="UDP", ip="10.0.0.1"),
        HostPort(port=80),
    )


def test_every_port_of_a_pod_on_the_hosts_network_is_the_hosts() -> None:
    """If a pod uses `hostNetwork`, all ports of its containers are host ports."""
    ports = [{"containerPort": 80}]
    assert draft(pod(containers=[container(ports=ports)])).shape.node.ports == ()
    found = draft(pod(hostNetwork=True, containers=[container(ports=ports)]))
    assert found.shape.node.ports == (HostPort(port=80),)


@pytest.mark.parametrize(
    ("port", "at", "says"),
    [
        ({"hostPort": 65536}, "hostPort", "1 to 65535"),
        ({"hostPort": -1}, "hostPort", "1 to 65535"),
        ({"hostPort": 80, "protocol": "ICMP"}, "protocol", "TCP, UDP, SCTP"),
        ({"hostPort": 80, "hostIP": "x" * 65}, "hostIP", "an IP address"),
    ],
)
def test_host_ports_refused(port: dict[str, Any], at: str, says: str) -> None:
    """An invalid host port is refused with field, value and fix."""
    error = refused(pod(containers=[container(ports=[port])]))
    assert error.field == f"spec.containers[0].ports[0].{at}"
    assert says in str(error)


def test_scheduling_gates() -> None:
    """Scheduling gates are refused if they are repeated or are not valid Kubernetes names."""
    gates = [{"name": "example.com/quota"}, {"name": "wait"}, {"name": "wait"}]
    assert draft(pod(schedulingGates=gates)).gates == ("example.com/quota", "wait")
    error = refused(pod(schedulingGates=[{"name": "no spaces"}]))
    assert error.field == "spec.schedulingGates[0].name"


def test_resources_of_the_pod_itself() -> None:
    """For each resource, an amount of the pod itself replaces the sum of its containers' amounts.

    The pod's overhead is then added."""
    own = {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}}
    one = container(requests={"cpu": "3", "memory": "1Mi"})
    found = draft(pod(containers=[one], resources=own, overhead={"cpu": "500m"})).shape.node
    assert (found.cpu_milli, found.memory_mib) == (1500, 1024)
    error = refused(pod(resources={"limits": {"nvidia.com/gpu": "1"}}))
    assert error.field == 'spec.resources.limits["nvidia.com/gpu"]'
    assert "only by containers" in str(error)


def test_an_empty_required_term_matches_no_node() -> None:
    """An empty required term matches no node, as in kube-scheduler. The other terms still count."""
    ssd = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
    state = Ledger(observed("n1", labels={"disk": "ssd"})).state
    for terms, fits in (([{}], False), ([{}, ssd], True)):
        found = draft(affinity(REQUIRED, {"nodeSelectorTerms": terms}))
        needed, available = labels(found.shape, state.nodes["n1"])
        assert (available >= needed) is fits


TERM = f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[0]"


def term(**expression: object) -> dict[str, Any]:
    """Return a pod that requires nodes with this label expression, or that has an empty term."""
    expressions = [expression] if expression else []
    return affinity(REQUIRED, {"nodeSelectorTerms": [{"matchExpressions": expressions}]})


@pytest.mark.parametrize(
    ("document", "field", "says"),
    [
        (term(key="a", operator="Is"), f"{TERM}.matchExpressions[0].operator", "one of In, NotIn"),
        (term(key="a", operator="In"), f"{TERM}.matchExpressions[0].values", "at least one"),
        (
            term(key="a", operator="Exists", values=["x"]),
            f"{TERM}.matchExpressions[0].values",
            "has no effect with Exists",
        ),
        (
            term(key="a", operator="Lt", values=["x"]),
            f"{TERM}.matchExpressions[0].values",
            "must be one number",
        ),
        (
            affinity(PREFERRED, [{"weight": 101, "preference": {}}]),
            f"spec.affinity.nodeAffinity.{PREFERRED}[0].weight",
            "at most 100",
        ),
        (
            pod(tolerations=[{"key": "a", "operator": "Like"}]),
            "spec.tolerations[0].operator",
            "write one of Exists, Equal",
        ),
        (
            pod(tolerations=[{"key": "a", "effect": "Never"}]),
            "spec.tolerations[0].effect",
            "write one of NoSchedule, PreferNoSchedule, NoExecute",
        ),
        (pod(tolerations=[{"value": "a"}]), "spec.tolerations[0].key", "name a taint"),
        (
            pod(tolerations=[{"key": "a", "operator": "Exists", "value": "b"}]),
            "spec.tolerations[0].value",
            "has no effect with Exists",
        ),
        (pod(nodeSelector={"gpu": True}), 'spec.nodeSelector["gpu"]', "put it in quotes"),
        (pod(nodeSelector={f"k{i}": "" for i in range(65)}), "spec.nodeSelector", "at most 64"),
        (pod(priorityClassName="gold"), "spec.priorityClassName", "not a known priority class"),
        (pod({"cpu": "x"}), 'spec.containers[0].resources.limits["cpu"]', "is not a quantity"),
        (pod({"gpu": 1}), "spec.containers[0].resources", "a name with a domain"),
        (pod({"cpu": "20k"}), "spec.containers", "is more than any node has"),
        (
            pod({f"example.com/r{i}": 1 for i in range(65)}),
            "spec.containers",
            "too many or too large",
        ),
        (
            pod(containers=[using(limits={"cpu": 1}, requests={"cpu": 2})]),
            'spec.containers[0].resources.requests["cpu"]',
            "is more than the limit",
        ),
    ],
)
def test_refusals(document: dict[str, Any], field: str, says: str) -> None:
    """Invalid fields are refused with their path and a fix."""
    error = refused(document)
    assert error.field == field
    assert says in str(error)


def test_a_pod_of_too_many_constraints() -> None:
    """A pod is refused if its constraints together are too large for one event."""
    values = [f"{i:03}" + "x" * 1000 for i in range(256)]
    expressions = [{"key": f"k{i}", "operator": "In", "values": values} for i in range(2)]
    error = refused(affinity(REQUIRED, {"nodeSelectorTerms": [{"matchExpressions": expressions}]}))
    assert error.field == "spec"
    assert "reduce them to at most 262144 bytes" in str(error)


def test_containers_that_need_nothing() -> None:
    """A pod without any resource amounts is valid."""
    found = draft(pod(containers=[container("a"), {"name": "b"}]))
    assert found.shape.asks == ()
    assert (found.shape.node.cpu_milli, found.shape.node.memory_mib) == (0, 0)
