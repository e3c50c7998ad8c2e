"""The table: each row is sound by itself, and what is made of it is what is committed."""

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
from tools.nats_configuration import differing

by_role = pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)


def identity(role: str, *nodes: str) -> Identity:
    """One of this role, called as the role."""
    return Identity(role, role, nodes)


def test_committed_configurations_are_the_generated_ones() -> None:
    """The server obeys the file, people read the table; `make generate` mends it."""
    assert differing() == []


def overlap(one: str, other: str) -> bool:
    """Whether a subject can be of both patterns."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(left) == len(right)


@pytest.mark.parametrize("account", BESIDE)
def test_a_service_under_one_subject_is_for_all_in_the_account(account: str) -> None:
    """The server hands on to it what is sent there as an answer, whoever has it sent.

    To one under a wildcard it does not: attack 5 tries it."""
    lines = [line for line in sharing(account) if "{ service: { account:" in line]
    single = [match[1] for line in lines if (match := re.search(r'subject: "([^*>"]+)"', line))]
    for role in ROLES:
        if role.account == account:
            may = permissions_of(identity(role.name, "n1"))
            assert [each for each in single if not covers(may.publish, each)] == [], role.name


@by_role
def test_who_answers_whatever_he_is_asked_cannot_ask_himself(role: Role) -> None:
    """A request whose reply is a foreign subject, sent to oneself, would be leave to send there."""
    may = permissions_of(identity(role.name, "n1"))
    if may.responses:
        assert not [(a, b) for a in may.publish for b in may.subscribe if overlap(a, b)]


def test_an_agent_speaks_for_its_own_nodes_alone() -> None:
    """Names with dots are tokens; what is of another node is not allowed."""
    may = permissions_of(identity("agent", "n1", "gpu.example"))
    sent = [each for each in may.publish if not each.startswith("$")]
    assert {each.rpartition(".")[2] for each in sent} == {"n1", "gpu%2Eexample"}
    assert covers(may.publish, "apportion.intake.n1")
    assert not covers(may.publish, "apportion.intake.n2")
    assert not covers(may.subscribe, "apportion.command.agent.n2.runs")


def test_an_agent_without_nodes_speaks_for_none() -> None:
    """Forgotten nodes are not all nodes."""
    may = permissions_of(identity("agent"))
    assert [each for each in may.publish if not each.startswith("$")] == []


@by_role
def test_nobody_appends_what_the_catalogue_gives_to_another(role: Role) -> None:
    """Each event has its writer; people stand in for the watcher, others for agents and people."""
    stands_in = {"operator": "watcher", "intake": "agent", "gateway": "operator"}
    may = permissions_of(identity(role.name, "x"))
    for row in CATALOGUE:
        subject = f"apportion.v1.{row.channel}.x"
        if covers(may.publish, subject):
            assert row.writer in {role.name, stands_in.get(role.name)}, subject


def test_one_auditor_alone_has_what_others_call_as_they_like() -> None:
    """Who was added has his own, and behind a callout, which lets in whom nobody knew, all have."""
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
    """Who answers goes by what the server says of a request, or makes for it; not by a name."""
    may = permissions_of(identity(role.name, "n1"))
    assert not [each for each in may.publish if each.startswith(("_INBOX", "_DELIVER", ">", "*"))]


@pytest.mark.parametrize("name", ["", "a.b", "A", "a b", "-a", "a-", "*", ">", "a" * 64, "a\n"])
def test_a_name_is_a_token(name: str) -> None:
    """It stands in subjects, and must widen none."""
    with pytest.raises(InvalidIdentity, match="lower-case letters, digits and hyphens"):
        check_name(name)


def test_an_unknown_role_is_named() -> None:
    """With those that there are."""
    with pytest.raises(InvalidIdentity, match=r"role 'root': write one of bootstrap, agent, "):
        accounts([User(Identity("root", "root"))])
