"""Tests of MIG devices that may be split only into configured groups of instances (A8)."""

import re
from typing import Any

import pytest

from apportion.core.configuration import read_configuration
from apportion.core.devices.demand import Unlaid, generated, laid_out
from apportion.core.workloads.adoption.placement_annotations import annotations_for
from apportion_schemas import ConfigurationChanged, MigSize, RefusalCode, Share
from apportion_schemas.configuration import MigCount, MigGroup
from tests.support.fleet import A100_40, A100_80, node, observed, rack
from tests.support.fleet import gpu as card
from tests.support.golden import Golden
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod, share
from tests.support.pods import placed as placement

SMALL, MIDDLE, LARGE = 4000, 8000, 18000
MIXED = [("2g.10gb", 10240, 3), ("1g.5gb", 5120, 1)]
HALVES = [("3g.20gb", 20480, 2)]


def groups(*found: list[tuple[str, int, int]], model: str = "A100-SXM4-40GB") -> dict[str, Any]:
    """Return a configuration that allows these MIG groups on the model, named `group1` onwards."""
    allowed = [
        {
            "group": f"group{number}",
            "geometries": [
                {"name": name, "memory": memory, "count": count} for name, memory, count in group
            ],
        }
        for number, group in enumerate(found, 1)
    ]
    known = [{"models": [model], "allowedGeometries": allowed}]
    return {"nvidia": {"knownMigGeometries": known}}


def configured(document: dict[str, Any]) -> ConfigurationChanged:
    return ConfigurationChanged(by="ada", configuration=read_configuration(document))


def cluster(*found: list[tuple[str, int, int]], cards: int = 1) -> Ledger:
    """Return a ledger with one node, whose MIG devices may be split only into these groups of
    instances."""
    return Ledger(configured(groups(*found)), rack("n1", cards, model=A100_40, mode="mig", slots=7))


def placed(ledger: Ledger, uid: str, *memory_mib: int) -> str:
    """Submit a pod with one container for each of these memory amounts.

    Return its first MIG instance as text (see `where`), or an empty string if the pod is not
    placed."""
    asks = [ask(memory, container=f"c{i}") for i, memory in enumerate(memory_mib)]
    ledger.submit(pod(uid, *asks)).settle()
    return where(ledger.shares(uid)[0]) if ledger.where(uid) else ""


def where(share: Share) -> str:
    """Return a share's MIG instance as text: group, position in the group, profile and first slice.

    For example: `group1-3 1g.5gb@6`."""
    cut = share.instance
    assert cut is not None
    return f"{cut.group}-{cut.position} {cut.profile}@{cut.start}"


def test_A8_generated_defaults_are_those_of_the_device_plugin() -> None:
    """Without configured groups, a model has the MIG groups that Volcano's device plugin generates.

    Each group has as many instances of one profile as fit, plus smaller instances in the remaining
    slices."""
    made = [
        [(entry.name, entry.count) for entry in group.geometries] for group in generated(A100_80)
    ]
    assert made == [
        [("1g.10gb", 7)],
        [("2g.20gb", 3), ("1g.10gb", 1)],
        [("3g.40gb", 2)],
        [("7g.80gb", 1)],
    ]


@pytest.mark.parametrize("model", [A100_40, A100_80, "NVIDIA A30", "NVIDIA H200", "NVIDIA B200"])
def test_places_of_a_group_stand_beside_one_another(model: str) -> None:
    """No two instances of a MIG group share a slice, and every instance starts where its profile
    may start."""
    for number, group in enumerate(generated(model), 1):
        occupied = 0
        for position, place in enumerate(laid_out(group, number, model)):
            assert place.position == position
            assert place.start in place.profile.starts
            assert not place.mask & occupied
            occupied |= place.mask


def test_A8_a_card_follows_one_group_as_long_as_it_is_cut() -> None:
    """The first pod on a MIG device decides which group the device is split into. The device keeps
    that group until it is empty."""
    ledger = cluster(MIXED, HALVES)
    assert placed(ledger, "p1", SMALL) == "group1-3 1g.5gb@6"
    assert placed(ledger, "p2", LARGE) == ""
    assert ledger.reasons("p2") == {RefusalCode.MIG_SLICES_OCCUPIED: 1}
    ledger.gone("p1").settle()
    assert where(ledger.shares("p2")[0]) == "group2-0 3g.20gb@0"
    assert placed(ledger, "p3", SMALL) == "group2-1 3g.20gb@4"


def test_A2_the_smallest_free_instance_of_the_group_that_holds_the_ask() -> None:
    """A pod gets the smallest free instance of the group that has enough memory."""
    ledger = cluster(MIXED)
    found = [placed(ledger, f"p{i}", SMALL) for i in range(5)]
    assert found == [
        "group1-3 1g.5gb@6",
        "group1-0 2g.10gb@0",
        "group1-1 2g.10gb@2",
        "group1-2 2g.10gb@4",
        "",
    ]
    assert [ledger.shares(f"p{i}")[0].memory_mib for i in range(4)] == [4864, *[9984] * 3]


def test_no_instance_is_larger_than_what_a_card_has_left() -> None:
    """New MIG instances use only the slices that a pod's earlier share leaves free.

    Such a share can remain from before the device switched to MIG."""
    ledger = Ledger(configured(groups(MIXED)), rack("n1", 1, model=A100_40), pod("x"))
    ledger.play(placement("x", "n1", [share("n1-g0", 27_000, 0)]))
    ledger.play(rack("n1", 1, model=A100_40, mode="mig", slots=7))
    assert placed(ledger, "p1", SMALL) == "group1-3 1g.5gb@6"
    assert placed(ledger, "p2", SMALL) == ""
    assert ledger.reasons("p2") == {RefusalCode.MIG_SLICES_OCCUPIED: 1}
    assert placed(ledger, "p3", SMALL, SMALL) == ""
    ledger.gone("x").settle()
    assert where(ledger.shares("p2")[0]) == "group1-0 2g.10gb@0"
    assert [where(each) for each in ledger.shares("p3")] == [
        "group1-1 2g.10gb@2",
        "group1-2 2g.10gb@4",
    ]


def test_two_containers_get_two_instances() -> None:
    """Two containers get two instances of one group."""
    ledger = cluster(MIXED, HALVES)
    placed(ledger, "p1", SMALL, MIDDLE)
    assert [where(share) for share in ledger.shares("p1")] == [
        "group1-3 1g.5gb@6",
        "group1-0 2g.10gb@0",
    ]
    assert placed(ledger, "p2", LARGE, SMALL) == ""


def test_a_profile_that_is_in_no_group_is_never_made() -> None:
    """No instance outside the configured groups is created, even if the device could fit one."""
    ledger = cluster(MIXED)
    assert placed(ledger, "p1", LARGE) == ""
    assert ledger.reasons("p1") == {RefusalCode.MIG_NO_PROFILE: 1}


def test_memory_is_what_the_person_wrote() -> None:
    """An instance has the memory that the operator configured: a 2g instance with 9,000 MiB does
    not fit a request for 9,500 MiB."""
    ledger = cluster([("2g.10gb", 9000, 3)])
    assert placed(ledger, "p1", 9500) == ""
    assert placed(ledger, "p2", 9000) == "group1-0 2g.10gb@0"


def test_other_models_are_cut_freely() -> None:
    """A device whose model has no configured groups may be split in any way."""
    ledger = cluster(MIXED)
    other = card("x0", model=A100_80, mode="mig", slots=7)
    ledger.report(node("n2", other))
    assert placed(ledger, "p1", 30_000) == "-0 3g.40gb@4"


def test_a_new_document_holds_at_once_and_for_what_is_cut_already_when_it_is_empty() -> None:
    """A new list of MIG groups applies at once to empty devices. A device that is already split
    takes no new pods until it is empty."""
    ledger = Ledger(rack("n1", 1, model=A100_40, mode="mig", slots=7))
    assert placed(ledger, "p1", SMALL) == "-0 1g.5gb@6"
    ledger.play(configured(groups(MIXED)))
    assert placed(ledger, "p2", SMALL) == ""
    ledger.gone("p1").settle()
    assert where(ledger.shares("p2")[0]) == "group1-3 1g.5gb@6"
    ledger.play(configured({}))
    assert placed(ledger, "p3", LARGE) == ""
    ledger.gone("p2").settle()
    assert where(ledger.shares("p3")[0]) == "-0 3g.20gb@4"


def test_a_document_may_help_a_pod_that_waits() -> None:
    """The scheduler retries unschedulable pods when the allowed groups change."""
    ledger = cluster(HALVES, cards=1)
    placed(ledger, "p1", LARGE)
    placed(ledger, "p2", LARGE)
    assert placed(ledger, "p3", 30_000) == ""
    ledger.gone("p1", "p2").play(configured(groups([("7g.40gb", 40960, 1)]))).settle()
    assert where(ledger.shares("p3")[0]) == "group1-0 7g.40gb@0"


def test_a_share_of_another_group_is_refused_by_every_fold(golden: Golden) -> None:
    """The fold refuses a share whose MIG group is not the group into which its device is split."""
    ledger = cluster(MIXED, HALVES)
    placed(ledger, "p1", SMALL)
    foreign = cluster(MIXED, HALVES)
    placed(foreign, "p2", LARGE)
    ledger.submit(pod("p2", ask(LARGE)))
    event = foreign.placement("p2")
    golden({"p2, placed where the other group is": ledger.contradict(event)})


def test_A2_volcano_s_plugin_finds_the_instance_that_was_chosen() -> None:
    """The annotation for Volcano's device plugin names the chosen instance by its group and its
    position in the group."""
    ledger = cluster(MIXED)
    ledger.play(observed("n1"))
    ledger.submit(pod("p1", ask(SMALL, cap_memory=True), dialect="volcano-vgpu")).settle()
    at = ledger.pod("p1")
    notes = annotations_for(
        at.submitted,
        ledger.placement("p1"),
        revision=at.placed_revision,
        devices={state.device.id: state.device for state in ledger.node().devices},
        now_ns=0,
        configuration=ledger.state.configuration,
    )
    assert notes["volcano.sh/vgpu-ids-new"] == "n1-g0[group1-3],NVIDIA,4000,0:"


def test_D4_instances_by_profile() -> None:
    """A request for a profile gets an instance of exactly that profile, only on MIG devices."""
    ledger = Ledger(rack("n1", 1, model=A100_40, mode="mig", slots=7), rack("n2", 1, model=A100_40))
    asks = [ask(profile="2g.10gb")] * 3
    ledger.submit(pod("p1", *asks), pod("p2", ask(profile="2g.20gb"))).settle()
    found = [share.instance for share in ledger.shares("p1")]
    assert sorted((cut.profile, cut.start) for cut in found if cut) == [
        ("2g.10gb", 0), ("2g.10gb", 2), ("2g.10gb", 4),
    ]  # fmt: skip
    assert ledger.reasons("p2") == {RefusalCode.MIG_NO_PROFILE: 1, RefusalCode.MODE_MISMATCH: 1}


VARIANTS = ["1g.5gb+me", "1g.5gb-me", "1g.5gb+gfx", "1g.5gb+me.all", "1g.20gb", "4g.40gb"]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_profile_that_a_model_lacks_is_no_other_of_it(name: str) -> None:
    """A group with a profile that the model lacks is refused, even if a similar profile exists."""
    group = MigGroup(group="g", geometries=(MigCount(name=name, memory=4864, count=1),))
    with pytest.raises(Unlaid, match=re.escape(name)):
        laid_out(group, 1, A100_40)


@pytest.mark.parametrize(("name", "slices"), [("1g.10gb", 2), ("4g.20gb", 4), ("7g.39gb", 8)])
def test_a_group_may_have_every_profile_of_the_model(name: str, slices: int) -> None:
    """A configured group may contain any MIG profile of the model, including special profiles and
    older names of a profile."""
    group = MigGroup(group="g", geometries=(MigCount(name=name, memory=60_000, count=1),))
    (place,) = laid_out(group, 1, A100_40)
    assert (place.profile.name, place.profile.size) == (name, slices)


def test_an_instance_of_a_group_is_chosen_by_memory() -> None:
    """The scheduler chooses an instance of a group by its configured memory, whatever its
    profile."""
    ledger = cluster([("1g.10gb", 9984, 4)])
    assert placed(ledger, "p1", 9000) == "group1-0 1g.10gb@0"


def test_two_profiles_of_as_much_memory_are_told_apart_by_name() -> None:
    """Of two profiles with the same memory, a request by amount gets the cheaper one.

    A request by name gets the named profile."""
    ledger = Ledger(rack("n1", 2, model=A100_40, mode="mig", slots=7))
    named = [ask(profile="1g.10gb")] * 4
    ledger.submit(pod("p1", ask(9000)), pod("p2", *named), pod("p3", ask(profile="4g.20gb")))
    ledger.settle()
    assert where(ledger.shares("p1")[0]).startswith("-0 2g.10gb@")
    assert {where(share).split()[1][:7] for share in ledger.shares("p2")} == {"1g.10gb"}
    assert where(ledger.shares("p3")[0]).endswith("4g.20gb@0")


def test_an_instance_of_a_group_has_the_size_that_its_card_reports() -> None:
    """An instance has the size that its device reports, so the scheduler picks a device whose
    instance is large enough."""
    small, large = (
        card(name, model=A100_40, mode="mig", slots=7, mig_sizes=(size,))
        for name, size in (
            ("g0", MigSize(profile="1g.5gb", memory_mib=4800)),
            ("g1", MigSize(profile="1g.5gb", memory_mib=4900)),
        )
    )
    ledger = Ledger(configured(groups([("1g.5gb", 5120, 7)])), node("n1", small, large))
    ledger.submit(pod("p1", ask(4850))).settle()
    (held,) = ledger.shares("p1")
    assert (held.device, where(held), held.memory_mib) == ("g1", "group1-0 1g.5gb@0", 4900)
    ledger.submit(pod("p2", ask(4901))).settle()
    assert not ledger.where("p2")
