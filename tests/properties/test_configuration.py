"""Properties that hold for every configuration document that Hypothesis draws."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.core.configuration import check, read_configuration
from apportion.core.devices.demand import generated, laid_out
from apportion.core.devices.shares import DeviceState
from apportion.core.workloads.document import ManifestError
from apportion_schemas import Configuration, ConfigurationChanged
from apportion_schemas.configuration import (
    FilterDevices,
    MigGeometries,
    MigGroup,
    NodeConfiguration,
    NvidiaConfiguration,
    PolicyConfiguration,
)
from tests.support.fleet import A100_40, gpu, node
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod

NAMES = st.none() | st.sampled_from(["a.b/c", "a.b/d", "volcano.sh/vgpu-memory", "nvidia.com/gpu"])
SCALING = st.floats(0.01, 100)
SLOTS = st.integers(1, 250)
NVIDIA = st.builds(
    NvidiaConfiguration,
    resource_count_name=NAMES,
    resource_memory_name=NAMES,
    default_memory=st.integers(0, 9000),
    device_split_count=SLOTS,
    device_memory_scaling=SCALING,
    gpu_memory_factor=st.integers(1, 1024),
    mig_strategy=st.sampled_from(["none", "mixed"]),
)
NODE = st.builds(
    NodeConfiguration,
    name=st.sampled_from(["n1", "n2"]),
    operating_mode=st.sampled_from([None, "hami-core", "mig", "mps"]),
    device_memory_scaling=st.none() | SCALING,
    device_split_count=st.none() | SLOTS,
    filter_devices=st.builds(FilterDevices, index=st.sampled_from([(), (0,), (1, 5)])),
)
POLICY = st.sampled_from([None, "price", "spread"])
CONFIGURATIONS = st.builds(
    Configuration,
    nvidia=NVIDIA,
    nodeconfig=st.lists(NODE, max_size=2).map(tuple),
    policy=st.builds(PolicyConfiguration, nodes=POLICY, devices=POLICY),
    scheduler_names=st.sampled_from([(), ("apportion",), ("volcano", "apportion")]),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.floats(0, 9) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "nvidia",
                    "nodeconfig",
                    "name",
                    "group",
                    "models",
                    "defaultMemory",
                    "x",
                    "vnpus",
                    "configs",
                    "commonWord",
                    "templates",
                    "cambricon",
                    "migProfileAllowlist",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
)
GENERATED = list(generated(A100_40))
MOVES = st.lists(st.integers(-6, 41_000), min_size=1, max_size=14)


@settings(max_examples=300, deadline=None)
@given(CONFIGURATIONS)
def test_a_configuration_that_passes_is_read_back_from_what_is_shown(found: Any) -> None:
    """If a configuration is valid, reading the output of `config show` gives the same
    configuration."""
    try:
        check(found)
    except ManifestError:
        return
    assert read_configuration(msgspec.json.decode(msgspec.json.encode(found))) == found


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(["nvidia", "nodeconfig", "policy", "y"]), JSON) | JSON)
def test_any_document(document: object) -> None:
    """A document is either accepted as a configuration or refused with the name of a key."""
    said = ""
    try:
        found = read_configuration(document)
    except ManifestError as error:
        said = f"{error.field}|{error.fix}|{error}"
    else:
        assert isinstance(found, Configuration)
    assert not said.startswith("|")
    assert "||" not in said
    assert "\n" not in said


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(GENERATED), min_size=1, max_size=4, unique=True), MOVES)
def test_A8_a_card_is_never_cut_outside_of_its_groups(groups: list[MigGroup], moves: Any) -> None:
    """While pods start and end, the instances of a MIG device always fit an allowed geometry.

    A number in `moves` is the memory of a new pod in MiB. A negative number ends a pod."""
    known = (MigGeometries(models=("A100-SXM4-40GB",), allowed_geometries=tuple(groups)),)
    configuration = Configuration(nvidia=NvidiaConfiguration(known_mig_geometries=known))
    cards = [gpu(f"g{i}", model=A100_40, mode="mig", slots=7) for i in range(2)]
    ledger = Ledger(ConfigurationChanged(by="ada", configuration=configuration), node("n1", *cards))
    for turn, move in enumerate(moves):
        if move >= 0:
            ledger.submit(pod(f"p{turn}", ask(move)))
        elif f"p{turn + move}" in ledger.state.pods:
            ledger.gone(f"p{turn + move}")
        ledger.settle()
        for state in ledger.node().devices:
            _follows_a_group(ledger, state, groups)


def _follows_a_group(ledger: Ledger, state: DeviceState, groups: list[MigGroup]) -> None:
    cuts = [
        share.instance
        for uid in ledger.node().pods
        for share in ledger.shares(uid)
        if share.device == state.device.id and share.instance
    ]
    if not cuts:
        assert (state.slices, state.group) == (0, "")
        return
    (group,) = (group for group in groups if group.group == state.group)
    places = {place.position: place for place in laid_out(group, 1, A100_40)}
    assert len({cut.position for cut in cuts}) == len(cuts)
    for cut in cuts:
        place = places[cut.position]
        assert (cut.group, cut.profile, cut.start, cut.size) == (
            state.group, place.profile.name, place.start, place.profile.size,
        )  # fmt: skip
