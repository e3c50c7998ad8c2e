"""Tests of what the agent may do on its node. They cover its Linux capabilities, and its folders
with their SELinux labels."""

import os
from pathlib import Path

import pytest
from msgspec import structs

from apportion.agent import main
from apportion.agent.nvidia.nvml import NvmlBackend
from apportion.agent.places import Places, label_for_containers, may_administer, needed_glibc
from apportion.agent.reporting.agent import Node
from apportion.core.configuration.offering import NO_RIGHT, closed
from apportion.runtime.ledger.batching import Appended
from apportion.runtime.ledger.port import Draft
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.process.clock import SystemClock
from apportion_schemas import Host
from tests.support.fleet import gpu
from tests.support.nvidia.driver import fake_driver


@pytest.mark.parametrize(
    ("status", "may"),
    [
        ("Name:\tagent\nCapEff:\t0000000000080000\n", False),  # CAP_SYS_PTRACE only
        ("Name:\tagent\nCapEff:\t0000000000280000\n", True),
        ("Name:\tagent\nCapEff:\t000001ffffffffff\n", True),
        ("", True),
    ],
)
def test_whether_the_driver_obeys_the_agent(tmp_path: Path, status: str, may: bool) -> None:
    """The agent assumes that it may change MIG and MPS if it has CAP_SYS_ADMIN or cannot read its
    capabilities."""
    (tmp_path / "status").write_text(status)
    assert may_administer(tmp_path / "status") is may


@pytest.mark.parametrize("may", [True, False])
def test_an_agent_without_the_right_closes_cards_that_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may: bool
) -> None:
    """An agent without CAP_SYS_ADMIN reports GPUs under MIG or MPS as unhealthy, with the missing
    capability as the reason."""
    monkeypatch.setattr(main, "may_administer", lambda: may)
    with fake_driver(tmp_path, "1xT4") as driver:
        for name, value in driver.environment.items():
            monkeypatch.setenv(name, value)
        publisher = Publisher("agent/n1", SystemClock(), unused)
        host = Host(cpu_milli=1, memory_mib=1, pods=1)
        node = Node("n1", NvmlBackend(SystemClock()), host, publisher)
        main._note_handing_out(node, Places(tmp_path, tmp_path, tmp_path))
    cards = [gpu(mode, index=0, mode=mode) for mode in ("hami-core", "mig", "mps")]
    for modes, reason in node.closed:
        cards = list(closed(cards, modes, reason))
    shut = {card.mode: card.health_reason for card in cards if not card.healthy}
    assert shut == ({} if may else {"mig": NO_RIGHT, "mps": NO_RIGHT})


async def unused(_draft: Draft) -> Appended:
    """Fail the test if the agent sends a report."""
    raise AssertionError


def test_folders_are_labelled_where_selinux_is_on(tmp_path: Path) -> None:
    """If SELinux is enabled, the agent labels its folders for containers. A missing folder is no
    error."""
    shares, on = tmp_path / "shares", tmp_path / "enforce"
    shares.mkdir()
    label_for_containers([shares], on)
    assert not _label(shares)
    on.touch()
    label_for_containers([shares, tmp_path / "missing"], on)
    assert b":container_file_t:" in _label(shares)


def _label(path: Path) -> bytes:
    try:
        return os.getxattr(path, "security.selinux")
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.4\0", "2.34"),
        (b"\0GLIBC_2.2.5\0", "2.2"),
        (b"\0GLIBC_PRIVATE\0GLIBCXX_3.4.30\0", ""),
    ],
)
def test_the_glibc_that_a_library_needs(tmp_path: Path, names: bytes, expected: str) -> None:
    """The glibc version that a library requires is the newest version named in the library file."""
    library = tmp_path / "libvgpu.so"
    library.write_bytes(b"\x7fELF" + bytes(60) + names)
    assert needed_glibc(library) == expected
    assert needed_glibc(tmp_path / "none") == ""


def test_containers_decline_hami_core_in_the_named_namespaces_alone() -> None:
    """Containers may opt out of HAMi-core only in the namespaces that the configuration lists. `*`
    allows it in all namespaces."""
    nowhere = Places(Path("/cdi"), Path("/state"), Path("/run"))
    some = structs.replace(nowhere, unheld_namespaces=("trusted",))
    every = structs.replace(nowhere, unheld_namespaces=("*",))
    for namespace, allowed in (("trusted", [some, every]), ("other", [every])):
        assert [each for each in (nowhere, some, every) if each.may_be_unheld(namespace)] == allowed
