"""Tests that every JSON decoder of the services refuses deeply nested documents and invalid UTF-8
safely."""

import contextlib
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import apportion
from apportion.core.dra.requests import read_resource_claim
from apportion.core.workloads.document import ManifestError
from apportion.core.workloads.kinds.queues import CARD_QUOTA, cards_in
from apportion.runtime.kube import watch
from apportion.runtime.ledger.membership import read_beat
from apportion.watcher.kubernetes.kind import metadata_of

ROOT = Path(apportion.__file__).parent
DEEP = b'{"deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
NO_TEXT = b'{"\xff": 1, "text": "\xff"}'
OWN = {
    "gateway.api.log": "its past process writes the page",
    "runtime.jetstream.consumers": "nats-server answers",
    "runtime.jetstream.examining": "nats-server answers",
    "runtime.jetstream.ledger": "nats-server answers",
    "runtime.jetstream.stream": "nats-server answers",
    "runtime.jetstream.wire": "nats-server answers",
    "runtime.ledger.batching": "this process encoded it",
}
"""Modules whose decoders read only our own bytes."""
_DECODER = re.compile(
    r"^(\w+) = (?:(?:from_outside|skipping)\()?\s*msgspec\.json\.Decoder\(", re.MULTILINE
)


def decoders() -> Iterator[tuple[str, str]]:
    """Yield the module and name of each JSON decoder of the services."""
    for path in sorted(ROOT.rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for name in _DECODER.findall(path.read_text()):
            if module not in OWN:
                yield module, name


def test_there_are_decoders() -> None:
    """The search for JSON decoders finds those of all services."""
    assert len(list(decoders())) > 50
    for module in OWN:
        assert _DECODER.search((ROOT / Path(*module.split("."))).with_suffix(".py").read_text())


@pytest.mark.parametrize(("module", "name"), list(decoders()))
def test_a_deep_document_is_refused_like_any_that_cannot_be_read(module: str, name: str) -> None:
    """For deep nesting or invalid UTF-8, a decoder raises DecodeError and nothing else."""
    decode = getattr(importlib.import_module(f"apportion.{module}"), name)
    for data in (DEEP, NO_TEXT):
        with contextlib.suppress(msgspec.DecodeError):
            decode(data)


def test_a_deep_beat_and_annotation_are_refused() -> None:
    """A heartbeat or annotation that is nested too deeply is refused with the usual error."""
    with pytest.raises(msgspec.DecodeError):
        read_beat("apportion.beat.agent.n1", DEEP)
    with pytest.raises(ManifestError):
        cards_in({CARD_QUOTA: DEEP.decode()}, CARD_QUOTA)


@pytest.mark.parametrize("levels", [1_000, 4_900])
def test_a_deep_object_hides_no_other_of_its_kind(levels: int) -> None:
    """If one object of a Kubernetes list or watch is nested too deeply, the other objects are still
    read."""
    deep = b"[" * levels + b"]" * levels
    claim = (
        b'{"metadata":{"name":"c","namespace":"team"},"spec":{"devices":{"config":'
        b'[{"opaque":{"driver":"x","parameters":{"a":' + deep + b"}}}]}}}"
    )
    page = watch._decode_list(b'{"metadata":{},"items":[' + claim + b',{"metadata":{}}]}')
    assert [bytes(each) for each in page.items or ()] == [claim, b'{"metadata":{}}']
    event = watch._decode_event(b'{"type":"ADDED","object":' + claim + b"}")
    assert watch._decode_object(bytes(event.object)).code == 0
    assert metadata_of(claim).key == "team/c"
    with pytest.raises(msgspec.DecodeError):
        read_resource_claim(claim)
