"""Tests of which events `submit` appends, in which order and in which batches."""

import pytest
from msgspec import structs

from apportion.cli.pods.append import BATCH, Submitted, _batched, _ordered
from apportion.cli.pods.decisions import Awaited, Decided
from apportion.cli.pods.live_diff import Compared, only_new
from apportion.cli.pods.pending import causes, never_of
from apportion.cli.verbs.act.submit import Report, counted, of_plan, of_replace, of_waiting
from apportion.core.answers.reads import PodAnswer
from apportion.core.explain.text.words import phrase
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.runtime.files.manifests import Wish
from apportion_schemas import (
    NodeConstraints,
    PodGroupObserved,
    PodRefused,
    PodSubmitted,
    RefusalCode,
)
from tests.support.golden import Golden
from tests.support.pods import gang, shape


def draft(name: str, group: str = "") -> PodDraft:
    """Return a pod that requests no resources. It belongs to gang `group`, if that is given."""
    return PodDraft(namespace="default", name=name, shape=shape(), dialect="hami", group=group)


def live(name: str) -> dict[str, PodAnswer]:
    """Return the gateway's answer about a live pod with this name, keyed by the pod's namespace and
    name."""
    answer = PodAnswer(
        namespace="default", name=name, uid="u", phase="placed", submitted_revision=1
    )
    return {f"default/{name}": answer}


def names(wish: Wish) -> list[str]:
    """Return the names of the gangs and pods that `submit` would append, in order. Names of gangs
    begin with `!`."""
    return [
        f"!{event.group}" if isinstance(event, PodGroupObserved) else event.name
        for event in _ordered(wish)
    ]


def test_gang_before_its_first_pod() -> None:
    """`submit` appends a gang before the gang's first pod. Otherwise the scheduler could place one
    of the gang's pods alone."""
    wish = Wish(
        [draft("a"), draft("b", "g1"), draft("c", "g2"), draft("d", "g1")],
        {"g1": gang("g1"), "g2": gang("g2"), "g3": gang("g3")},
    )
    assert names(wish) == ["a", "!g1", "b", "!g2", "c", "d", "!g3"]


def test_every_pod_gets_an_identity_of_its_own() -> None:
    """Each submitted pod gets a uid of its own, even if the same manifest is submitted again."""
    wish = Wish([draft("a"), draft("b")])
    uids = [
        event.uid for _ in range(2) for event in _ordered(wish) if isinstance(event, PodSubmitted)
    ]
    assert len(set(uids)) == 4


@pytest.mark.parametrize("count", [0, 1, BATCH, BATCH + 1, 3 * BATCH])
def test_batches(count: int) -> None:
    """The batches contain every event once and in order. No batch exceeds the size limit."""
    pods = [draft(f"p{number}") for number in range(count)]
    batches = list(_batched(_ordered(Wish(pods))))
    assert [event.name for batch in batches for event in batch if isinstance(event, PodSubmitted)
            ] == [pod.name for pod in pods]  # fmt: skip
    assert all(0 < len(batch) <= BATCH for batch in batches)


def test_live_pods_are_left_alone() -> None:
    """`submit` appends neither a pod that is already live nor a gang whose pods are all live."""
    wish = Wish([draft("a", "g1"), draft("b")], {"g1": gang("g1")})
    assert names(only_new(wish, live("a"))) == ["b"]
    assert names(only_new(wish, live("b"))) == ["!g1", "a"]


def test_gang_with_some_live_pods_is_said_again() -> None:
    """If only some pods of a gang are live, `submit` declares the gang again together with the
    missing pods."""
    wish = Wish([draft("a", "g1"), draft("b", "g1")], {"g1": gang("g1")})
    assert names(only_new(wish, live("a"))) == ["!g1", "b"]


def test_gang_that_stands_alone() -> None:
    """`submit` appends a gang even if the manifest has no pods for it."""
    assert names(only_new(Wish([], {"g1": gang("g1")}), {})) == ["!g1"]


def test_a_dry_run_says_which_verb_goes_on() -> None:
    """If a dry run of `submit` would append pods, it suggests `plan` as the next step."""
    new, goes_on = [Submitted("default", "a", "", 0)], "apportion plan -f FILE"
    assert goes_on in of_plan(Report(dry_run=True, submitted=new))
    assert goes_on in of_plan(Report(dry_run=True, replaced=["default/a"]))
    assert of_plan(Report(dry_run=True, unchanged=["default/a"])) == ""
    assert of_plan(Report(submitted=new)) == ""


NEW = [Submitted("default", "a", "", 0)]


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (Report(dry_run=True, submitted=NEW), "1 would be submitted"),
        (Report(submitted=NEW, placed={"default/a": "n"}), "1 submitted, 1 placed"),
        (
            Report(dry_run=True, replaced=["default/a"], ended={"default/b": 0}),
            "1 would be replaced, 1 would be ended",
        ),
        (Report(limits={"queue ml": 7}), "1 limit applied"),
        (Report(gangs={"default/g": 3}), "1 gang declared"),
        (Report(dry_run=True, gangs={"default/g": 3}), "1 gang would be declared"),
        (Report(dry_run=True, limits={"queue ml": 0, "b": 0}), "2 limits would be applied"),
        (Report(limits_unchanged=["queue ml"]), "1 limit unchanged"),
        (Report(problems=["wrong"]), "0 submitted, 1 document rejected"),
        (Report(submitted=NEW * 50, seconds=0.5), "50 submitted"),
        (
            Report(submitted=NEW, placed={"default/a": "n"}, evicted={"default/a": ["x/b", "x/c"]}),
            "1 submitted, 1 placed, 2 evicted",
        ),
    ],
)
def test_what_was_done_is_counted(report: Report, said: str) -> None:
    """The closing line of `submit` counts each kind of change, such as submitted or evicted pods. A
    dry run counts the changes that it would make."""
    assert counted(report) == said


def test_a_changed_workload_is_changed_whole_or_not_at_all(golden: Golden) -> None:
    """If a live pod differs from the manifest, `submit` neither adds nor ends other pods of its
    workload. Other workloads are submitted."""
    changed, new, other = (owned(name, "web") for name in ("web-0", "web-2", "api-0"))
    other = structs.replace(other, owner="Deployment/api", group="")
    (there,), (much,), (theirs,) = (live(name).values() for name in ("web-0", "web-3", "api-1"))
    much = structs.replace(much, owner="Deployment/web")
    theirs = structs.replace(theirs, owner="Deployment/api")
    groups = {"g1": gang("g1"), "g2": gang("g2")}
    found = Compared(
        Wish([new, other, draft("alone", "g2")], groups),
        changed=[(changed, there)],
        surplus=[much, theirs],
    )
    found.hold_back()
    assert found.held == {"default/web-2": "submitted", "default/web-3": "ended"}
    assert names(found.new) == ["api-0", "!g2", "alone"]
    assert found.surplus == [theirs]
    report = Report(changed={"default/web-0": ["x"]}, held=found.held)
    golden({"--replace": of_replace(report), "counted": counted(report)})


def test_a_changed_gang_of_bare_pods_is_changed_whole_or_not_at_all() -> None:
    """If a bare pod (one without a controller) differs from the manifest, `submit` does not submit
    the other pods of its gang."""
    (there,) = live("a").values()
    there = structs.replace(there, group="g1")
    groups = {"g1": gang("g1"), "g2": gang("g2"), "g3": gang("g3")}
    new = [draft("b", "g1"), owned("web-0", "web"), draft("c", "g2"), draft("d")]
    found = Compared(Wish(new, groups), changed=[(draft("a", "g1"), there)])
    found.hold_back()
    assert found.held == {"default/b": "submitted", "default/web-0": "submitted"}
    assert names(found.new) == ["!g2", "c", "d", "!g3"]


def test_no_gang_of_a_changed_pod_is_declared_anew() -> None:
    """If the manifest moves a live pod to another gang, `submit` declares neither the old gang nor
    the new one."""
    (there,) = live("a").values()
    there = structs.replace(there, group="g2")
    found = Compared(
        Wish([draft("b", "g2")], {"g1": gang("g1"), "g2": gang("g2")}),
        changed=[(draft("a", "g1"), there)],
    )
    found.hold_back()
    assert (list(found.held), names(found.new)) == (["default/b"], [])


def test_nothing_is_held_back_where_nothing_changed() -> None:
    """`submit` holds back only pods whose workload or gang has a live pod that differs from the
    manifest."""
    (there,) = live("a").values()
    (much,) = live("b").values()
    for changed in ([], [(draft("a"), there)]):
        found = Compared(Wish([draft("c")]), changed=changed, surplus=[much])
        found.hold_back()
        assert (found.held, names(found.new), found.surplus) == ({}, ["c"], [much])


def owned(name: str, owner: str) -> PodDraft:
    """Return a pod that belongs to this workload and to a gang."""
    return structs.replace(draft(name, "g1"), owner=f"Deployment/{owner}")


def refused(*codes: RefusalCode, nodes: int) -> PodRefused:
    """Return a refusal of a pod in which each cause rules out `nodes` nodes."""
    return PodRefused(
        pod="p", namespace="n", name="p", nodes=nodes, reasons=dict.fromkeys(codes, nodes)
    )


def test_nobody_waits_for_those_at_which_no_scheduler_looks() -> None:
    """`submit` does not wait for pods that no scheduler considers, such as pods with a scheduling
    gate."""
    settled: list[int] = []
    pods = [Submitted("default", uid, uid, 1) for uid in "abc"]
    awaited = Awaited(pods, lambda: settled.append(1))
    awaited.set_aside({"a": (gated := "gated: x")})
    awaited.set_aside({})
    assert (awaited.undecided, awaited.settled, len(settled)) == (["b", "c"], False, 1)
    assert causes(awaited, "a", {}) == {gated: 1}
    awaited.set_aside(dict.fromkeys("bc", "x"))
    assert (awaited.undecided, awaited.settled, len(settled)) == ([], True, 3)


def test_the_cause_of_many_names_the_labels_that_no_node_has() -> None:
    """If a pod is pending because no node has a label, the cause names that label."""
    awaited = Awaited([], lambda: None)
    awaited.decided["a"] = Decided(1, refused=refused(RefusalCode.NODE_LABELS_MISMATCH, nodes=4))
    wants = shape(node=NodeConstraints(selector={"pool": "tain"}))
    (cause,) = causes(awaited, "a", {"a": wants})
    assert "pool=tain" in cause


def test_the_cause_of_many_says_what_can_never_fit(golden: Golden) -> None:
    """If a pod can never fit on any node, the cause says so."""
    memory = RefusalCode.MEMORY_INSUFFICIENT
    awaited = Awaited([], lambda: None)
    awaited.decided |= {uid: Decided(1, refused=refused(memory, nodes=4)) for uid in "abc"}
    listed = [
        structs.replace(pod, uid=uid, never=never)
        for pod in live("x").values()
        for uid, never in {"a": True, "b": False}.items()
    ]
    (often, two), (never, one) = causes(awaited, "abc", {}, never_of(listed)).items()
    assert (often, two, one) == (phrase(memory), 2, 1)
    golden({"can never fit": never})


def test_of_many_that_wait_the_causes_are_counted(golden: Golden) -> None:
    """If many pods are pending, `submit` counts them per cause and lists at most five causes, the
    most frequent first."""
    memory, cpu = RefusalCode.MEMORY_INSUFFICIENT, RefusalCode.CPU_INSUFFICIENT
    awaited = Awaited([], lambda: None)
    for uid, why in {
        "a": refused(cpu, nodes=4), "b": refused(memory, nodes=4), "c": refused(memory, nodes=5),
        "d": refused(nodes=0),
    }.items():  # fmt: skip
        awaited.decided[uid] = Decided(1, refused=why)
    found = causes(awaited, awaited.decided, {})
    assert (found[phrase(memory)], found[phrase(cpu)], sum(found.values())) == (2, 1, 4)
    said = list(of_waiting(Report(causes=found)))
    assert said[0] == f"2 pending: {phrase(memory)}"
    many = list(of_waiting(Report(causes={str(number): 1 for number in range(7)})))
    assert len(many) == 5 + 2
    golden({"four pods, three causes": "\n".join(said), "seven causes": "\n".join(many)})
    assert not list(of_waiting(Report()))
