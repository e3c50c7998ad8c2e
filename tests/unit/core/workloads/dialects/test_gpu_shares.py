"""Tests of requests by HAMi's, Volcano vGPU's and NVIDIA's resource names: count, memory,
percentage, cores and defaults."""

from typing import Any

import pytest
from msgspec import structs

from apportion.core.workloads.dialects.names import VgpuNames
from apportion_schemas import Ask
from tests.support.manifests import asks, container, draft, pod, refused


def hami(**amounts: object) -> dict[str, Any]:
    """Return a pod with these amounts of HAMi's resources, such as `gpumem_percentage`."""
    return pod({f"nvidia.com/{name.replace('_', '-')}": n for name, n in amounts.items()})


def volcano(**amounts: object) -> dict[str, Any]:
    """Return a pod with these amounts of Volcano's vGPU resources, such as `memory_percentage`."""
    return pod({f"volcano.sh/vgpu-{name.replace('_', '-')}": n for name, n in amounts.items()})


def ask(**fields: Any) -> tuple[Ask, ...]:
    return (Ask(container="main", family="nvidia", **fields),)


@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        (hami(gpu="1", gpumem="3000", gpucores="30"), ask(memory_mib=3000, cores=30)),
        (hami(gpu=2, gpumem=3000), ask(count=2, memory_mib=3000)),
        (hami(gpumem="5000"), ask(memory_mib=5000)),
        (hami(gpucores="40"), ask(cores=40)),
        (hami(gpumem_percentage="1"), ask(memory_percent=1)),
        (hami(gpu="1", gpumem_percentage="50"), ask(memory_percent=50)),
        (hami(gpu="1", gpumem_percentage="100"), ask(cores=100)),
        (hami(gpu="1", gpumem_percentage="100", gpucores="20"), ask(cores=20)),
        (hami(gpu="2", gpucores="0"), ask(count=2, cores=0)),
        (hami(gpu="1", gpumem="0", gpumem_percentage="30"), ask(memory_percent=30)),
        (hami(gpumem="0"), ask()),
        (hami(gpu="2", priority="1"), ask(count=2, cores=100)),
        (hami(gpu="1", gpumem="2k"), ask(memory_mib=2000)),
        (volcano(number="2"), ask(count=2, cores=100)),
        (volcano(memory="3000"), ask(memory_mib=3000, cap_memory=True)),
        (
            volcano(number=2, memory=3000, cores=50),
            ask(count=2, memory_mib=3000, cores=50, cap_memory=True),
        ),
        (volcano(number="1", memory_percentage="25"), ask(memory_percent=25)),
        (volcano(number="1", memory_percentage="100"), ask()),
        (volcano(number="1", cores="100"), ask(cores=100)),
        (pod({"nvidia.com/gpu": "4"}), ask(count=4, cores=100)),
        (pod({"nvidia.com/gpu": "0"}), ()),
        (hami(gpu=0, gpumem=0), ()),
        (pod({"cpu": "1"}), ()),
    ],
)
def test_asks(document: dict[str, Any], wanted: tuple[Ask, ...]) -> None:
    """Every form of a request for a GPU share is read. Missing amounts get the webhook's
    defaults."""
    assert asks(document) == wanted


@pytest.mark.parametrize(
    ("document", "config", "wanted"),
    [
        (hami(gpumem="500"), {"default_gpu_count": 3}, ask(count=3, memory_mib=500)),
        (
            hami(gpu="1", gpucores="10"),
            {"default_memory_mib": 5000},
            ask(memory_mib=5000, cores=10),
        ),
        (pod({"nvidia.com/gpu": "1"}), {"default_memory_mib": 5000}, ask(memory_mib=5000)),
        (
            volcano(number="1"),
            {"default_memory_mib": 5000, "default_cores": 20},
            ask(memory_mib=5000, cores=20, cap_memory=True),
        ),
        (hami(gpu="1", gpumem="500"), {"default_cores": 15}, ask(memory_mib=500, cores=15)),
        (hami(gpu="1", gpumem="3"), {"memory_factor": 512}, ask(memory_mib=1536)),
        (
            volcano(number="1", memory="3"),
            {"memory_factor": 10},
            ask(memory_mib=30, cap_memory=True),
        ),
    ],
)
def test_configured_defaults(
    document: dict[str, Any], config: dict[str, Any], wanted: tuple[Ask, ...]
) -> None:
    """An amount that a pod omits gets the configured default, in the configured unit."""
    assert asks(document, **config) == wanted


@pytest.mark.parametrize(
    ("document", "resource", "says"),
    [
        (hami(gpu=1, gpumem_percentage=101), "nvidia.com/gpumem-percentage", "from 1 to 100"),
        (hami(gpu=65), "nvidia.com/gpu", "not between 1 and 64"),
        (hami(gpu=1, gpumem=1 << 25), "nvidia.com/gpumem", "write at most 16777216"),
        (hami(priority=0), "nvidia.com/priority", "add nvidia.com/gpu"),
        (hami(gpu="-1"), "nvidia.com/gpu", "is negative"),
        (hami(gpu="0.5"), "nvidia.com/gpu", "is a fraction"),
        (hami(gpu="many"), "nvidia.com/gpu", "is not a quantity"),
        (volcano(number=1, memory_percentage=200), "volcano.sh/vgpu-memory-percentage", "1 to 100"),
        (volcano(number=1, memory_percentage=0), "volcano.sh/vgpu-memory-percentage", "1 to 100"),
        (volcano(number=1, cores=150), "volcano.sh/vgpu-cores", "write 0 to 100"),
    ],
)
def test_refusals(document: dict[str, Any], resource: str, says: str) -> None:
    """An invalid request is refused with the field's path and a fix."""
    error = refused(document)
    assert error.field == f'spec.containers[0].resources.limits["{resource}"]'
    assert says in str(error)


def test_renamed_resources() -> None:
    """The configuration can rename every resource. The old name then requests no devices any more
    (D1)."""
    names = {"count": "example.com/card", "memory": "example.com/mem",
             "memory_percent": "example.com/part", "cores": "example.com/sm"}  # fmt: skip
    renamed = VgpuNames(**names)
    document = pod({"example.com/card": "2", "example.com/mem": "100"})
    assert asks(document, hami=renamed) == ask(count=2, memory_mib=100)
    old = draft(pod({"nvidia.com/gpumem": "100"}), hami=renamed)
    assert old.shape.asks == ()
    assert old.shape.node.extended == {"nvidia.com/gpumem": 100}


def test_requests_stand_in_for_limits() -> None:
    """A device amount may be set under `requests` alone. If it is also set under `limits`, the two
    amounts must be equal."""
    alone = pod(containers=[{"name": "main", "resources": {"requests": {"nvidia.com/gpumem": 7}}}])
    assert asks(alone) == ask(memory_mib=7)
    both = container(limits={"nvidia.com/gpumem": "1k"})
    both["resources"]["requests"] = {"nvidia.com/gpumem": 1000}
    assert asks(pod(containers=[both])) == ask(memory_mib=1000)
    both["resources"]["requests"] = {"nvidia.com/gpumem": 999}
    error = refused(pod(containers=[both]))
    assert error.field == 'spec.containers[0].resources.requests["nvidia.com/gpumem"]'
    assert "1000" in error.problem


def test_high_priority_containers() -> None:
    """Of several containers, only those with priority 0 count as high priority (D1)."""
    document = pod(
        containers=[
            container("a", {"nvidia.com/gpumem": 1, "nvidia.com/priority": 0}),
            container("b", {"nvidia.com/gpumem": 1, "nvidia.com/priority": 1}),
            container("c", {"nvidia.com/gpumem": 1}),
        ]
    )
    assert draft(document).high_priority == ("a",)


def test_init_containers_and_sidecars() -> None:
    """A sidecar gets a share of its own. Any other init container uses the main container's share,
    which is enlarged if the init container requests more."""
    document = pod(
        containers=[container("main", {"nvidia.com/gpumem": 3})],
        initContainers=[
            container("prepare", {"nvidia.com/gpumem": 4}),
            container("proxy", {"nvidia.com/gpumem": 2}, restartPolicy="Always"),
        ],
    )
    assert [(a.container, a.memory_mib, a.init) for a in asks(document)] == [
        ("proxy", 2, False), ("main", 4, False),
    ]  # fmt: skip


SOME = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 50}


@pytest.mark.parametrize(
    ("init", "main", "borrows"),
    [
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 50}, SOME, True),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 100}, SOME, True),
        ({"nvidia.com/gpu": 3, "nvidia.com/gpumem": 100}, SOME, False),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3001}, SOME, False),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1, "nvidia.com/gpucores": 51}, SOME, False),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 1}, SOME, False),
        ({"nvidia.com/gpu": 1}, {"nvidia.com/gpu": 1}, True),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 99}, {"nvidia.com/gpu": 1}, True),
        ({"nvidia.com/gpu": 1}, SOME, False),
        ({"nvidia.com/gpumem-percentage": 50}, {"nvidia.com/gpumem-percentage": 50}, True),
        ({"huawei.com/Ascend310P": 1}, {"huawei.com/Ascend310P": 1}, True),
    ],
)
def test_an_init_container_borrows_from_one_that_has_as_much(
    init: dict[str, int], main: dict[str, int], *, borrows: bool
) -> None:
    """An init container uses the share of a main container that has at least the same amounts, as
    in HAMi and Kubernetes.

    If no main container has them, the init container gets a share of its own."""
    document = pod(
        containers=[container("main", main)], initContainers=[container("prepare", init)]
    )
    found = draft(document)
    assert [ask.container for ask in found.borrowing] == ["prepare"] * borrows
    assert [ask.container for ask in found.shape.asks][-1] == "main"
    assert len(found.shape.asks) == 2 - borrows


ONE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}


@pytest.mark.parametrize(
    ("init", "main", "most"),
    [
        ({"nvidia.com/gpumem": 6000}, ONE, {"memory_mib": 6000, "cores": 30}),
        ({"nvidia.com/gpumem": 1, "nvidia.com/gpucores": 50}, ONE,
         {"memory_mib": 3000, "cores": 50}),
        ({"nvidia.com/gpu": 1}, ONE, {"cores": 100}),
        ({"nvidia.com/gpumem-percentage": 51}, {"nvidia.com/gpumem-percentage": 50},
         {"memory_percent": 51}),
    ],
)  # fmt: skip
def test_a_container_holds_the_most_of_its_own_and_an_init_containers_ask(
    init: dict[str, int], main: dict[str, int], most: dict[str, int]
) -> None:
    """If a main and an init container use one share, the larger of their two requests counts.

    This holds for each amount of the share."""
    document = pod(
        containers=[container("main", main)], initContainers=[container("prepare", init)]
    )
    found = draft(document)
    assert found.shape.asks == ask(**most)
    alone = (*asks(pod(containers=[container("prepare", init)])), *asks(pod(main)))
    assert [structs.replace(each, init=False) for each in found.borrowing] == list(alone)


def test_an_init_container_that_needs_more_is_lent_to_where_it_costs_least() -> None:
    """If an init container needs more than any main container, the largest share of a main
    container becomes large enough for both.

    A sidecar's share is never enlarged for an init container."""
    document = pod(
        containers=[container(f"c{n}", {"nvidia.com/gpumem": n}) for n in (1000, 5000)],
        initContainers=[
            container("proxy", {"nvidia.com/gpumem": 5999}, restartPolicy="Always"),
            container("prepare", {"nvidia.com/gpumem": 6000}),
        ],
    )
    assert [(a.container, a.memory_mib) for a in asks(document)] == [
        ("proxy", 5999), ("c1000", 1000), ("c5000", 6000),
    ]  # fmt: skip


def test_a_sidecar_lends_nothing() -> None:
    """An init container cannot use a sidecar's share, because both may run at the same time."""
    document = pod(
        containers=[container("main")],
        initContainers=[
            container("proxy", SOME, restartPolicy="Always"),
            container("prepare", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 100}),
        ],
    )
    assert draft(document).borrowing == ()
