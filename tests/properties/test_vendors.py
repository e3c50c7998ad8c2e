"""Property tests: pods of every vendor get devices that the vendor's plugin reads, and that we read
back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from apportion.core.workloads.adoption.recovery import recover, shares_of
from apportion.core.workloads.dialects import DialectConfig
from apportion.core.workloads.dialects.dialect import BoundPod, PlacedPod
from apportion.core.workloads.dialects.listing import DIALECTS, render
from apportion.core.workloads.dialects.node_annotations import registration
from apportion_schemas import DEVICE_PLUGIN, DevicesRegistered, PodRefused
from tests.support.fleet import observed
from tests.support.ledger_of import Ledger
from tests.support.manifests import container, draft, pod
from tests.support.plugin_views import hami_containers
from tests.support.pods import pod as submitted
from tests.support.vendor_nodes import VENDORS

CONFIG = DialectConfig()
OF_HAMI = [each.name for each in DIALECTS if each.plugin(CONFIG) == "hami" and each.inventory]


def test_every_vendor_has_a_node() -> None:
    """The tests below cover every vendor whose devices HAMi shares."""
    assert sorted({*VENDORS, "hami", "plain"}) == sorted(OF_HAMI)


def node(name: str) -> Ledger:
    """Return a ledger with the vendor's node, which Apportion may use."""
    found = registration(VENDORS[name].node)
    assert found.problem == ""
    assert len(found.devices) >= 4
    event = DevicesRegistered(node="n1", plugin=found.plugin, devices=found.devices)
    return Ledger(observed("n1", labels={DEVICE_PLUGIN: found.plugin}), event)


@pytest.mark.parametrize("name", sorted(VENDORS))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_placement_is_read_by_the_plugin_and_read_back(name: str, data: st.DataObject) -> None:
    """The vendor's plugin reads each container's devices in a placed pod's annotations.

    If the ledger is lost, Apportion recovers the devices from the annotations."""
    one = st.sampled_from(VENDORS[name].limits)
    limits = data.draw(st.lists(one, min_size=1, max_size=VENDORS[name].containers))
    names = ("a", "b", "c")[: len(limits)]
    document = pod(containers=[*map(container, names, limits)])
    found = draft(document)
    wanted = submitted("p", shape=found.shape, dialect=found.dialect)
    wanted = structs.replace(wanted, containers=names)
    ledger = node(name).submit(wanted)
    if any(isinstance(each, PodRefused) for each in ledger.decide()):
        return
    placed = ledger.placement("p")
    devices = {each.device.id: each.device for each in ledger.node().devices}
    notes = render(PlacedPod(wanted, placed, devices, 0, CONFIG))
    (read,) = [
        hami_containers(text)
        for key, text in notes.items()
        if key.startswith("hami.io/") and key.endswith("-allocated") and text
    ]
    assert [[each.device for each in segment] for segment in read] == [
        [share.device for share in placed.shares if share.container == each] for each in names
    ]
    back = recover(BoundPod(notes, (), names, found.shape.asks, CONFIG))
    assert back is not None
    assert shares_of(back.held, found.shape.asks, devices) == placed.shares
