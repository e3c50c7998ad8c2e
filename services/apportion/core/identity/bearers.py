"""Who somebody is that shows a ServiceAccount's token, once the API server has said whose it is.

Invariants: a role comes of the account alone, the nodes of an agent of its pod's node alone, and
the name is that of the pod, so that no replica speaks as another. What is asked for beyond is
refused with the reason."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from apportion.core.identity.identity import Identity, InvalidIdentity, check_name
from apportion.core.identity.roles import BY_NAME

OFFLINE: Final = frozenset({"bootstrap", "callout"})
"""Roles that no token gives: who makes the ledger, and who says who is who."""


class Given(NamedTuple):
    """What a ServiceAccount is given; `before` is put before the names of its pods."""

    role: str
    before: str = ""


Accounts = Mapping[tuple[str, str], Given]
"""Namespace and name of ServiceAccounts, and what each is given."""


class Bearer(msgspec.Struct, frozen=True):
    """What the API server says of a token; `pod` and `node` are empty where it is bound to none."""

    namespace: str
    account: str
    pod: str = ""
    node: str = ""


def accounts_of(namespace: str, more: Iterable[str] = ()) -> Accounts:
    """Our services' accounts, each named as its role, and `NAMESPACE/NAME=ROLE` of `more`.

    A pod's name is its own within its namespace alone. So those of other namespaces have that
    before theirs, and a `_`, which no name in Kubernetes has: nobody can call a pod elsewhere as
    one of ours, and read its replies or change its consumers. Raises InvalidIdentity."""
    accounts = {(namespace, name): Given(name) for name in BY_NAME if name not in OFFLINE}
    for text in more:
        where, _, role = text.partition("=")
        space, _, name = where.partition("/")
        if not space or not name or role not in BY_NAME or role in OFFLINE:
            roles = ", ".join(each for each in BY_NAME if each not in OFFLINE)
            raise InvalidIdentity(f"account {text!r}: write NAMESPACE/NAME=ROLE, of {roles}")
        accounts[space, name] = Given(role, "" if space == namespace else f"{space}_")
    return accounts


def identity_of(bearer: Bearer, asked: str, accounts: Accounts) -> Identity:
    """The identity that connects under the name `asked`. Raises InvalidIdentity."""
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
        raise InvalidIdentity(f"agent {name}: its token is bound to no pod that is on a node")
    return Identity(role, check_name(name), nodes=(bearer.node,))
