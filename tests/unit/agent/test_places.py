"""Rights and labels of the agent on its node."""

import os
from pathlib import Path

import pytest
from msgspec import structs

from apportion.agent.places import Places, label_for_containers, may_administer, needed_glibc


@pytest.mark.parametrize(
    ("status", "may"),
    [
        ("Name:\tagent\nCapEff:\t0000000000080000\n", False),  # CAP_SYS_PTRACE alone
        ("Name:\tagent\nCapEff:\t0000000000280000\n", True),
        ("Name:\tagent\nCapEff:\t000001ffffffffff\n", True),
        ("", True),
    ],
)
def test_whether_the_driver_obeys_the_agent(tmp_path: Path, status: str, may: bool) -> None:
    """Its test is CAP_SYS_ADMIN; what cannot be read leaves the answer to the driver."""
    (tmp_path / "status").write_text(status)
    assert may_administer(tmp_path / "status") is may


def test_folders_are_labelled_where_selinux_is_on(tmp_path: Path) -> None:
    """With the type that containers may use, and only there; a label that fails ends nothing."""
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
    """The newest of the versions that it names."""
    library = tmp_path / "libvgpu.so"
    library.write_bytes(b"\x7fELF" + bytes(60) + names)
    assert needed_glibc(library) == expected
    assert needed_glibc(tmp_path / "none") == ""


def test_containers_decline_hami_core_in_the_named_namespaces_alone() -> None:
    """None by default; `*` is every one."""
    nowhere = Places(Path("/cdi"), Path("/state"), Path("/run"))
    some = structs.replace(nowhere, unheld_namespaces=("trusted",))
    every = structs.replace(nowhere, unheld_namespaces=("*",))
    for namespace, allowed in (("trusted", [some, every]), ("other", [every])):
        assert [each for each in (nowhere, some, every) if each.may_be_unheld(namespace)] == allowed
