"""Tests of converting a ResourceClaim's requests to device requests ("asks"), and of refusals that
name the field."""

from typing import Any

import msgspec
import pytest

from apportion.core.dra.names import DRIVER, container_of
from apportion.core.dra.requests import ResourceClaim, read_resource_claim, requests_of, wanted
from apportion.core.workloads.dialects import ManifestError
from apportion_schemas import Ask, DeviceConstraints
from tests.support.kube_claims import request, resource_claim

UID = "c-1"
ATTRIBUTES = f'device.attributes["{DRIVER}"]'


def claim(*requests: dict[str, Any], **devices: Any) -> ResourceClaim:
    document = resource_claim("mine", *requests)
    document["metadata"] |= {"uid": UID, "namespace": "default"}
    document["spec"]["devices"] |= devices
    return read_resource_claim(msgspec.json.encode(document))


def asked(**fields: Any) -> Ask:
    """Return the device request (ask) that is expected from a claim with one request of these
    fields."""
    return Ask(container=container_of(UID), family="nvidia", **fields)


@pytest.mark.parametrize(
    ("fields", "asks"),
    [
        ({"memory": "4Gi"}, (asked(memory_mib=4096),)),
        ({"memory": "1500M", "cores": "30"}, (asked(memory_mib=1431, cores=30),)),
        ({"cores": 50, "count": 2}, (asked(cores=50, count=2),)),
        ({}, (asked(cores=100),)),
        ({"count": 8}, (asked(cores=100, count=8),)),
        ({"cel": f'{ATTRIBUTES}.profile == "1g.10gb"'}, (asked(profile="1g.10gb"),)),
        (
            {"cel": f"{ATTRIBUTES}.profile == '1g.10gb'", "count": 2},
            (asked(profile="1g.10gb"), asked(profile="1g.10gb")),
        ),
    ],
)
def test_a_request_is_an_ask(fields: dict[str, Any], asks: tuple[Ask, ...]) -> None:
    """A ResourceClaim's request becomes one device request, or several if it needs several MIG
    instances.

    A request without amounts means a whole device."""
    found = wanted(claim(request(**fields)))
    assert found.asks == asks
    assert found.devices == DeviceConstraints()


def test_selectors_that_compare_our_attributes_choose_among_devices() -> None:
    """A claim's selectors on Apportion's attributes restrict the devices. A selector on the driver
    name alone restricts nothing."""
    cel = f'device.driver == "{DRIVER}" && {ATTRIBUTES}.mode == "mps"'
    one = request(cel=cel, memory="1Gi")
    one["exactly"]["selectors"].append(
        {"cel": {"expression": f'{ATTRIBUTES}.productName == "NVIDIA L40S"'}}
    )
    found = wanted(claim(one))
    assert found.devices == DeviceConstraints(modes=("mps",), use_types=("NVIDIA L40S",))


def test_every_share_knows_its_request() -> None:
    """A claim's shares are in the order of its requests, so that each share has its request."""
    of = claim(request("a", count=2, memory="1Gi"), request("b", memory="2Gi"))
    assert requests_of(of) == ["a", "a", "b"]
    assert [ask.memory_mib for ask in wanted(of).asks] == [1024, 2048]


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"firstAvailable": [{"name": "x"}], "exactly": None}, {}, "firstAvailable"),
    ({"deviceClassName": "other.example.com"}, {}, "deviceClassName"),
    ({"allocationMode": "All"}, {}, "allocationMode"),
    ({"adminAccess": True}, {}, "adminAccess"),
    ({"count": 65}, {}, "count"),
    ({"count": 33}, {}, "requests"),
    ({"memory": "0"}, {}, "memory"),
    ({"memory": "much"}, {}, "memory"),
    ({"cores": "101"}, {}, "cores"),
    ({"cores": "0.5"}, {}, "cores"),
    ({"capacity": {"requests": {"slots": "2"}}}, {}, "slots"),
    ({"cel": 'device.driver.startsWith("gpu")'}, {}, "expression"),
    ({"cel": f'{ATTRIBUTES}.mode == "mps" || true'}, {}, "expression"),
    ({"cel": f'{ATTRIBUTES}.mode == "timeslicing"'}, {}, "expression"),
    ({"cel": f'{ATTRIBUTES}.color == "red"'}, {}, "expression"),
    ({"cel": f'{ATTRIBUTES}.mode == "mps" && {ATTRIBUTES}.mode == "mig"'}, {}, "expression"),
    ({"cel": f'{ATTRIBUTES}.profile == "1g.10gb"', "memory": "1Gi"}, {}, "capacity"),
    ({}, {"constraints": [{"matchAttribute": "a/b"}]}, "constraints"),
    ({}, {"config": [{"opaque": {"driver": DRIVER, "parameters": {}}}]}, "config"),
]


@pytest.mark.parametrize(("fields", "devices", "field"), REFUSED)
def test_what_is_not_understood_is_refused_by_its_name(
    fields: dict[str, Any], devices: dict[str, Any], field: str
) -> None:
    """A claim that uses an unsupported feature is refused, with advice and the name of the claim's
    field."""
    one = request(**{key: value for key, value in fields.items() if key != "exactly"})
    first = one["exactly"].pop("firstAvailable", None)
    if first:
        one = {"name": "gpu", "firstAvailable": first}
    with pytest.raises(ManifestError) as refused:
        wanted(claim(one, **devices))
    assert field in refused.value.field
    assert refused.value.field.startswith("ResourceClaim default/mine: spec.devices")
    assert refused.value.fix


def test_requests_choose_alike() -> None:
    """A claim is refused if its requests select devices differently, because a pod has one set of
    device constraints."""
    mig = request("a", cel=f'{ATTRIBUTES}.mode == "mig"')
    with pytest.raises(ManifestError, match="has different selectors"):
        wanted(claim(mig, request("b", memory="1Gi")))


def test_another_drivers_parameters_do_not_matter() -> None:
    """Parameters of another driver are ignored."""
    config = [{"opaque": {"driver": "nic.example.com", "parameters": {}}}]
    assert wanted(claim(request(memory="1Gi"), config=config)).asks
