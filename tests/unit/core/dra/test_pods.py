"""Tests of reading the ResourceClaims of a pod."""

from typing import Any

import msgspec
import pytest

from apportion.core.dra.names import DRIVER, container_of
from apportion.core.dra.pods import PodClaims
from apportion.core.dra.requests import ResourceClaim, read_resource_claim
from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion_schemas import Ask, Shape
from tests.support.kube_claims import claiming_pod, request, resource_claim

DRAFT = PodDraft(namespace="default", name="p", shape=Shape(), dialect="none")


def nobody(_: str) -> bool:
    """Return False: in these tests, no other pod uses the claim."""
    return False


def raw(name: str = "p", *, made: str = "", **fields: Any) -> bytes:
    """Return a pod as the JSON that an API server would send.

    `made` is the name of the claim that Kubernetes created from the pod's template."""
    pod = claiming_pod(name, "mine", template=bool(fields.pop("template", False)))
    pod["metadata"] |= {"uid": name, "namespace": "default"}
    pod["spec"] |= fields
    if made:
        pod["status"] = {"resourceClaimStatuses": [{"name": "card", "resourceClaimName": made}]}
    return msgspec.json.encode(pod)


def claims(**fields: Any) -> dict[str, ResourceClaim]:
    """Return the claim `mine`, which requests 1 GiB by default, under its key `default/mine`."""
    meta = {"uid": "c-1", "namespace": "default"} | fields.pop("metadata", {})
    document = resource_claim("mine", *fields.pop("requests", [request(memory="1Gi")])) | fields
    document["metadata"] |= meta
    return {"default/mine": read_resource_claim(msgspec.json.encode(document))}


def test_a_pod_asks_for_what_its_claim_says() -> None:
    """A pod with a ResourceClaim requests what the claim requests, under a container name that is
    made from the claim's uid."""
    found = PodClaims(raw()).drafted(DRAFT, claims(), nobody)
    assert found is not None
    (ask,) = found.shape.asks
    assert ask == Ask(container=container_of("c-1"), family="nvidia", memory_mib=1024)
    assert found.dialect == "dra"


def test_a_claim_that_is_named_twice_is_held_once() -> None:
    """If a pod names the same claim twice, the claim counts once."""
    twice = [{"name": name, "resourceClaimName": "mine"} for name in ("card", "same")]
    found = PodClaims(raw(resourceClaims=twice)).drafted(DRAFT, claims(), nobody)
    assert found is not None
    assert len(found.shape.asks) == 1


def test_a_pod_waits_for_the_claim_that_is_made_of_its_template() -> None:
    """A pod waits until Kubernetes has created the claim from the pod's template and reported the
    claim's name."""
    assert PodClaims(raw(template=True)).drafted(DRAFT, claims(), nobody) is None
    known = PodClaims(raw(template=True, made="mine"))
    assert known.drafted(DRAFT, {}, nobody) is None
    owner = [{"kind": "Pod", "uid": "p", "controller": True}]
    own = claims(metadata={"ownerReferences": owner})
    assert known.drafted(DRAFT, own, nobody) is not None


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"metadata": {"name": "other"}}, "does not exist"),
    ({}, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, "is being deleted"),
    (
        {},
        {"metadata": {"ownerReferences": [{"kind": "Pod", "uid": "q", "controller": True}]}},
        "is used by another pod",
    ),
    (
        {},
        {"status": {"reservedFor": [{"resource": "pods", "name": "q", "uid": "q"}]}},
        "is used by pod q",
    ),
    (
        {},
        {"requests": [request(deviceClassName="nic.example.com")]},
        "uses the device class nic.example.com",
    ),
    (
        {"containers": [{"resources": {"claims": [{"name": "card"}, {"name": "other"}]}}]},
        {},
        "names several claims",
    ),
    (
        {"initContainers": [{"resources": {"claims": [{"name": "card", "request": "a"}]}}]},
        {"requests": [request("a", memory="1Gi"), request("b", memory="1Gi")]},
        "selects part of its claim",
    ),
]


@pytest.mark.parametrize(("pod", "claim", "problem"), REFUSED)
def test_a_claim_that_it_cannot_have_is_refused_by_its_name(
    pod: dict[str, Any], claim: dict[str, Any], problem: str
) -> None:
    """A pod is refused if it cannot use its claim, or if one container names several claims.

    The error gives the path of the field in the pod's spec."""
    known = claims(**claim)
    known = {f"default/{each.metadata.name}": each for each in known.values()}
    with pytest.raises(ManifestError, match=problem) as refused:
        PodClaims(raw(**pod)).drafted(DRAFT, known, nobody)
    assert refused.value.field.startswith("spec.")


def test_a_claim_of_alternatives_is_refused_by_that_field() -> None:
    """A claim that lists alternative devices is refused, and the refusal names its field."""
    either = {"name": "gpu", "firstAvailable": [{"name": "a", "deviceClassName": "x"}]}
    with pytest.raises(ManifestError) as refused:
        PodClaims(raw()).drafted(DRAFT, claims(requests=[either]), nobody)
    assert refused.value.field.endswith("firstAvailable")


MAIN = {"resources": {"claims": [{"name": "card"}]}}


@pytest.mark.parametrize(
    ("spec", "asked", "taken"),
    [
        ({"containers": [MAIN, MAIN]}, {"memory": "1Gi"}, False),
        ({"containers": [MAIN, MAIN]}, {}, True),
        ({"containers": [MAIN], "initContainers": [MAIN, MAIN]}, {"memory": "1Gi"}, True),
        (
            {"containers": [MAIN], "initContainers": [MAIN | {"restartPolicy": "Always"}]},
            {"memory": "1Gi"},
            False,
        ),
        (
            {"containers": [MAIN, MAIN]},
            {"cel": f'device.attributes["{DRIVER}"].profile == "1g.10gb"'},
            True,
        ),
    ],
)
def test_a_part_of_a_card_is_for_one_container_at_a_time(
    spec: dict[str, Any], asked: dict[str, Any], *, taken: bool
) -> None:
    """Containers that run at the same time may not use the same share, because HAMi-core counts
    usage per container. They may use the same whole device or MIG instance."""
    known = claims(requests=[request(**asked)])
    pod = PodClaims(raw(**spec))
    if taken:
        assert pod.drafted(DRAFT, known, nobody) is not None
        return
    with pytest.raises(ManifestError, match="among several containers"):
        pod.drafted(DRAFT, known, nobody)


def test_more_claims_than_a_pod_may_have_are_a_problem_of_that_pod() -> None:
    """A pod with too many claims is refused without any effect on other pods."""
    many = [{"name": f"c{i}", "resourceClaimName": "mine"} for i in range(65)]
    with pytest.raises(ManifestError, match="is not valid"):
        PodClaims(raw(resourceClaims=many))


def test_a_claim_of_another_pod_is_refused() -> None:
    """A pod is refused if another pod uses its claim."""
    with pytest.raises(ManifestError, match="sharing a claim is not supported"):
        PodClaims(raw()).drafted(DRAFT, claims(), lambda claim: claim == "c-1")


def test_amounts_beside_claims_are_refused() -> None:
    """A pod with both claims and device amounts is refused."""
    draft = msgspec.structs.replace(
        DRAFT, shape=Shape(asks=(Ask(container="main", family="nvidia", memory_mib=1),))
    )
    with pytest.raises(ManifestError, match="is set together with"):
        PodClaims(raw()).drafted(draft, claims(), nobody)
