"""nats-server's configuration, made of the table: the one in the package, and that of `up`.

`server.conf` is how the file begins, and `callout.conf` what stands in it where a callout is asked.

Invariant: what a user may do stands in the table and nowhere else; a password or the seed of a key
is never part of a configuration, only the name of the variable that has it, or the public key."""

from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Final

import msgspec

from apportion.core.identity.identity import EVERY_NODE, Identity
from apportion.core.identity.permissions import ANSWER_S, permissions_of, role_of
from apportion.core.identity.roles import AUDIT, LEDGER, ROLES, STORE, Account
from apportion.core.identity.sharing import BESIDE, sharing

CONNECTIONS: Final[dict[Account, int]] = {
    "NODES": 6144,
    "FRONT": 512,
    "PEOPLE": 512,
    "SCHEDULER": 128,
    "READERS": 128,
    "WATCHER": 64,
    "INTAKE": 64,
    "BINDER": 64,
    "AUTH": 64,
    "BOOTSTRAP": 16,
}
"""Connections of each account: together fewer than the server takes, so none can take them all."""
SUBSCRIPTIONS: Final = 128
"""Of one connection. Each takes 300 bytes of the server's memory."""
SUBSCRIPTIONS_OF_A_FLEET: Final = 4096
"""Of one connection of agents that may speak for every node: a simulated one has two for each."""


class User(msgspec.Struct, frozen=True):
    """An identity, and how it shows that it is: by an nkey, or by the password in a variable."""

    identity: Identity
    nkey: str = ""
    password_variable: str = ""


def password_variable(name: str) -> str:
    """Where the password of the user of this name is."""
    return f"APPORTION_{name.upper().replace('-', '_')}_PASSWORD"


_SHARED: Final = frozenset({"agent", "auditor"})
"""All agents, who have one password, and tools that call consumers and inboxes as they like."""
WITH_PASSWORDS: Final = tuple(
    User(
        Identity(
            role.name,
            role.name,
            nodes=(EVERY_NODE,) if role.name == "agent" else (),
            shared=role.name in _SHARED,
        ),
        password_variable=password_variable(role.name),
    )
    for role in ROLES
    if role.name != "callout"
)
"""One user for each role, as the configuration in the package has them."""

WITH_CALLOUT: Final = tuple(
    User(Identity(name, name), password_variable=password_variable(name))
    for name in ("bootstrap", "operator", "auditor", "callout")
)
"""Those who come with a password where a callout says who all others are.

Of these the server knows nobody beforehand, so nobody could be kept off their consumers who may
call his own as he likes: the auditor has those of his name there, as everybody has.
"""


def subscriptions_of(identities: Iterable[Identity]) -> int:
    """The most subscriptions that a connection of one of these identities may have."""
    nodes = {node for identity in identities for node in identity.nodes}
    return SUBSCRIPTIONS_OF_A_FLEET if EVERY_NODE in nodes else SUBSCRIPTIONS + 4 * len(nodes)


def configuration(users: Sequence[User] = WITH_PASSWORDS) -> str:
    """The whole file, with the callout where it is a user. Raises InvalidIdentity."""
    files = resources.files("apportion.core.identity")
    names = [user.nkey or user.identity.name for user in users]
    callout = ""
    if any(user.identity.role == "callout" for user in users):
        text = (files / "callout.conf").read_text("utf-8")
        callout = f"{text.replace('USERS', ', '.join(names))}\n"
    return f"{(files / 'server.conf').read_text('utf-8')}{callout}{accounts(users)}"


def accounts(users: Sequence[User]) -> str:
    """Its accounts, with all users. Raises InvalidIdentity."""
    among = [user.identity for user in users]
    lines = ["accounts {"]
    theirs = (role_of(identity).account for identity in among)
    for account in dict.fromkeys([LEDGER, STORE, AUDIT, *BESIDE, *theirs]):
        lines += [f"  {account} {{"]
        if account in (LEDGER, STORE):
            lines += ["    jetstream: enabled"]
        elif account == AUDIT:
            lines += ["    # Whatever auditors use up is their own."]
            lines += ["    jetstream: { max_streams: 1, max_consumers: 128 }"]
        elif account in CONNECTIONS:
            subscriptions = subscriptions_of(i for i in among if role_of(i).account == account)
            most = f"max_connections: {CONNECTIONS[account]}, max_subscriptions: {subscriptions}"
            lines += [f"    limits: {{ {most} }}"]
        lines += sharing(account)
        lines += ["    users: ["]
        for user in users:
            if role_of(user.identity).account == account:
                lines += _user(user, among)
        lines += ["    ]", "  }"]
    return "\n".join([*lines, "}", ""])


def _user(user: User, among: Sequence[Identity]) -> Iterable[str]:
    identity = user.identity
    may = permissions_of(identity, among)
    yield f"      {{ # {identity.name}: {role_of(identity).does}"
    if user.nkey:
        yield f"        nkey: {user.nkey}"
    else:
        yield f"        user: {identity.name}"
        yield f"        password: ${user.password_variable}"
    yield "        permissions {"
    yield "          publish {"
    yield from _subjects("allow", may.publish)
    if may.deny_publish:
        yield from _subjects("deny", may.deny_publish)
    yield "          }"
    yield "          subscribe {"
    yield from _subjects("allow", may.subscribe)
    yield "          }"
    if may.responses:
        yield f'          allow_responses: {{ max: 1, expires: "{ANSWER_S}s" }}'
    yield "        }"
    yield "      }"


def _subjects(key: str, subjects: Iterable[str]) -> Iterable[str]:
    yield f"            {key}: ["
    for subject in subjects:
        yield f'              "{subject}"'
    yield "            ]"
