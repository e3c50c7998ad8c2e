"""Generate nats-server's configuration from the table of roles.

Invariant: permissions come only from the table. A configuration never contains a password or a
private key, only the name of a variable or a public key."""

from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Final

import msgspec

from apportion.core.identity.identity import EVERY_NODE, Identity
from apportion.core.identity.permissions import ANSWER_S, permissions_of, role_of
from apportion.core.identity.roles import AUDIT, LEDGER, ROLES, STORE, Account
from apportion.core.identity.sharing import BESIDE, sharing

# Connections per account: together below the server's limit, so none can use them all
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
    "DEFRAG": 16,
    "BOOTSTRAP": 16,
}
SUBSCRIPTIONS: Final = 128  # per connection; each takes 300 bytes of the server's memory
# Per connection of an agent for all nodes: a simulated fleet has two per node
SUBSCRIPTIONS_OF_A_FLEET: Final = 4096


class User(msgspec.Struct, frozen=True):
    """An identity, with its nkey or the environment variable that has its password."""

    identity: Identity
    nkey: str = ""
    password_variable: str = ""


def password_variable(name: str) -> str:
    """Return the name of the environment variable with this user's password."""
    return f"APPORTION_{name.upper().replace('-', '_')}_PASSWORD"


# Agents, who share a password, and tools that name consumers and inboxes freely
_SHARED: Final = frozenset({"agent", "auditor"})
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

WITH_CALLOUT: Final = tuple(
    User(Identity(name, name), password_variable=password_variable(name))
    for name in ("bootstrap", "operator", "auditor", "callout")
)
"""The users with a password if a callout authenticates all others.

The server does not know the others' consumers beforehand, so it could not protect them from a user
that names consumers freely. Therefore the auditor is limited to its own."""


def subscriptions_of(identities: Iterable[Identity]) -> int:
    """Return the subscription limit of a connection that all of these identities share."""
    nodes = {node for identity in identities for node in identity.nodes}
    return SUBSCRIPTIONS_OF_A_FLEET if EVERY_NODE in nodes else SUBSCRIPTIONS + 4 * len(nodes)


def configuration(users: Sequence[User] = WITH_PASSWORDS) -> str:
    """Return nats-server's whole configuration for these users. Raises `InvalidIdentity`."""
    files = resources.files("apportion.core.identity")
    names = [user.nkey or user.identity.name for user in users]
    callout = ""
    if any(user.identity.role == "callout" for user in users):
        text = (files / "callout.conf").read_text("utf-8")
        callout = f"{text.replace('USERS', ', '.join(names))}\n"
    return f"{(files / 'server.conf').read_text('utf-8')}{callout}{accounts(users)}"


def accounts(users: Sequence[User]) -> str:
    """Return the section `accounts` with all of these users. Raises `InvalidIdentity`."""
    among = [user.identity for user in users]
    lines = ["accounts {"]
    theirs = (role_of(identity).account for identity in among)
    for account in dict.fromkeys([LEDGER, STORE, AUDIT, *BESIDE, *theirs]):
        lines += [f"  {account} {{"]
        if account in (LEDGER, STORE):
            lines += ["    jetstream: enabled"]
        elif account == AUDIT:
            lines += ["    # Auditors have their own limits and cannot use up the ledger's."]
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
