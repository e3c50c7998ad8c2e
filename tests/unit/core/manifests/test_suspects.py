"""Slips of the pen in names of resources and annotations are told of, and nothing else is."""

from typing import Any

import pytest

from apportion.core.dialects.names import DialectConfig
from apportion.core.manifests.suspects import suspects

CONFIG = DialectConfig()


def pod(annotations: dict[str, str] | None = None, **limits: Any) -> dict[str, Any]:
    """A pod with these annotations and limits; `__` stands for a slash and `_` for a hyphen."""
    named = {name.replace("__", "/").replace("_", "-"): value for name, value in limits.items()}
    return {
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": annotations or {}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": named}}]},
    }


def found(document: object, *, placed: bool = False) -> list[str]:
    """Each suspect as its field and why."""
    return [f"{each.field} {each.why}" for each in suspects(document, CONFIG, placed=placed)]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("nvidia.com/gpu-mem", "nvidia.com/gpumem"),
        ("nvidia.com/gpucore", "nvidia.com/gpucores"),
        ("nvida.com/gpumem", "nvidia.com/gpumem"),
        ("volcano.sh/vgpu-memoryy", "volcano.sh/vgpu-memory"),
    ],
)
def test_a_resource_that_is_nearly_ours(name: str, meant: str) -> None:
    """It is named with where it stands, and with what is probably meant."""
    document = pod()
    document["spec"]["containers"][0]["resources"]["limits"] = {name: 1}
    (said,) = found(document)
    assert said.startswith(f'spec.containers[0].resources.limits["{name}"] is not known here')
    assert said.endswith(f"did you mean {meant}?")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("nvidia.com/use-gputyp", "nvidia.com/use-gputype"),
        ("hami.io/gpu-scheduler-polcy", "hami.io/gpu-scheduler-policy"),
        ("volcano.sh/vgpu-mod", "volcano.sh/vgpu-mode"),
    ],
)
def test_an_annotation_that_is_nearly_ours(key: str, meant: str) -> None:
    """Wherever the pod stands in a document."""
    for document in (pod({key: "x"}), {"spec": {"template": pod({key: "x"})}}):
        (said,) = found(document)
        assert "has no effect" in said
        assert said.endswith(f"did you mean {meant}?")


@pytest.mark.parametrize("name", ["nvidia.com/gpucores", "cambricon.com/mlu.smlu.vcore"])
def test_more_cores_than_a_device_has_are_told_of(name: str) -> None:
    """They are cut to all of them, as HAMi does; up to that nothing is said, nor of what is no
    number, which is refused.
    """
    document = pod()
    limits: dict[str, Any] = {"nvidia.com/gpu": 1}
    document["spec"]["containers"][0]["resources"]["limits"] = limits
    for fine in (100, "100", "many"):
        limits[name] = fine
        assert found(document) == []
    for much in (130, "130"):
        limits[name] = much
        (said,) = found(document)
        assert f'["{name}"] is 130, ' in said
        assert "counts as 100" in said


def test_one_of_our_domain_that_is_near_to_nothing() -> None:
    """It is told of without a guess."""
    (said,) = found(pod({"hami.io/something-else-entirely": "x"}))
    assert said.endswith("is not known here, and has no effect")


@pytest.mark.parametrize(
    ("kind", "part", "name", "meant"),
    [
        ("Queue", "capability", "volcano.sh/vgpu-nubmer", "volcano.sh/vgpu-number"),
        ("Queue", "capability", "memroy", "memory"),
        ("Queue", "capability", "gpus", ""),
        ("ResourceQuota", "hard", "limits.nvidia.com/gpumme", "limits.nvidia.com/gpumem"),
        ("ResourceQuota", "hard", "limit.nvidia.com/gpumem", "limits.nvidia.com/gpumem"),
    ],
)
def test_a_limit_of_nothing_that_there_is(kind: str, part: str, name: str, meant: str) -> None:
    """It would be in force, and every pod within it."""
    (said,) = found({"kind": kind, "spec": {part: {name: 4}}})
    assert said.startswith(f'spec.{part}["{name}"] is not known here, and limits no device')
    assert said.endswith(f"did you mean {meant}?") == bool(meant)


@pytest.mark.parametrize(
    ("kind", "limited"),
    [
        ("Queue", {"cpu": 1, "pods": 1, "hugepages-2Mi": 1, "nvidia.com/gpumem": 1, "b.c/d": 1}),
        ("ResourceQuota", {"requests.nvidia.com/gpu": 1, "nvidia.com/gpu": 1, "limits.cpu": 1}),
    ],
)
def test_limits_of_what_there_is(kind: str, limited: dict[str, int]) -> None:
    """Of nodes, of devices, and what some node may offer; the card quota is a queue's."""
    document = {
        "kind": kind,
        "metadata": {"annotations": {"volcano.sh/card.quota": "{}"}},
        "spec": {"capability": limited, "hard": limited},
    }
    assert found(document) == []


def test_what_is_known_or_of_others_is_no_business_of_ours() -> None:
    """Names that are read, that have no effect and say so elsewhere, and those of other systems."""
    annotations = {
        "nvidia.com/use-gputype": "A100",
        "hami.io/node-scheduler-policy": "spread",
        "scheduling.k8s.io/group-name": "g",
        "volcano.sh/sla-waiting-time": "1h",
        "prometheus.io/scrape": "true",
        "kubectl.kubernetes.io/restartedAt": "x",
    }
    assert found(pod(annotations, nvidia__com=1, cpu=1, memory="1Gi", example__nic=1)) == []
    assert found(pod(nvidia__gpu=1)) == []


def test_what_schedulers_write_is_passed_over_on_a_placed_pod() -> None:
    """HAMi and Volcano write on pods that they have placed."""
    document = pod({"hami.io/vgpu-node": "n1", "volcano.sh/vgpu-time": "7"})
    assert found(document, placed=True) == []
    assert len(found(document)) == 2


@pytest.mark.parametrize(
    "document",
    [
        None,
        7,
        [],
        {"annotations": 7},
        {"resources": {"limits": 3}},
        {"kind": "Queue"},
        {"kind": "Queue", "spec": {"capability": [1]}},
        {"kind": ["Queue"]},
    ],
)
def test_any_document_is_looked_at(document: object) -> None:
    """What is no object of the right kind has no names."""
    assert found(document) == []


def test_a_deep_document_ends() -> None:
    """Deeper than any pod stands nothing is looked for."""
    deep: dict[str, Any] = pod({"hami.io/x": "y"})
    for _ in range(200):
        deep = {"spec": deep}
    assert found(deep) == []
