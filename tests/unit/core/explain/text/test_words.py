"""Tests that every refusal code has a text and a unit, and that a refusal's sentence states only
facts of its event."""

import pytest

from apportion.core.explain.text import words
from apportion.core.placement.feasibility.causes import CAUSES, LIMIT_CODES
from apportion.core.placement.feasibility.descriptors import Unit
from apportion_schemas import GangShortage, NearMiss, NodeConstraints, PodRefused, RefusalCode
from tests.support.golden import Golden
from tests.support.pods import shape


def refused(
    reasons: dict[RefusalCode, int], *nearest: NearMiss, gang: GangShortage | None = None
) -> PodRefused:
    """Return a pod's refusal with these node counts by code and these nearest nodes."""
    return PodRefused(
        pod="p1", namespace="default", name="p1", reasons=reasons,
        nodes=sum(reasons.values()), nearest=nearest, gang=gang,
    )  # fmt: skip


def miss(code: RefusalCode, needed: int, available: int, device: str = "g0") -> NearMiss:
    """Return a near miss: what node n1 or its device lacks, with needed and available amount."""
    return NearMiss(node="n1", code=code, needed=needed, available=available, device=device)


@pytest.mark.parametrize("code", list(RefusalCode))
def test_every_code_has_words(code: RefusalCode) -> None:
    """Every refusal code can be shown as a sentence."""
    assert len(words.phrase(code).split()) >= 3
    assert words.cure(code)


def test_no_words_without_a_code() -> None:
    """The table of causes has exactly one entry for each refusal code."""
    assert set(CAUSES) == set(RefusalCode)


def test_phrases_tell_codes_apart() -> None:
    """No two refusal codes are described by the same words."""
    assert len({words.phrase(code) for code in RefusalCode}) == len(RefusalCode)


def test_a_code_of_a_newer_build_stands_for_itself() -> None:
    """A refusal code from a newer build is shown by its name."""
    code = RefusalCode("VolumeNotBound")
    assert words.phrase(code).startswith("VolumeNotBound")
    assert (words.cure(code), words.amount(code, 3)) == ("", "")


@pytest.mark.parametrize(
    ("code", "value", "said"),
    [
        (RefusalCode.MEMORY_INSUFFICIENT, 3000, "3,000 MiB"),
        (RefusalCode.HOST_MEMORY_INSUFFICIENT, 1, "1 MiB"),
        (RefusalCode.CPU_INSUFFICIENT, 2500, "2.5 CPU"),
        (RefusalCode.CORES_INSUFFICIENT, 50, "50 cores"),
        (RefusalCode.SLOTS_EXHAUSTED, 1, "1 slot"),
        (RefusalCode.DEVICES_TOO_FEW, 2, "2 devices"),
        (RefusalCode.GANG_INCOMPLETE, 1, "1 pod"),
        (RefusalCode.NODE_CORDONED, 1, ""),
    ],
)
def test_amounts_carry_their_unit(code: RefusalCode, value: int, said: str) -> None:
    """An amount in a sentence has its unit. A yes-or-no refusal code, such as a cordon, has no
    amount."""
    assert words.amount(code, value) == said


def test_only_yes_or_no_codes_have_no_unit() -> None:
    """Refusal codes without an amount (yes-or-no conditions) have no unit; all other codes have
    one."""
    assert {code for code in RefusalCode if CAUSES[code].unit is Unit.NOTHING} == {
        RefusalCode.DEVICE_IN_USE,
        RefusalCode.NODE_GONE,
        RefusalCode.NODE_NOT_READY,
        RefusalCode.AGENT_SILENT,
        RefusalCode.DEVICE_PLUGIN_FOREIGN,
        RefusalCode.NODE_CORDONED,
        RefusalCode.NODE_UNSCHEDULABLE,
        RefusalCode.NODE_LABELS_MISMATCH,
        RefusalCode.NODE_NOMINATED,
        RefusalCode.NODE_RESERVED,
        RefusalCode.VOLUME_CLAIM_NOT_READY,
        RefusalCode.VOLUME_CLAIM_IN_USE,
        RefusalCode.VOLUME_NODE_MISMATCH,
        RefusalCode.NO_SUCH_DEVICE,
        RefusalCode.MODE_MISMATCH,
        RefusalCode.TYPE_MISMATCH,
        RefusalCode.GANG_MODEL_MISMATCH,
        RefusalCode.UUID_MISMATCH,
        RefusalCode.INDEX_MISMATCH,
        RefusalCode.DEVICE_UNHEALTHY,
        RefusalCode.DEVICE_CORDONED,
        RefusalCode.SIZES_DIFFER,
        RefusalCode.POD_AFFINITY_MISMATCH,
        RefusalCode.POD_ANTI_AFFINITY,
        RefusalCode.TOPOLOGY_SPREAD_EXCEEDED,
        RefusalCode.GANG_DOMAIN_TOO_SMALL,
        # their amounts are those of the resource that the refusal names
        *LIMIT_CODES,
    }


def test_sentence_counts_causes_and_names_the_nearest(golden: Golden) -> None:
    """The sentence that explains a refusal begins with the most frequent cause. The nearest node
    and the amount missing there follow."""
    said = words.refusal(
        refused(
            {RefusalCode.NODE_CORDONED: 1, RefusalCode.MEMORY_INSUFFICIENT: 3},
            miss(RefusalCode.MEMORY_INSUFFICIENT, 40_000, 24_564),
        )
    )
    golden({"3 nodes short of memory, 1 cordoned": said})


def test_sentence_stays_a_sentence() -> None:
    """If a refusal has very many causes, its sentence names the first few and counts the rest."""
    said = words.refusal(refused(dict.fromkeys(set(RefusalCode) - {RefusalCode.NODE_GONE}, 1)))
    assert said.endswith(f"{len(RefusalCode) - 1 - words.CAUSES_NAMED} more causes")


def test_nodes_that_had_left_are_not_counted(golden: Golden) -> None:
    """A refusal's sentence counts removed nodes only if the refusal has no other cause."""
    gone = RefusalCode.NODE_GONE
    some = refused({RefusalCode.MEMORY_INSUFFICIENT: 2, gone: 898})
    assert "898" not in words.refusal(some)
    golden({
        "2 nodes, 898 have left": words.refusal(some),
        "in a list": words.cause(some),
        "all have left": words.cause(refused({gone: 1})),
    })  # fmt: skip


def test_no_node_at_all(golden: Golden) -> None:
    """The sentence for a cluster without nodes says that there are no nodes."""
    golden({"no node": words.refusal(refused({}))})


def test_gang_that_lacks_pods(golden: Golden) -> None:
    """The sentence for a gang with missing pods begins with their number."""
    shortage = GangShortage(needed=4, present=2, fitting=0)
    said = words.refusal(refused({RefusalCode.GANG_INCOMPLETE: 0}, gang=shortage))
    golden({"2 of 4": said})


def test_gang_that_lacks_places(golden: Golden) -> None:
    """If all pods of a gang exist but only some fit, the sentence gives their number and then the
    cause."""
    shortage = GangShortage(needed=4, present=4, fitting=3)
    said = words.refusal(refused({RefusalCode.DEVICES_TOO_FEW: 2}, gang=shortage))
    assert words.phrase(RefusalCode.DEVICES_TOO_FEW) in said
    golden({"3 of 4": said})


@pytest.mark.parametrize(
    ("device", "said"),
    [("GPU-1a2b3c4d-0000-0000-0000-000000000000", "GPU-1a2b3c4d"), ("g0", "g0"), ("", "")],
)
def test_device_ids_are_cut(device: str, said: str) -> None:
    """A UUID is shortened to a prefix that commands accept; a short id stays whole."""
    assert words.device_words(device) == said


def test_one_of_a_thing_is_said_as_one(golden: Golden) -> None:
    """A sentence uses the singular or the plural according to the count."""
    assert [words.many(count, "pod") for count in (0, 1, 2_000)] == [
        "0 pods",
        "1 pod",
        "2,000 pods",
    ]
    golden({"0 of 1": words.gang(GangShortage(needed=1, present=0, fitting=0))})


def test_an_extended_resource_has_its_name_and_amounts(golden: Golden) -> None:
    """A missing extended resource is shown with name and amounts, in the list and in the
    sentence."""
    code = RefusalCode.EXTENDED_RESOURCE_INSUFFICIENT
    few = refused({code: 8}, miss(code, 2, 0, device=""))
    wants = shape(node=NodeConstraints(extended={"example.com/fpga": 2}))
    golden({"in a list": words.cause(few, wants), "sentence": words.refusal(few, wants)})


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (refused({RefusalCode.NODE_CORDONED: 2, RefusalCode.MEMORY_INSUFFICIENT: 1},
                 miss(RefusalCode.MEMORY_INSUFFICIENT, 9, 5)),
         "not enough free memory on the device (1 of 3 nodes); 1 more cause"),
        (refused({RefusalCode.NODE_LABELS_MISMATCH: 7, RefusalCode.NODE_CORDONED: 1},
                 miss(RefusalCode.NODE_LABELS_MISMATCH, 1, 0)),
         "node is cordoned (1 of 8 nodes); 1 more cause"),
        (refused({RefusalCode.NODE_LABELS_MISMATCH: 7, RefusalCode.NO_SUCH_DEVICE: 1}),
         "node labels do not match the pod's selector or affinity (7 of 8 nodes); 1 more cause"),
        (refused({RefusalCode.GANG_INCOMPLETE: 1}, gang=GangShortage(4, 1, 0)),
         "its gang needs 4 pods to start, but has 1"),
        (refused({}), "the cluster has no nodes"),
    ],
)  # fmt: skip
def test_the_cause_in_a_list_is_that_of_the_nearest_node(what: PodRefused, said: str) -> None:
    """A list shows the cause on the nearest node, and the number of other causes. A cause that
    operators can remove is shown rather than a mismatch of node labels."""
    assert words.cause(what) == said


def test_what_nodes_are_is_the_last_cause_of_a_sentence(golden: Golden) -> None:
    """Causes that operators cannot remove, such as node labels, come last in a sentence, even if
    they affect most nodes."""
    labels = RefusalCode.NODE_LABELS_MISMATCH
    one = refused({labels: 7, RefusalCode.NODE_CORDONED: 1}, miss(labels, 1, 0))
    golden({"7 with other labels, 1 cordoned": words.refusal(one)})
