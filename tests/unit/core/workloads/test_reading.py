"""Documents and their outcomes: what is no manifest, what is too much, and who goes on."""

from typing import Any

import pytest

from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.reading import read_document, read_documents
from tests.support.golden import Golden
from tests.support.manifests import container, pod, refused


def nested(levels: int) -> Any:
    """A list in a list, so many levels deep."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("document", "field", "says"),
    [
        (None, "document", "is not an object"),
        ("Pod", "document", "is not an object"),
        ({}, "apiVersion", "is missing or not text"),
        ({"apiVersion": "v1"}, "kind", "is missing or not text"),
        ({"apiVersion": ["v1"], "kind": "Pod"}, "apiVersion", "is missing or not text"),
        ({"apiVersion": "v1", "kind": "Service"}, "kind", "submit one of Pod (v1), Job (batch/v1)"),
        ({"apiVersion": "v2", "kind": "Pod"}, "kind", "'Pod (v2)' is not read"),
        ({"apiVersion": "v2", "kind": "Pod"}, "kind", "Queue (scheduling.volcano.sh/v1beta1)"),
        ({"apiVersion": "v2", "kind": "Pod"}, "kind", "ResourceQuota (v1)"),
        ({"apiVersion": "v1", "kind": "Pod"}, "metadata", "is missing: add it"),
        ({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}, "spec", "is missing"),
        (pod(containers=[]), "spec.containers", "length >= 1"),
        (pod(containers={}), "spec.containers", "is not a list: write a list"),
        (pod(containers=[{"image": "x"}]), "spec.containers[0].name", "is missing: add it"),
        (pod(containers=[{"name": 7}]), "spec.containers[0].name", "7 is not text in quotes"),
        (pod(containers=[{"name": "A"}]), "spec.containers[0].name", "is no DNS label"),
        (pod(containers=[{"name": "a"}] * 2), "spec.containers[1].name", "comes twice"),
        (pod(None, {"a": 1}), 'metadata.annotations["a"]', "1 is not text: write it in quotes"),
        (pod(x=nested(120)), "spec.x" + "[0]" * 99, "nest at most 100 levels"),
        (pod(x={1: 2}), "spec.x", "is a key that is not text"),
        (pod(x=b"1"), "spec.x", "a bytes is not a JSON value"),
        (pod(x="\ud800"), "spec.x", "half of a character"),
        (pod(priority=1 << 40), "spec.priority", "is out of bounds"),
        (pod(priorityClassName="urgent"), "spec.priorityClassName", "'urgent' is no known"),
        (pod(priorityClassName=7), "spec.priorityClassName", "7 is not text in quotes"),
        (pod(x=1 << 2000), "spec.x", "a very large number is no number that we can hold"),
    ],
)
def test_refusals(document: Any, field: str, says: str) -> None:
    """Whatever stands there, the error names the field and the way out."""
    error = refused(document)
    assert error.field == field
    assert says in str(error)


def test_a_pod_of_very_many_containers(golden: Golden) -> None:
    """A short answer, not a long decision; init containers count as well."""
    error = refused(pod(containers=[{"name": f"c{i}"} for i in range(50_000)]))
    assert error.field == "spec.containers"
    golden({"50000 containers": str(error)})
    split: dict[str, Any] = {
        kind: [container(f"{kind.lower()}{i}") for i in range(100)]
        for kind in ("containers", "initContainers")
    }
    assert "makes 200 containers" in str(refused(pod(**split)))


def test_a_bad_document_does_not_stop_the_others() -> None:
    """Each has its number and what it calls itself."""
    bad = pod({"nvidia.com/gpu": "x"})
    bad["metadata"].update(name="bad", namespace="lab")
    outcomes = list(read_documents([pod(), bad, None, pod()]))
    assert [(o.document, o.name, o.error is None, o.manifest is None) for o in outcomes] == [
        (1, "Pod default/pod", True, False),
        (2, "Pod lab/bad", False, True),
        (3, "", False, True),
        (4, "Pod default/pod", True, False),
    ]


def test_list() -> None:
    """Its items are documents of their own, and errors say which item."""
    items = [pod(), pod({"nvidia.com/gpu": -1}), {"apiVersion": "v1", "kind": "List"}]
    outcomes = list(read_documents([{"apiVersion": "v1", "kind": "List", "items": items}]))
    assert [o.document for o in outcomes] == [1, 1, 1]
    assert outcomes[0].manifest is not None
    fields = [o.error.field for o in outcomes[1:] if o.error]
    assert fields == [
        'items[1].spec.containers[0].resources.limits["nvidia.com/gpu"]',
        "items[2].kind",
    ]


@pytest.mark.parametrize(
    ("items", "says"), [(1, "write a list of documents"), ([None] * 10_001, "at most 10000")]
)
def test_bad_list(items: object, says: str) -> None:
    """A List that is none, or too long."""
    (outcome,) = read_documents([{"apiVersion": "v1", "kind": "List", "items": items}])
    assert says in str(outcome.error)


def test_an_endless_document() -> None:
    """A structure that contains itself, which YAML can write."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ManifestError, match="nest at most 100 levels"):
        read_document(pod(x=endless))
