"""Compare two states: their content, and the order of the entries in their maps."""

from typing import Any

from apportion.core.ledger.digest import canonical
from apportion.core.ledger.state import State


def assert_same(one: State, other: State) -> None:
    """Check that both states have equal content in equal order.

    Also check that `one` holds no second copy of a pod or shape."""
    assert canonical(one) == canonical(other)
    assert orders(one) == orders(other)
    for node in one.nodes.values():
        assert all(one.pods[uid] is pod for uid, pod in node.pods.items())
    for pod in one.pods.values():
        assert one.shapes[pod.shape_key] is pod.submitted.shape


def orders(state: State) -> list[Any]:
    """Return the order of the state's maps, and other facts that its digest leaves out."""
    return [
        list(state.nodes), list(state.pods), list(state.groups), list(state.queues),
        [(name, list(quotas)) for name, quotas in state.quotas.items()],
        list(state.failing), list(state.rejected), list(state.node_of_device),
        [(list(n.pods), list(n.by_id), n.host) for n in state.nodes.values()],
        [list(g.pods) for g in state.groups.values()],
        [(p.shape_key, p.submitted.shape) for p in state.pods.values()],
    ]  # fmt: skip
