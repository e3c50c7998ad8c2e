"""Tests of the errors about unknown NATS roles and users."""

import os
from pathlib import Path

import pytest

from apportion.runtime.jetstream.server.users import Users, UsersFailed


@pytest.mark.parametrize(
    ("role", "name", "says"),
    [
        ("operater", "anna", "role 'operater': unknown; did you mean operator? use one of"),
        ("admin", "anna", "role 'admin': unknown; use one of agent, intake, watcher, "),
        ("root", "anna", "role 'root': unknown; use one of agent, intake, watcher, "),
        ("anna", "operator", "the role comes first, as in `user add operator anna`"),
        ("callout", "c", "role callout is reserved for Apportion; use one"),
    ],
)
def test_a_role_that_nobody_may_add_is_never_offered(
    role: str, name: str, says: str, tmp_path: Path
) -> None:
    """The error about an unknown role suggests only roles that an operator can give to a user."""
    with pytest.raises(UsersFailed) as failed:
        Users(tmp_path).add(role, name, ())
    assert says in str(failed.value)
    offered = str(failed.value).partition("use one of ")[2].split(", ")
    assert not {"bootstrap", "callout"} & set(offered)


def test_who_cannot_be_revoked_is_not_offered(tmp_path: Path) -> None:
    """The error about an unknown user suggests a similar name or lists all users that can be
    revoked."""
    users = Users(tmp_path)
    users.begin()
    with pytest.raises(UsersFailed, match=r"not found; did you mean auditor\?"):
        users.revoke("auditer")
    with pytest.raises(UsersFailed, match="not found; users: ") as failed:
        users.revoke("zz")
    assert "bootstrap" not in str(failed.value)


def test_nobody_else_reads_the_users_or_their_keys(tmp_path: Path) -> None:
    """Only the owner of the folder may read or lock the users and their keys, whatever the umask
    is. The file nats.conf contains no secret."""
    umask = os.umask(0)
    try:
        Users(tmp_path).begin()
    finally:
        os.umask(umask)
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert {each.name for each in files if each.stat().st_mode & 0o077} == {"nats.conf"}
