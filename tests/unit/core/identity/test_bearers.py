"""Tests of the NATS identity that a pod's token gives, and of refused connections."""

import pytest

from apportion.core.identity.bearers import Bearer, accounts_of, identity_of
from apportion.core.identity.identity import Identity, InvalidIdentity
from apportion.core.identity.permissions import permissions_of
from apportion.core.identity.roles import BY_NAME

ACCOUNTS = accounts_of("apportion", ("monitoring/billing=auditor",))


def test_every_service_has_the_account_of_its_name_but_those_that_stay_offline() -> None:
    """Every service has a ServiceAccount of its own name. Only bootstrap and callout have none,
    because they use no token."""
    roles = {each.role for (space, _), each in ACCOUNTS.items() if space == "apportion"}
    assert roles == set(BY_NAME) - {"bootstrap", "callout"}


def test_an_identity_has_the_name_of_its_pod_and_an_agent_its_node() -> None:
    """An identity is named after its pod, and an agent's identity also contains the pod's node. No
    pod can therefore act as another."""
    scheduler = Bearer("apportion", "scheduler", "scheduler-7c-x", "n1")
    assert identity_of(scheduler, "scheduler-7c-x", ACCOUNTS) == Identity(
        "scheduler", "scheduler-7c-x"
    )
    agent = Bearer("apportion", "agent", "agent-x", "n1")
    assert identity_of(agent, "agent-x", ACCOUNTS) == Identity("agent", "agent-x", nodes=("n1",))
    extender = Bearer("apportion", "extender", "extender-x", "n1")
    assert identity_of(extender, "extender-x", ACCOUNTS) == Identity("extender", "extender-x")
    billing = Bearer("monitoring", "billing")
    assert identity_of(billing, "monitoring_billing", ACCOUNTS) == Identity(
        "auditor", "monitoring_billing"
    )


@pytest.mark.parametrize("name", ["scheduler-7c-x", "operator", "apportion", "gateway-0"])
def test_a_pod_of_another_namespace_that_is_called_as_one_of_ours_is_not_it(name: str) -> None:
    """A pod of another namespace may have the same name as one of Apportion's pods. It still gets a
    different identity, different consumers and a different inbox."""
    stranger = Bearer("monitoring", "billing", name, "n1")
    with pytest.raises(InvalidIdentity, match=f"connects as monitoring_{name}"):
        identity_of(stranger, name, ACCOUNTS)
    theirs = identity_of(stranger, f"monitoring_{name}", ACCOUNTS)
    may = permissions_of(theirs)
    ours = permissions_of(Identity("scheduler", name))
    assert f"_INBOX_{name}.>" in ours.subscribe
    assert f"_INBOX_{name}.>" not in may.subscribe
    consumers = {each for each in may.publish if ".CONSUMER." in each}
    assert consumers
    assert not consumers & set(ours.publish)


def test_no_two_pods_of_other_namespaces_have_one_name() -> None:
    """Two pods of different namespaces never get the same identity name, even if the names contain
    hyphens."""
    accounts = accounts_of("apportion", ("a-b/x=auditor", "a/x=auditor"))
    one = identity_of(Bearer("a-b", "x", "c"), "a-b_c", accounts)
    other = identity_of(Bearer("a", "x", "b-c"), "a_b-c", accounts)
    assert one.name != other.name


@pytest.mark.parametrize(
    ("bearer", "asked", "words"),
    [
        (Bearer("default", "scheduler", "s"), "s", "default/scheduler has no role"),
        (Bearer("apportion", "bootstrap", "b"), "b", "has no role"),
        (Bearer("apportion", "scheduler", "s-1"), "s-2", "connects as s-1"),
        (Bearer("apportion", "scheduler", "s-1"), "", "connects as s-1"),
        (Bearer("apportion", "agent", "a-1"), "a-1", "not bound to a pod on a node"),
        (Bearer("apportion", "scheduler", "a.b"), "a.b", "lower-case"),
        (Bearer("monitoring", "billing", "x.*"), "monitoring_x.*", "lower-case"),
    ],
)
def test_what_is_asked_for_beyond_is_refused(bearer: Bearer, asked: str, words: str) -> None:
    """A NATS login is refused if the token's ServiceAccount has no role.

    It is also refused if the client asks for a name other than the token's."""
    with pytest.raises(InvalidIdentity, match=words):
        identity_of(bearer, asked, ACCOUNTS)


@pytest.mark.parametrize("text", ["billing=auditor", "a/b=bootstrap", "a/b", "a/=auditor", "a/b=x"])
def test_an_account_that_is_written_wrongly_is_named(text: str) -> None:
    """A malformed account setting is refused with the expected form, `NAMESPACE/NAME=ROLE`."""
    with pytest.raises(InvalidIdentity, match="write NAMESPACE/NAME=ROLE"):
        accounts_of("apportion", (text,))
