"""Tests of reading a file with several documents: invalid documents, size limits, and that one
document does not affect another."""

from typing import Any

import pytest

from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.reading import read_document, read_documents
from tests.support.golden import Golden
from tests.support.manifests import container, pod, refused


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


WRONG = [
    (None, "document"),
    ("Pod", "document"),
    ({}, "apiVersion"),
    ({"apiVersion": "v1"}, "kind"),
    ({"apiVersion": ["v1"], "kind": "Pod"}, "apiVersion"),
    ({"apiVersion": "v1", "kind": "Service"}, "kind"),
    ({"apiVersion": "v2", "kind": "Pod"}, "kind"),
    ({"apiVersion": "v1", "kind": "Pod"}, "metadata"),
    ({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}, "spec"),
    (pod(containers=[]), "spec.containers"),
    (pod(containers={}), "spec.containers"),
    (pod(containers=[{"image": "x"}]), "spec.containers[0].name"),
    (pod(containers=[{"name": 7}]), "spec.containers[0].name"),
    (pod(containers=[{"name": "A"}]), "spec.containers[0].name"),
    (pod(containers=[{"name": "a"}] * 2), "spec.containers[1].name"),
    (pod(None, {"a": 1}), 'metadata.annotations["a"]'),
    (pod(x=nested(120)), "spec.x" + "[0]" * 99),
    (pod(x={1: 2}), "spec.x"),
    (pod(x=b"1"), "spec.x"),
    (pod(x="\ud800"), "spec.x"),
    (pod(priority=1 << 40), "spec.priority"),
    (pod(priorityClassName="urgent"), "spec.priorityClassName"),
    (pod(priorityClassName=7), "spec.priorityClassName"),
    (pod(x=1 << 2000), "spec.x"),
]


def test_refusals(golden: Golden) -> None:
    """An invalid document is refused with the field's path and a fix."""
    errors = [refused(document) for document, _ in WRONG]
    assert [error.field for error in errors] == [field for _, field in WRONG]
    golden({"each names its field": "\n".join(map(str, errors))})


def test_a_pod_of_very_many_containers(golden: Golden) -> None:
    """A pod with too many containers, including init containers, is refused at once."""
    error = refused(pod(containers=[{"name": f"c{i}"} for i in range(50_000)]))
    assert error.field == "spec.containers"
    golden({"50000 containers": str(error)})
    split: dict[str, Any] = {
        kind: [container(f"{kind.lower()}{i}") for i in range(100)]
        for kind in ("containers", "initContainers")
    }
    assert "has 200 containers" in str(refused(pod(**split)))


def test_a_bad_document_does_not_stop_the_others() -> None:
    """If one document is invalid, the others are still read. Every result has its document's number
    and name."""
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
    """The items of a List are read like separate documents, and errors name the item."""
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
    ("items", "says"),
    [(1, "write a list of documents"), ([None] * 10_001, "at most 10,000 objects")],
)
def test_bad_list(items: object, says: str) -> None:
    """A List that is invalid or too long is refused."""
    (outcome,) = read_documents([{"apiVersion": "v1", "kind": "List", "items": items}])
    assert says in str(outcome.error)


def test_an_endless_document() -> None:
    """A document that contains itself, as YAML allows, is refused."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ManifestError, match="use at most 100 levels"):
        read_document(pod(x=endless))
