"""Tests of names in NATS subjects. Each name becomes a single token without wildcards, and can be
decoded again."""

import pytest

from apportion_schemas import NodeGone, PodGroupObserved, PolicyChanged, subject_of
from apportion_schemas.catalogue import token, untoken


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("node-1", "node-1"),
        ("node-1.example", "node-1%2Eexample"),
        ("ns/job", "ns%2Fjob"),
        ("*", "%2A"),
        (">", "%3E"),
        ("a b", "a%20b"),
        ("50%", "50%25"),
        ("%2E", "%252E"),
        ("é", "%C3%A9"),
    ],
)
def test_token(name: str, encoded: str) -> None:
    """A name that is encoded as a subject token decodes to the same name."""
    assert token(name) == encoded
    assert untoken(encoded) == name


def test_subjects() -> None:
    """The subject of an event has the kind and name of its object. All policy events have the same
    subject."""
    assert subject_of(NodeGone(node="a.b")) == "apportion.v1.cluster.node.a%2Eb"
    assert (
        subject_of(PodGroupObserved(group="ns/g", min_available=1))
        == "apportion.v1.cluster.group.ns%2Fg"
    )
    assert subject_of(PolicyChanged(by="ada")) == "apportion.v1.operator.policy"
