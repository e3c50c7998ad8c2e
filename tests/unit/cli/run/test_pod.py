"""Tests of what `run` requests for a command, and whether the machine can ever meet it."""

import pytest

from apportion.cli.exits import NotFound
from apportion.cli.pods.local_process import Run
from apportion.cli.run.main import Asked, document, draft_of, label, room_for
from apportion.core.answers.reads import DeviceAnswer, NodeAnswer, NodeDetail
from apportion.core.workloads.dialects.names import DialectConfig, VgpuNames
from apportion.core.workloads.pods.template import ManifestConfig
from apportion.runtime.process.lives import Life
from apportion_schemas.quantities import WHOLE

GONE = Life(1 << 30, 7)


def test_the_command_asks_in_the_words_of_the_configuration() -> None:
    """`run` requests devices by the configured resource names. It requests memory in MiB, even if
    the configuration has another unit."""
    names = VgpuNames(count="a.b/n", memory="a.b/m", memory_percent="a.b/p", cores="a.b/c")
    config = ManifestConfig(dialects=DialectConfig(hami=names, memory_factor=10))
    manifest = document(Run("n1", GONE), "/usr/bin/python3", Asked(4000, 30, 2), config)
    draft = draft_of(manifest, config)
    (ask,) = draft.shape.asks
    assert (ask.container, ask.count, ask.memory_mib, ask.cores) == ("run", 2, 4000, 30)
    assert draft.owner == f"Process/n1/{GONE.pid}/{GONE.started}"
    assert draft.name == f"python3-{GONE.pid}-{GONE.started}"


def test_without_amounts_it_asks_for_whole_cards() -> None:
    """If no memory or cores are given, `run` requests whole GPUs."""
    config = ManifestConfig()
    draft = draft_of(document(Run("n1", GONE), "sh", Asked(None, None, 1), config), config)
    (ask,) = draft.shape.asks
    assert (ask.count, ask.memory_mib, ask.cores) == (1, None, WHOLE)


@pytest.mark.parametrize(
    ("text", "name"),
    [("Ada.Lovelace", "ada-lovelace"), ("__x__", "x"), ("ü", "run"), ("a" * 99, "a" * 63)],
)
def test_names_are_those_that_kubernetes_allows(text: str, name: str) -> None:
    """`run` converts names of users and programs to valid Kubernetes labels."""
    assert label(text) == name


def machine(*memory_mib: int, family: str = "nvidia") -> NodeDetail:
    """Return a machine that has one GPU for each of these memory sizes."""
    cards = tuple(
        DeviceAnswer(
            device=f"GPU-{index}", node="n1", index=index, model="T4", family=family,
            mode="hami-core", memory_mib=size, memory_free_mib=0, cores=100, cores_free=0,
            slots=10, slots_free=0,
        )
        for index, size in enumerate(memory_mib)
    )  # fmt: skip
    return NodeDetail(revision=1, node=NodeAnswer(node="n1", ready=True), devices=cards)


@pytest.mark.parametrize(
    ("asked", "of", "told"),
    [
        (Asked(1, None, 1), machine(), "no NVIDIA GPU"),
        (Asked(1, None, 1), machine(1000, family="ascend"), "no NVIDIA GPU"),
        (Asked(16_000, None, 1), machine(15_360, 8_000), "15,360 MiB"),
        (Asked(9_000, None, 2), machine(15_360, 8_000), "has only 1 GPU "),
        (Asked(None, None, 3), machine(15_360, 8_000), "has only 2 GPUs"),
    ],
)
def test_what_the_machine_never_has_is_not_waited_for(
    asked: Asked, of: NodeDetail, told: str
) -> None:
    """If a machine can never meet a request, `run` refuses it and says what the machine has."""
    with pytest.raises(NotFound, match=told):
        room_for(asked, "n1", of)


def test_what_it_has_when_it_is_empty_is() -> None:
    """`run` accepts a request that the machine could meet if no other pod used it."""
    room_for(Asked(15_360, 100, 1), "n1", machine(15_360))
