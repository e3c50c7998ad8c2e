"""Point 5: no account of ours has a right by a wildcard, or one by which it gets others."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.applied import objects

ROLES = {"Role", "ClusterRole"}
LEADS_TO_MORE = {"*", "escalate", "bind", "impersonate"}
RULE = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}


def offences(role: dict[str, Any]) -> Iterator[str]:
    """Return the rules of a role that give more than they name, or lead to more."""
    for rule in role.get("rules") or ():
        named = {name for key in ("apiGroups", "resources") for name in rule.get(key, ())}
        if "*" in named or LEADS_TO_MORE & set(rule["verbs"]):
            yield f"{role['metadata']['name']}: {rule}"


def test_every_right_is_by_its_name() -> None:
    """Of every role that we apply."""
    roles = [each for each in objects() if each["kind"] in ROLES]
    assert len(roles) > 3
    assert [each for role in roles for each in offences(role)] == []


def test_no_account_is_bound_to_a_role_that_is_not_ours() -> None:
    """As cluster-admin would be."""
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
    """The guard taken out: a rule that gives more is an offence, and the rule itself is none."""
    role = {"metadata": {"name": "r"}, "rules": [RULE]}
    assert list(offences(role)) == []
    assert len(list(offences(role | {"rules": [RULE | weaker]}))) == 1
