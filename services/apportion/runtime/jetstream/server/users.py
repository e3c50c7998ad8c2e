"""The users of a server without a cluster: who there is, in a file, and the key of each beside it.

    users.json        role, name, nodes and public key of each
    users.lock        held by whoever changes them
    keys/NAME.nk      the seed of one, for its owner alone; bootstrap's is in offline/
    ledger.key        what all who append share
    nats.conf         made of the table of identities, for these users

Invariants: a name that was revoked does not come back by itself; no file holds the seed of another
than the one that it is called after; of two who change the users at once neither undoes the other.
"""

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

from apportion.core.explain.text.suggestions import did_you_mean
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
SERVER: Final = "nats-server"
"""What the folder is called into which the server's configuration is handed."""
HANDED_SEED: Final = "nats.nk"
_OFFLINE: Final = frozenset({"bootstrap"})
_WITH_PASSWORD: Final = frozenset({"auditor"})
"""Whoever reads along does so with tools of his own, which know passwords."""
_NEVER: Final = frozenset({"callout"})
ADDABLE: Final = tuple(role for role in ROLES if role.name not in _OFFLINE | _NEVER)
"""The roles of which there may be more users than one."""
MISSPELT: Final = 0.8
"""So like a role is a slip of the fingers: `admin` is no `admission`, and is not to become one."""


class UsersFailed(Exception):
    """What was asked of the users cannot be; the message names the cause and the fix."""


class Member(msgspec.Struct, frozen=True):
    """One of them; without a key he has a password, which the server's environment holds."""

    role: str
    name: str
    nodes: tuple[str, ...] = ()
    nkey: str = ""

    @property
    def user(self) -> User:
        """As the configuration has it; an auditor who was added reads under his own name."""
        shared = self.role == self.name == "auditor"
        identity = Identity(self.role, self.name, self.nodes, shared=shared)
        variable = "" if self.nkey else password_variable(self.name)
        return User(identity, self.nkey, variable)


class Members(msgspec.Struct, frozen=True):
    """All of them, and the names of those who are none any more."""

    members: tuple[Member, ...] = ()
    revoked: tuple[str, ...] = ()


P = ParamSpec("P")
T = TypeVar("T")


def _alone(change: Callable[Concatenate[Users, P], T]) -> Callable[Concatenate[Users, P], T]:
    """Read, change and write while no other process does so in this folder."""

    @functools.wraps(change)
    def changed(users: Users, /, *args: P.args, **kwargs: P.kwargs) -> T:
        path = users.folder / USERS_LOCK
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as failure:
            raise UsersFailed(f"cannot lock the users by {path}: {failure}") from failure
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return change(users, *args, **kwargs)
        finally:
            os.close(lock)

    return changed


class Users:
    """Who may connect to the server of one folder, and their keys; see this module."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def ledger_key(self) -> Path:
        """The file with what all who append share."""
        return self.folder / LEDGER_KEY

    def key_of(self, name: str) -> Path:
        """The file with the seed of that name."""
        return self.folder / ("offline" if name in _OFFLINE else "keys") / f"{name}.nk"

    def read(self) -> Members:
        """Who there is. Raises UsersFailed."""
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
        self, agents: Mapping[str, tuple[str, ...]] | None = None, *, all_keys: bool = False
    ) -> Members:
        """One user for each role that has none yet, the ledger's key, and the configuration.

        With `agents`, by name, these are the agents, each of the nodes that it has there; without,
        one agent is of all nodes. With `all_keys` nobody new has a password. Raises UsersFailed,
        InvalidIdentity."""
        found = self.read()
        for member in found.members:
            if agents and member.name in agents and member.role != "agent":
                raise UsersFailed(f"agent {member.name}: the {member.role} is called so")
        if agents:  # they have these nodes from now on, by the keys that they have
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
        try:
            if not self.ledger_key.exists():
                write_whole(self.ledger_key, secrets.token_hex(32).encode(), mode=0o600)
            made = tuple(
                self._made(role, name, nodes, with_key=all_keys)
                for role, name, nodes in wanted
                if name not in there
            )
            return self._keep(Members((*found.members, *made), found.revoked))
        except OSError as failure:
            raise UsersFailed(f"cannot keep users in {self.folder}: {failure}") from failure

    def hand_out(self, folder: Path) -> None:
        """Copy what each needs into the folder below `folder` that is called after him.

        That is his seed and, for who appends, the ledger's key, for the folder's group to read; and
        the configuration into the one called SERVER. So nobody needs to see another's. Raises
        UsersFailed."""
        members = {member.name: member for member in self.read().members}
        try:
            for each in sorted(path for path in folder.iterdir() if path.is_dir()):
                if each.name == SERVER:
                    _copied(self.folder / CONFIGURATION, each / CONFIGURATION, 0o644)
                    continue
                member = members.get(each.name)
                if member is None or not member.nkey:
                    keyed = ", ".join(name for name, member in members.items() if member.nkey)
                    raise UsersFailed(f"{each}: nobody with a key is called so; there are {keyed}")
                _copied(self.key_of(member.name), each / HANDED_SEED, 0o640)
                if role_of(member.user.identity).appends:
                    _copied(self.ledger_key, each / LEDGER_KEY, 0o640)
        except OSError as failure:
            raise UsersFailed(f"cannot hand out keys into {folder}: {failure}") from failure

    @_alone
    def add(self, role: str, name: str, nodes: Sequence[str]) -> Member:
        """One more, with a key of his own. Raises UsersFailed, InvalidIdentity."""
        found = self.read()
        check_name(name)
        addable = [each.name for each in ADDABLE]
        if role not in addable:
            raise UsersFailed(_no_such_role(role, name, addable))
        if any(member.name == name for member in found.members):
            raise UsersFailed(f"name {name}: there is one; revoke it first, or choose another")
        if bool(nodes) != (role == "agent"):
            raise UsersFailed("--node: an agent has one or more nodes, and nobody else has any")
        try:
            member = self._made(role, name, tuple(nodes), with_key=True)
            kept = tuple(each for each in found.revoked if each != name)
            self._keep(Members((*found.members, member), kept))
        except OSError as failure:
            raise UsersFailed(f"cannot keep users in {self.folder}: {failure}") from failure
        return member

    @_alone
    def revoke(self, name: str) -> Member:
        """He may connect no more; his key goes. Raises UsersFailed, also for whom none can add."""
        found = self.read()
        gone = next((member for member in found.members if member.name == name), None)
        if gone is None:
            names = [each.name for each in found.members if each.role not in _OFFLINE]
            there = ", ".join(names) or "nobody"
            hint = did_you_mean(name, names)
            raise UsersFailed(f"name {name}: there is none; {hint or f'there are {there}'}")
        if gone.role in _OFFLINE:
            raise UsersFailed(
                f"name {name}: without it no ledger is made, and nobody can add it; keep its key, "
                f"{self.key_of(name)}, elsewhere instead"
            )
        left = tuple(member for member in found.members if member.name != name)
        try:
            self._keep(Members(left, (*found.revoked, name)))
            self.key_of(name).unlink(missing_ok=True)
        except OSError as failure:
            raise UsersFailed(f"cannot keep users in {self.folder}: {failure}") from failure
        return gone

    def _made(
        self, role: str, name: str, nodes: tuple[str, ...], *, with_key: bool = False
    ) -> Member:
        if role in _WITH_PASSWORD and not with_key:
            return Member(role, name, nodes)
        path = self.key_of(name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.unlink(missing_ok=True)  # of one who was revoked, or whom a crash left without a row
        key = new_key()
        write_seed(path, key)
        return Member(role, name, nodes, key.public)

    def _keep(self, members: Members) -> Members:
        write_whole(self.folder / USERS, msgspec.json.encode(members), mode=0o600)
        text = configuration([member.user for member in members.members])
        write_whole(self.folder / CONFIGURATION, text.encode())
        return members

    def reload(self) -> bool:
        """Have the server obey at once: who was revoked is cut off. False where none runs here.

        Raises UsersFailed."""
        log = self.folder / LOG
        before = log.stat().st_size if log.exists() else 0
        pid = self._server()
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
        raise UsersFailed(f"nats-server (process {pid}) did not reload; {log} may say why")

    def _server(self) -> int | None:
        """The process that has the folder's lock; see server.EmbeddedServer."""
        with contextlib.suppress(OSError, ValueError), (self.folder / LOCK).open("r+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(lock.read())
        return None


def _no_such_role(role: str, name: str, addable: Sequence[str]) -> str:
    """Why nobody is added in it: a role of the system's own is no choice, so none is named."""
    known = f"write one of {', '.join(addable)}"
    if role in _OFFLINE | _NEVER:
        return f"role {role} is the system's own, and nobody is added to it: {known}"
    if name in addable:
        return f"role {role!r}: there is none; the role comes first, as in `user add {name} {role}`"
    hint = did_you_mean(role, addable, alike=MISSPELT)
    return f"role {role!r}: there is none; {f'{hint} ' if hint else ''}{known}"


def _copied(source: Path, target: Path, mode: int) -> None:
    data = source.read_bytes()
    if not target.exists() or target.read_bytes() != data:
        write_whole(target, data, mode=mode)
