"""The NATS users of a server outside Kubernetes, in files of one folder:

    users.json        role, name, nodes and public key of each user
    users.lock        locked during a change
    keys/NAME.nk      the user's seed, readable only by its owner; bootstrap's is in offline/
    ledger.key        the key that all writers share
    nats.conf         generated for these users

Invariants: a revoked name does not return by itself; a seed's file has its user's name; concurrent
changes do not undo each other."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

import msgspec

from apportion.core.explain.text.names import did_you_mean
from apportion.core.identity.configuration import User, configuration, password_variable
from apportion.core.identity.identity import EVERY_NODE, Identity, check_name
from apportion.core.identity.permissions import role_of
from apportion.core.identity.roles import ROLES
from apportion.runtime.files.atomic import write_whole
from apportion.runtime.process.reach import check_public, new_key, write_seed

USERS: Final = "users.json"
USERS_LOCK: Final = "users.lock"
CONFIGURATION: Final = "nats.conf"
LEDGER_KEY: Final = "ledger.key"
LOCK: Final = "lock"
LOG: Final = "nats-server.log"
RELOADED: Final = "Reloaded server configuration"
RELOAD_TIMEOUT_S: Final = 10.0
SERVER: Final = "nats-server"  # the folder that gets the server's configuration
HANDED_SEED: Final = "nats.nk"
_OFFLINE: Final = frozenset({"bootstrap"})
_WITH_PASSWORD: Final = frozenset({"auditor"})  # auditors use their own tools, which know passwords
_NEVER: Final = frozenset({"callout"})
# roles that may have several users
ADDABLE: Final = tuple(role for role in ROLES if role.name not in _OFFLINE | _NEVER)
# Similarity to a role that counts as a typo: `admin` must not become `admission`.
MISSPELT: Final = 0.8


class UsersFailed(Exception):
    """Error: the users cannot be changed. The message has cause and fix."""


class Member(msgspec.Struct, frozen=True):
    """A user of the NATS server."""

    role: str
    name: str
    nodes: tuple[str, ...] = ()
    nkey: str = ""  # public key; "" if a password is in the server's environment

    @property
    def user(self) -> User:
        """Return the user for nats.conf. Only the default `auditor` user is shared by processes."""
        shared = self.role == self.name == "auditor"
        identity = Identity(self.role, self.name, self.nodes, shared=shared)
        variable = "" if self.nkey else password_variable(self.name)
        return User(identity, self.nkey, variable)


class Members(msgspec.Struct, frozen=True):
    """All users of the server, and the names of revoked users."""

    members: tuple[Member, ...] = ()
    revoked: tuple[str, ...] = ()


P = ParamSpec("P")
T = TypeVar("T")


def _alone(change: Callable[Concatenate[Users, P], T]) -> Callable[Concatenate[Users, P], T]:
    """Decorate a method so that it runs while no other process changes this folder's users."""

    @functools.wraps(change)
    def changed(users: Users, /, *args: P.args, **kwargs: P.kwargs) -> T:
        path = users.folder / USERS_LOCK
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as failure:
            raise UsersFailed(f"cannot open or lock {path}: {failure}") from failure
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return change(users, *args, **kwargs)
        except OSError as failure:
            raise UsersFailed(f"cannot write the users in {users.folder}: {failure}") from failure
        finally:
            os.close(lock)

    return changed


class Users:
    """Manages the users of one server and their keys, in files of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def ledger_key(self) -> Path:
        """Return the file of the ledger's key, which all writers share."""
        return self.folder / LEDGER_KEY

    def key_of(self, name: str) -> Path:
        """Return the file of this user's seed."""
        return self.folder / ("offline" if name in _OFFLINE else "keys") / f"{name}.nk"

    def read(self) -> Members:
        """Read all users from the folder. Raises UsersFailed."""
        path = self.folder / USERS
        try:
            found = msgspec.json.decode(path.read_bytes(), type=Members)
            for member in found.members:
                check_name(member.name)
                role_of(member.user.identity)
                if member.nkey:
                    check_public(member.nkey)
        except FileNotFoundError:
            return Members()
        except (OSError, msgspec.DecodeError, ValueError) as failure:
            raise UsersFailed(f"cannot read the users in {path}: {failure}") from failure
        return found

    @_alone
    def begin(
        self,
        agents: Mapping[str, tuple[str, ...]] | None = None,
        *,
        all_keys: bool = False,  # no new user has a password
    ) -> Members:
        """Create nats.conf, the ledger's key, and a user for each role that has none.

        `agents` maps the names of agents to their nodes (default: one agent for all nodes). Raises
        UsersFailed, InvalidIdentity."""
        found = self.read()
        for member in found.members:
            if agents and member.name in agents and member.role != "agent":
                raise UsersFailed(
                    f"agent {member.name}: the {member.role} already has this name; choose another"
                )
        if agents:  # existing agents keep their keys and get these nodes
            members = (
                msgspec.structs.replace(member, nodes=agents.get(member.name, member.nodes))
                for member in found.members
            )
            found = Members(tuple(members), found.revoked)
        there = {member.name for member in found.members} | set(found.revoked)
        wanted: list[tuple[str, str, tuple[str, ...]]] = [
            (r.name, r.name, ()) for r in ROLES if r.name not in _NEVER | {"agent"}
        ]
        wanted += [
            ("agent", check_name(name), nodes)
            for name, nodes in (agents or {"agent": (EVERY_NODE,)}).items()
        ]
        if not self.ledger_key.exists():
            write_whole(self.ledger_key, secrets.token_hex(32).encode(), mode=0o600)
        made = tuple(
            self._made(role, name, nodes, with_key=all_keys)
            for role, name, nodes in wanted
            if name not in there
        )
        return self._keep(Members((*found.members, *made), found.revoked))

    def hand_out(self, folder: Path) -> None:
        """Copy each user's files into a subfolder of `folder` that has the user's name.

        The files are the user's seed and, for a writer, the ledger's key. The subfolder SERVER gets
        nats.conf. Only a subfolder's group can read its keys. Raises UsersFailed."""
        members = {member.name: member for member in self.read().members}
        try:
            for each in sorted(path for path in folder.iterdir() if path.is_dir()):
                if each.name == SERVER:
                    _copied(self.folder / CONFIGURATION, each / CONFIGURATION, 0o644)
                    continue
                member = members.get(each.name)
                if member is None or not member.nkey:
                    keyed = ", ".join(name for name, member in members.items() if member.nkey)
                    raise UsersFailed(
                        f"{each}: no user with a key has this name; users with keys: {keyed}"
                    )
                _copied(self.key_of(member.name), each / HANDED_SEED, 0o640)
                if role_of(member.user.identity).appends:
                    _copied(self.ledger_key, each / LEDGER_KEY, 0o640)
        except OSError as failure:
            raise UsersFailed(f"cannot write keys to {folder}: {failure}") from failure

    @_alone
    def add(self, role: str, name: str, nodes: Sequence[str]) -> Member:
        """Add a user with a new key. Raises UsersFailed, InvalidIdentity."""
        found = self.read()
        check_name(name)
        addable = [each.name for each in ADDABLE]
        if role not in addable:
            raise UsersFailed(_no_such_role(role, name, addable))
        if any(member.name == name for member in found.members):
            raise UsersFailed(f"name {name}: already exists; revoke it first, or choose another")
        if bool(nodes) != (role == "agent"):
            raise UsersFailed("--node: required for an agent and not allowed for other roles")
        member = self._made(role, name, tuple(nodes), with_key=True)
        kept = tuple(each for each in found.revoked if each != name)
        self._keep(Members((*found.members, member), kept))
        return member

    @_alone
    def revoke(self, name: str) -> Member:
        """Remove a user and its key. Raises UsersFailed, also for an offline role's user."""
        found = self.read()
        gone = next((member for member in found.members if member.name == name), None)
        if gone is None:
            names = [each.name for each in found.members if each.role not in _OFFLINE]
            there = ", ".join(names) or "none"
            hint = did_you_mean(name, names)
            raise UsersFailed(f"name {name}: not found; {hint or f'users: {there}'}")
        if gone.role in _OFFLINE:
            raise UsersFailed(
                f"name {name}: cannot be revoked, because it creates the ledger and cannot be "
                f"added again; move its key, {self.key_of(name)}, elsewhere instead"
            )
        left = tuple(member for member in found.members if member.name != name)
        self._keep(Members(left, (*found.revoked, name)))
        self.key_of(name).unlink(missing_ok=True)
        return gone

    def _made(
        self, role: str, name: str, nodes: tuple[str, ...], *, with_key: bool = False
    ) -> Member:
        if role in _WITH_PASSWORD and not with_key:
            return Member(role, name, nodes)
        path = self.key_of(name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.unlink(missing_ok=True)  # of a revoked user, or left by a crash
        key = new_key()
        write_seed(path, key)
        return Member(role, name, nodes, key.public)

    def _keep(self, members: Members) -> Members:
        write_whole(self.folder / USERS, msgspec.json.encode(members), mode=0o600)
        text = configuration([member.user for member in members.members])
        write_whole(self.folder / CONFIGURATION, text.encode())
        return members

    def reload(self) -> bool:
        """Reload the server to disconnect revoked users. Return False if no server runs.

        Raises UsersFailed."""
        log = self.folder / LOG
        before = log.stat().st_size if log.exists() else 0
        pid = None
        # The server has the folder's lock; see server.EmbeddedServer.
        with contextlib.suppress(OSError, ValueError), (self.folder / LOCK).open("r+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = int(lock.read())
        if pid is None:
            return False
        os.kill(pid, signal.SIGHUP)
        deadline = time.monotonic() + RELOAD_TIMEOUT_S
        while time.monotonic() < deadline:
            with log.open("rb") as file:
                file.seek(before)
                if RELOADED.encode() in file.read():
                    return True
            time.sleep(0.02)
        raise UsersFailed(f"nats-server (process {pid}) did not reload; see {log}")


def _no_such_role(role: str, name: str, addable: Sequence[str]) -> str:
    known = f"use one of {', '.join(addable)}"
    if role in _OFFLINE | _NEVER:
        return f"role {role} is reserved for Apportion; {known}"
    if name in addable:
        return f"role {role!r}: unknown; the role comes first, as in `user add {name} {role}`"
    hint = did_you_mean(role, addable, alike=MISSPELT)
    return f"role {role!r}: unknown; {f'{hint} ' if hint else ''}{known}"


def _copied(source: Path, target: Path, mode: int) -> None:
    data = source.read_bytes()
    if not target.exists() or target.read_bytes() != data:
        write_whole(target, data, mode=mode)
