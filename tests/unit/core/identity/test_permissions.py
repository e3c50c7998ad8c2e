"""Tests of the NATS permissions of every role, and that the committed server configurations match
them."""

import re

import pytest

from apportion.core.identity.configuration import WITH_CALLOUT, User, accounts
from apportion.core.identity.identity import Identity, InvalidIdentity, check_name
from apportion.core.identity.permissions import permissions_of
from apportion.core.identity.roles import ROLES, Role
from apportion.core.identity.sharing import BESIDE, sharing
from apportion.runtime.jetstream.examining import covers
from apportion.runtime.jetstream.server.users import Member
from apportion_schemas import CATALOGUE
from tests.support import generated
from tools.nats_configuration import differing

by_role = pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)


def identity(role: str, *nodes: str) -> Identity:
    return Identity(role, role, nodes)


def test_committed_configurations_are_the_generated_ones() -> None:
    """The committed server configurations match the permission table."""
    generated.assert_none(differing())


def overlap(one: str, other: str) -> bool:
    """Return True if some NATS subject matches both patterns."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(left) == len(right)


@pytest.mark.parametrize("account", BESIDE)
def test_a_service_under_one_subject_is_for_all_in_the_account(account: str) -> None:
    """If an account imports a service under a fixed subject, every role of the account may use it.

    NATS lets any role that can reply publish to such a subject. The tests of attack 5 in
    tests/security check that a wildcard subject is not open to all roles."""
    lines = [line for line in sharing(account) if "{ service: { account:" in line]
    single = [match[1] for line in lines if (match := re.search(r'subject: "([^*>"]+)"', line))]
    for role in ROLES:
        if role.account == account:
            may = permissions_of(identity(role.name, "n1"))
            assert [each for each in single if not covers(may.publish, each)] == [], role.name


@by_role
def test_who_answers_whatever_he_is_asked_cannot_ask_himself(role: Role) -> None:
    """A role that may reply to any request may not publish to a subject to which it subscribes.

    Otherwise it could send itself a request, and reply to any subject."""
    may = permissions_of(identity(role.name, "n1"))
    if may.responses:
        assert not [(a, b) for a in may.publish for b in may.subscribe if overlap(a, b)]


def test_an_agent_speaks_for_its_own_nodes_alone() -> None:
    """An agent may publish only for its own nodes; node names with dots are escaped."""
    may = permissions_of(identity("agent", "n1", "gpu.example"))
    sent = [each for each in may.publish if not each.startswith("$")]
    assert {each.rpartition(".")[2] for each in sent} == {"n1", "gpu%2Eexample"}
    assert covers(may.publish, "apportion.intake.n1")
    assert not covers(may.publish, "apportion.intake.n2")
    assert not covers(may.subscribe, "apportion.command.agent.n2.runs")


def test_an_agent_without_nodes_speaks_for_none() -> None:
    """An agent without nodes may publish for no node."""
    may = permissions_of(identity("agent"))
    assert [each for each in may.publish if not each.startswith("$")] == []


@by_role
def test_nobody_appends_what_the_catalogue_gives_to_another(role: Role) -> None:
    """A role may append only the event types that the catalogue assigns to it.

    The operator, intake, gateway and defrag may also append event types of the roles for which they
    act."""
    stands_in = {"operator": "watcher", "intake": "agent"}
    stands_in |= {"gateway": "operator", "defrag": "operator"}
    may = permissions_of(identity(role.name, "x"))
    for row in CATALOGUE:
        subject = f"apportion.v1.{row.channel}.x"
        if covers(may.publish, subject):
            assert row.writer in {role.name, stands_in.get(role.name)}, subject


def test_one_auditor_alone_has_what_others_call_as_they_like() -> None:
    """Only the built-in auditor uses the shared consumer names and inbox. Every other auditor has
    names of its own."""
    added = Member("auditor", "eve").user.identity
    assert not added.shared
    assert Member("auditor", "auditor").user.identity.shared
    assert not [user.identity.name for user in WITH_CALLOUT if user.identity.shared]
    may = permissions_of(added)
    assert covers(may.publish, "$JS.API.CONSUMER.CREATE.APPORTION.eve-15.apportion.v1.>")
    assert covers(may.subscribe, "_INBOX_eve.x")
    for verb in ("CREATE", "INFO", "DELETE", "MSG.NEXT"):
        assert not covers(may.publish, f"$JS.API.CONSUMER.{verb}.APPORTION.auditor-0")
    assert not covers(may.subscribe, "_INBOX.x")


@by_role
def test_nobody_sends_to_the_inbox_of_another(role: Role) -> None:
    """No role may publish to an inbox. Replies go to the subject that the server provides."""
    may = permissions_of(identity(role.name, "n1"))
    assert not [each for each in may.publish if each.startswith(("_INBOX", "_DELIVER", ">", "*"))]


@pytest.mark.parametrize("name", ["", "a.b", "A", "a b", "-a", "a-", "*", ">", "a" * 64, "a\n"])
def test_a_name_is_a_token(name: str) -> None:
    """An identity's name has only lower-case letters, digits and hyphens, so that it cannot widen a
    NATS subject."""
    with pytest.raises(InvalidIdentity, match="lower-case letters, digits and hyphens"):
        check_name(name)


def test_an_unknown_role_is_named() -> None:
    """An unknown role is refused with the list of valid roles."""
    with pytest.raises(InvalidIdentity, match=r"role 'root': write one of bootstrap, agent, "):
        accounts([User(Identity("root", "root"))])
