"""Map a ServiceAccount token that the API server has reviewed to an identity on the NATS bus.

Invariants: the account alone decides the role, and the node of an agent's pod alone decides the
agent's node. The identity has the pod's name, so no replica can act as another. Any other request
is refused with a reason."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from apportion.core.identity.identity import Identity, InvalidIdentity, check_name
from apportion.core.identity.roles import BY_NAME

# Roles that no token gives: they create the ledger or decide who clients are
OFFLINE: Final = frozenset({"bootstrap", "callout"})


class Given(NamedTuple):
    """The role of a ServiceAccount, and a prefix (`before`) for the names of its identities."""

    role: str
    before: str = ""


# Namespace and name of ServiceAccounts, and the role of each
Accounts = Mapping[tuple[str, str], Given]


class Bearer(msgspec.Struct, frozen=True):
    """What the API server reports about a token. `pod` is empty for a token without a pod."""

    namespace: str
    account: str
    pod: str = ""
    node: str = ""


def accounts_of(namespace: str, more: Iterable[str] = ()) -> Accounts:
    """Return the roles of our services' ServiceAccounts and of those in `more`.

    Entries of `more` are `NAMESPACE/NAME=ROLE`. Names of pods in other namespaces get a prefix, so
    that no such pod can use the name of one of our services. Raises `InvalidIdentity`."""
    accounts = {(namespace, name): Given(name) for name in BY_NAME if name not in OFFLINE}
    for text in more:
        where, _, role = text.partition("=")
        space, _, name = where.partition("/")
        if not space or not name or role not in BY_NAME or role in OFFLINE:
            roles = ", ".join(each for each in BY_NAME if each not in OFFLINE)
            raise InvalidIdentity(f"account {text!r}: write NAMESPACE/NAME=ROLE; roles are {roles}")
        accounts[space, name] = Given(role, "" if space == namespace else f"{space}_")
    return accounts


def identity_of(bearer: Bearer, asked: str, accounts: Accounts) -> Identity:
    """Return the identity for a client that connects under the name `asked`.

    Raises `InvalidIdentity` if the token gives no role, or not this name."""
    given = accounts.get((bearer.namespace, bearer.account))
    if given is None:
        raise InvalidIdentity(f"ServiceAccount {bearer.namespace}/{bearer.account} has no role")
    role = given.role
    name = given.before + (bearer.pod or bearer.account)
    if asked != name:
        raise InvalidIdentity(
            f"name {asked!r}: a token of {bearer.namespace}/{bearer.account} connects as {name}"
        )
    if role != "agent":
        return Identity(role, check_name(name))
    if not bearer.node:
        raise InvalidIdentity(f"agent {name}: its token is not bound to a pod on a node")
    return Identity(role, check_name(name), nodes=(bearer.node,))
