"""No account of Apportion has a wildcard right, or a right with which it could get further
rights."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.applied import objects

ROLES = {"Role", "ClusterRole"}
LEADS_TO_MORE = {"*", "escalate", "bind", "impersonate"}
RULE = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}


def offences(role: dict[str, Any]) -> Iterator[str]:
    """Yield the rules of a role that use a wildcard, or with which an account could get further
    rights."""
    for rule in role.get("rules") or ():
        named = {name for key in ("apiGroups", "resources") for name in rule.get(key, ())}
        if "*" in named or LEADS_TO_MORE & set(rule["verbs"]):
            yield f"{role['metadata']['name']}: {rule}"


def test_every_right_is_by_its_name() -> None:
    """Every role in Apportion's manifests names its rights without wildcards."""
    roles = [each for each in objects() if each["kind"] in ROLES]
    assert len(roles) > 3
    assert [each for role in roles for each in offences(role)] == []


def test_no_account_is_bound_to_a_role_that_is_not_ours() -> None:
    """Accounts of Apportion are bound only to roles in its manifests, never to cluster-admin."""
    ours = {each["metadata"]["name"] for each in objects() if each["kind"] in ROLES}
    bound = {each["roleRef"]["name"] for each in objects() if each["kind"].endswith("RoleBinding")}
    assert bound - ours <= {"system:auth-delegator"}, "which may ask who somebody is, and no more"


@pytest.mark.parametrize(
    "weaker",
    [
        {"resources": ["*"]}, {"apiGroups": ["*"]}, {"verbs": ["*"]}, {"verbs": ["impersonate"]},
        {"verbs": ["get", "escalate"]},
    ],
    ids=str,
)  # fmt: skip
def test_a_wider_rule_is_found(weaker: dict[str, list[str]]) -> None:
    """The check reports a rule that uses a wildcard or lets an account get further rights. It
    accepts a rule that names its verbs and objects."""
    role = {"metadata": {"name": "r"}, "rules": [RULE]}
    assert list(offences(role)) == []
    assert len(list(offences(role | {"rules": [RULE | weaker]}))) == 1
