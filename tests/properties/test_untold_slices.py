"""Property: Apportion places no pod on a MIG slice that another scheduler's pod may be using.

Pods of another scheduler start and end on MIG devices in any order. Some of these pods have
annotations that do not show which slice the pod uses."""

from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.fleet import A100_40, gpu, node
from tests.support.kube_objects import kube_node
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod
from tests.unit.watcher.kubernetes.followed_cluster import Cluster
from tests.unit.watcher.kubernetes.test_claims import cut_of, hami_pod

CUT = node("n1", *(gpu(n, model=A100_40, memory_mib=40_960, mode="mig", slots=7) for n in "ab"))
CARDS = st.sampled_from("ab")
STEPS = st.one_of(
    st.tuples(st.just("told"), CARDS, st.integers(0, 6)),
    st.tuples(st.just("untold"), CARDS, st.sampled_from(("", "[0-0]"))),
    st.tuples(st.just("end"), st.just(""), st.integers(0, 9)),
    st.tuples(st.just("ours"), st.just(""), st.just(0)),
)


@given(st.lists(STEPS, max_size=16), st.booleans())
def test_no_slice_is_given_out_on_which_an_untold_pod_may_run(
    steps: list[tuple[str, str, Any]], late: bool
) -> None:
    """Apportion allocates no MIG slice that a pod of another scheduler uses.

    If the slice of such a pod is unknown, Apportion allocates no slice of the pod's device."""
    cluster, numbers = Cluster(), count()
    cluster.see("nodes", kube_node("n1"))
    running: dict[str, tuple[str, str, int | None]] = {}
    if not late:
        cluster.ledger.report(CUT)
    for at, (kind, card, more) in enumerate(steps):
        if late and at == len(steps) // 2:
            cluster.ledger.report(CUT)
        if kind == "end" and running:
            name = sorted(running)[more % len(running)]
            text, on, start = running.pop(name)
            cuts = () if start is None else (cut_of(start, on),)
            hami_pod(cluster, name, text, *cuts, version=2, phase="Succeeded")
        elif kind in ("told", "untold"):
            told = kind == "told"
            if told and more in taken(cluster.ledger, card):
                continue  # its scheduler knows that the slice is taken
            text = f"{card}{'' if told else more},NVIDIA,5120,14:;"
            name = f"theirs{next(numbers)}"
            running[name] = text, card, more if told else None
            hami_pod(cluster, name, text, *((cut_of(more, card),) if told else ()))
        follow(cluster)
        if kind == "ours":
            name = f"ours{next(numbers)}"
            cluster.ledger.submit(pod(name, ask(5000)))
        before = {uid for uid, each in cluster.ledger.state.pods.items() if each.placement}
        cluster.ledger.settle()
        for uid in sorted(cluster.ledger.state.pods.keys() - before):
            check(cluster, uid, running)


def follow(cluster: Cluster) -> None:
    """Write to the ledger what the watcher would report about the pods of the cluster."""
    cluster.write(cluster.pod_facts())
    for data, problem, _ in cluster.facts.adoptions(cluster.view.pods):
        if not problem:
            cluster.ledger.play(data)
    cluster.write(list(cluster.facts.nodes(["n1"])))


def taken(ledger: Ledger, card: str) -> set[int]:
    """Return the slices of the device that are allocated in the ledger."""
    state = ledger.state.nodes.get("n1")
    held = state.by_id.get(card) if state else None
    return {at for at in range(8) if held and held.slices >> at & 1}


def check(cluster: Cluster, uid: str, running: dict[str, tuple[str, str, int | None]]) -> None:
    """Check that the placement of the pod `uid` uses no slice that a pod of another scheduler may
    use."""
    placement = cluster.ledger.pod(uid).placement
    for share in placement.shares if placement is not None else ():
        assert share.instance is not None
        for _, card, start in running.values():
            assert card != share.device or start is not None
            assert card != share.device or start != share.instance.start
