"""Least privilege: what each role may and may not do under the shipped permissions."""

import asyncio
import itertools
from typing import Any

import msgspec
import pytest

from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.examining import USER_INFO
from apportion.runtime.jetstream.object_store import STORE_API
from apportion.runtime.jetstream.server.embedded import ROLES
from apportion.runtime.jetstream.snapshots import BEGINNING, BUCKET, CONFIGURATION
from apportion.runtime.jetstream.wire import STREAM
from apportion.runtime.ledger.port import Draft, LedgerUnavailable, NotPermitted
from apportion.runtime.ledger.starting import SUBJECT as CHOICES
from tests.support.nats import Bus, draft
from tests.support.polling import until

EVENTS = {
    "inventory.n1": {"intake"},
    "allocation.n1": {"intake"},
    "usage.n1": {"intake"},
    "intake.n1": {"intake"},
    "workload.uid1": {"watcher", "operator"},
    "adoption.n1.uid1": {"watcher", "operator"},
    "cluster.node.n1": {"watcher", "operator"},
    "placement.n1": {"scheduler"},
    "pending.uid1": {"scheduler"},
    "policy.prices": {"scheduler"},
    "presence.n1": {"scheduler"},
    "binding.n1": {"binder"},
    "operator.node.n1": {"operator", "gateway", "defrag"},
    "operator.device.d1": {"operator", "gateway"},
    "operator.policy": {"operator"},
    "operator.configuration": {"operator"},
    "unheard.of": set(),
}
"""Each subject, and the roles that may append to it."""

NO_READERS = {"bootstrap", "admission", "defrag"}
"""Roles that may not follow the ledger. One only makes and trims the stream, the next reads only
the configuration, and the last only single events."""

FOLDS = [role for role in ROLES if role != "auditor"]
"""All roles but auditors, which read a copy in an account without the ledger's consumers."""

SPEAKERS = ("agent", "extender", "gateway", "scheduler", "watcher")
"""Roles of every account that send heartbeats to all."""

API_OF_NOBODY = (
    f"$JS.API.STREAM.DELETE.{STREAM}",
    f"$JS.API.STREAM.MSG.DELETE.{STREAM}",
    f"$JS.API.STREAM.SNAPSHOT.{STREAM}",
    f"$JS.API.STREAM.RESTORE.{STREAM}",
    f"$JS.API.CONSUMER.DELETE.{STREAM}.binder",
    f"$JS.API.CONSUMER.PAUSE.{STREAM}.binder",
    "$JS.API.STREAM.CREATE.OTHER",
    "$JS.API.STREAM.LIST",
    "$JS.API.ACCOUNT.PURGE.APPORTION",
    "$JS.API.META.LEADER.STEPDOWN",
    *(
        f"{STORE_API}.{verb}.OBJ_{bucket}"
        for bucket in (BUCKET, BEGINNING)
        for verb in ("STREAM.DELETE", "STREAM.UPDATE", "STREAM.MSG.DELETE", "CONSUMER.CREATE")
    ),
)
API_OF_BOOTSTRAP = (
    f"$JS.API.STREAM.CREATE.{STREAM}",
    f"$JS.API.STREAM.UPDATE.{STREAM}",
    f"$JS.API.STREAM.PURGE.{STREAM}",
    f"{STORE_API}.STREAM.CREATE.OBJ_{BUCKET}",
    f"{STORE_API}.STREAM.CREATE.OBJ_{BEGINNING}",
    f"{STORE_API}.STREAM.PURGE.OBJ_{BEGINNING}",
)


async def _may_send(
    ledger: JetStreamLedger, subject: str, payload: bytes = b"{}", *, wait_s: float = 30
) -> bool:
    """Return True if the server permits this client to publish to `subject`."""
    try:
        await ledger.request(subject, payload, wait_s)
    except NotPermitted:
        return False
    except LedgerUnavailable:
        return True
    return True


async def _may_listen(ledger: JetStreamLedger, subject: str) -> bool:
    async def ignore(_subject: str, _payload: bytes) -> None:
        return None

    try:
        await ledger.serve(subject, ignore)
    except NotPermitted:
        return False
    return True


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_appends_what_it_owns_and_nothing_else(bus: Bus, role: str) -> None:
    """The server lets a role append the events that it owns, alone or in a batch, and no others."""
    ledger = await bus.connect(role)
    for subject, writers in EVENTS.items():
        if role in writers:
            await ledger.append([draft(subject)])
            await ledger.append([draft(subject), draft(subject)])
        else:
            with pytest.raises(
                NotPermitted, match=f"not permit user '{role}' to send to apportion"
            ):
                await ledger.append([draft(subject)])


async def test_a_batch_with_one_foreign_subject_is_refused_whole(bus: Bus) -> None:
    """A batch with a forbidden message anywhere is refused as a whole, and the error names the
    message."""
    ledger = await bus.connect("scheduler")
    for batch in (
        [draft("placement.n1"), draft("binding.n1")],
        [draft("binding.n1"), draft("placement.n1")],
    ):
        with pytest.raises(NotPermitted, match=r"send to apportion\.v1\.binding\.n1"):
            await ledger.append(batch)
    assert await ledger.last_revision() == 0


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_has_no_more_of_the_api_than_it_needs(bus: Bus, role: str) -> None:
    """Each role may use only the server APIs that it needs. Only bootstrap may create and trim the
    stream."""
    ledger = await bus.connect(role)
    for api in API_OF_NOBODY:
        if role == "auditor" and api.startswith("$JS.API.CONSUMER.DELETE"):
            continue  # in the auditors' account, where no service has a consumer
        assert not await _may_send(ledger, api), api
    for api in API_OF_BOOTSTRAP:
        assert await _may_send(ledger, api) == (role == "bootstrap"), api
    reads = role not in NO_READERS
    single = f"$JS.API.STREAM.MSG.GET.{STREAM}"
    assert await _may_send(ledger, single) == (reads or role == "defrag")
    assert await _may_send(ledger, f"$JS.API.CONSUMER.CREATE.{STREAM}.{role}-0") == reads
    snapshots = reads and role != "auditor"
    assert await _may_send(ledger, f"{STORE_API}.DIRECT.GET.OBJ_{BUCKET}") == snapshots
    keeps = snapshots or role == "bootstrap"
    assert await _may_send(ledger, f"{STORE_API}.DIRECT.GET.OBJ_{BEGINNING}") == keeps
    # An auditor is in the auditors' account, which has no other consumers.
    none = {"bootstrap", "auditor", "defrag"}  # roles without a consumer in the services' accounts
    others = set() if role == "auditor" else set(ROLES) - {role} - none
    for verb, other in itertools.product(("CREATE", "INFO", "DELETE"), others):
        assert not await _may_send(ledger, f"$JS.API.CONSUMER.{verb}.{STREAM}.{other}-0"), other
    assert await _may_send(ledger, f"$JS.API.STREAM.INFO.{STREAM}", b"")


@pytest.mark.parametrize("role", [role for role in FOLDS if role not in NO_READERS])
async def test_every_fold_can_read_the_whole_ledger(bus: Bus, role: str) -> None:
    """Every role that folds the ledger can follow it from the beginning.

    It can also read the last revision of the ledger and of a subject."""
    watcher = await bus.connect("watcher")
    await watcher.append([draft("workload.a", payload=b"x" * 3000) for _ in range(1000)])
    await watcher.append([draft("workload.a", payload=b"x" * 3000) for _ in range(1000)])
    ledger = await bus.connect(role)
    seen: list[int] = []
    following = await ledger.follow(lambda record: seen.append(record.revision))
    await following.caught_up()
    assert seen == list(range(1, 2001))
    assert await ledger.last_revision() == 2000
    assert await ledger.last_on_subject("apportion.v1.workload.a") == 2000


@pytest.mark.parametrize("role", ROLES)
async def test_nobody_reads_the_replies_of_another(bus: Bus, role: str) -> None:
    """Each role can listen only to its own reply inbox. Auditors can also use the plain `_INBOX`,
    which third-party tools need."""
    ledger = await bus.connect(role)
    for other in ROLES:
        assert await _may_listen(ledger, f"_INBOX_{other}.x") == (other == role), other
    assert await _may_listen(ledger, "_INBOX.x") == (role == "auditor")
    assert not await _may_listen(ledger, "_R_.>"), "where the server wants answers for others"
    assert not await _may_listen(ledger, ">")
    assert not await _may_listen(ledger, "$JS.>")
    assert await _may_listen(ledger, "apportion.v1.>") == (role == "auditor")


@pytest.mark.parametrize("role", FOLDS)
async def test_only_binders_take_from_the_binders_queue(bus: Bus, role: str) -> None:
    """Only binders can pull records from the binders' queue, and acknowledge them."""
    binder = await bus.connect("binder")
    await binder.work_queue("binder", ["apportion.v1.placement.*"], ack_wait_s=30, max_in_flight=10)
    ledger = await bus.connect(role)
    pull = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.binder"
    assert await _may_send(ledger, pull, b'{"batch":1,"no_wait":true}') == (role == "binder")
    ack = f"$JS.ACK.{STREAM}.binder.1.1.1.1.0"
    wait_s = 2 if role == "binder" else 30  # the server never answers a stray ack
    assert await _may_send(ledger, ack, b"+ACK", wait_s=wait_s) == (role == "binder")


@pytest.mark.parametrize(
    "config",
    [
        {"filter_subject": "apportion.v1.workload.a"},
        {"filter_subject": "apportion.v1.>"},
        {"filter_subjects": [CONFIGURATION, "apportion.v1.workload.a"]},
        {},
    ],
)
async def test_the_webhook_reads_the_configuration_alone(bus: Bus, config: dict[str, Any]) -> None:
    """The webhook can create a consumer only for the configuration's subject."""
    ledger = await bus.connect("admission")
    common = {
        "name": "admission-0",
        "deliver_subject": ledger.wire.new_inbox(),
        "ack_policy": "none",
    }
    api = f"$JS.API.CONSUMER.CREATE.{STREAM}.admission-0.{CONFIGURATION}"
    body = {"stream_name": STREAM, "config": common | config}
    assert b'"error"' in await ledger.request(api, msgspec.json.encode(body), 30)
    body = {"stream_name": STREAM, "config": common | {"filter_subject": CONFIGURATION}}
    assert b'"error"' not in await ledger.request(api, msgspec.json.encode(body), 30)
    for other in ("apportion.v1.workload.a", "apportion.v1.>", "apportion.v1.operator.policy"):
        assert not await _may_send(ledger, f"$JS.API.CONSUMER.CREATE.{STREAM}.admission-0.{other}")
    assert not await _may_send(ledger, f"$JS.API.CONSUMER.CREATE.{STREAM}.binder.{CONFIGURATION}")


@pytest.mark.parametrize("role", ROLES)
async def test_only_the_configuration_that_is_kept_is_read_without_the_snapshots(
    bus: Bus, role: str
) -> None:
    """Only the webhook and the operator may read the configuration that is stored outside the
    stream.

    They may read nothing else there."""
    ledger = await bus.connect(role)
    alone = f"{STORE_API}.DIRECT.GET.OBJ_{BEGINNING}.$O.{BEGINNING}.C"
    assert await _may_send(ledger, f"{alone}.configuration", b"") == (
        role in {"admission", "operator"}
    )
    assert not await _may_send(ledger, f"{alone}.other", b"")
    assert not await _may_send(ledger, f"{alone}.>", b"")


async def test_commands_go_from_the_operator_to_agents_and_back(bus: Bus) -> None:
    """Only the operator may send commands to agents, and only agents answer."""
    agent, operator = await bus.connect("agent"), await bus.connect("operator")

    async def answer(subject: str, payload: bytes) -> bytes:
        return subject.encode() + b" did " + payload

    await agent.serve("apportion.command.agent.n1", answer)
    reply = await operator.request("apportion.command.agent.n1", b"fail gpu 0", 30)
    assert reply == b"apportion.command.agent.n1 did fail gpu 0"
    for role in set(ROLES) - {"operator"}:
        other = await bus.connect(role)
        assert not await _may_send(other, "apportion.command.agent.n1")
    for role in set(ROLES) - {"agent"}:
        assert not await _may_listen(await bus.connect(role), "apportion.command.agent.n1")


async def test_choices_go_from_the_extender_to_schedulers_and_back(bus: Bus) -> None:
    """Only the extender may send placement requests, and only schedulers receive them."""
    scheduler, extender = await bus.connect("scheduler"), await bus.connect("extender")

    async def answer(_subject: str, payload: bytes) -> bytes:
        return b"heard " + payload

    await scheduler.serve(CHOICES, answer)
    assert await extender.request(CHOICES, b"n1", 30) == b"heard n1"
    for role in set(ROLES) - {"extender"}:
        assert not await _may_send(await bus.connect(role), CHOICES), role
    for role in set(ROLES) - {"scheduler"}:
        assert not await _may_listen(await bus.connect(role), CHOICES), role


@pytest.mark.parametrize("role", ["agent", "watcher", "scheduler", "binder", "gateway", "extender"])
async def test_a_beat_is_sent_by_its_own_role_and_heard_by_all(bus: Bus, role: str) -> None:
    """A role can send only its own heartbeat, and every role receives heartbeats."""
    ledger = await bus.connect(role)
    heard = asyncio.Event()

    async def hear(_subject: str, _payload: bytes) -> None:
        heard.set()

    await (await bus.connect("gateway")).serve("apportion.beat.>", hear)
    await ledger.publish(f"apportion.beat.{role}.one", b"")
    async with asyncio.timeout(20):
        await heard.wait()
    for other in set(ROLES) - {role}:
        assert not await _may_send(ledger, f"apportion.beat.{other}.one")


async def test_a_reader_cannot_have_the_server_write_to_the_ledger(bus: Bus) -> None:
    """The server refuses a consumer whose delivery subject is one of the ledger's own subjects."""
    reader = await bus.connect("gateway")
    config = (
        b'{"deliver_subject":"apportion.v1.placement.n1","ack_policy":"none","name":"gateway-0"}'
    )
    body = b'{"stream_name":"APPORTION","config":' + config + b"}"
    reply = await reader.request(f"$JS.API.CONSUMER.CREATE.{STREAM}.gateway-0", body, 30)
    assert b"cycle" in reply


@pytest.mark.parametrize("verb", ["PURGE", "DELETE"])
async def test_a_reader_cannot_have_the_server_send_to_its_api(bus: Bus, verb: str) -> None:
    """A consumer whose delivery subject is a subject of the server's API delivers nothing."""
    watcher, reader = await bus.connect("watcher"), await bus.connect("gateway")
    await watcher.append([draft("workload.a")])
    settings = {
        "name": "gateway-3",
        "deliver_subject": f"$JS.API.STREAM.{verb}.{STREAM}",
        "ack_policy": "none",
        "headers_only": True,
        "idle_heartbeat": 100_000_000,
    }
    body = msgspec.json.encode({"stream_name": STREAM, "config": settings})
    await reader.request(f"$JS.API.CONSUMER.CREATE.{STREAM}.gateway-3", body, 30)
    await watcher.append([draft("workload.a")])
    seen: list[int] = []
    following = await reader.follow(lambda record: seen.append(record.revision))
    await following.caught_up()
    assert seen == [1, 2], "another consumer has delivered, and nothing is gone"
    told = await reader.request(f"$JS.API.CONSUMER.INFO.{STREAM}.gateway-3", b"", 30)
    assert msgspec.json.decode(told)["delivered"]["consumer_seq"] == 0


async def test_the_binders_queue_cannot_be_changed_under_another_name(bus: Bus) -> None:
    """The server refuses a consumer request with one name in the subject and another name in the
    body."""
    binder, reader = await bus.connect("binder"), await bus.connect("gateway")
    subjects = ["apportion.v1.placement.*"]
    await binder.work_queue("binder", subjects, ack_wait_s=30, max_in_flight=10)
    config = b'{"durable_name":"binder","name":"binder","ack_policy":"explicit","ack_wait":1}'
    body = b'{"stream_name":"APPORTION","config":' + config + b"}"
    reply = await reader.request(f"$JS.API.CONSUMER.CREATE.{STREAM}.gateway-0", body, 30)
    assert b'"error"' in reply
    await binder.work_queue("binder", subjects, ack_wait_s=30, max_in_flight=10)


async def test_an_auditor_reads_a_copy_that_follows(bus: Bus) -> None:
    """An auditor's copy of the ledger stays up to date and has the same revisions.

    A server request whose reply address is a ledger subject adds no event to the ledger."""
    watcher, auditor = await bus.connect("watcher"), await bus.connect("auditor")
    await watcher.append([draft("workload.a") for _ in range(300)])
    seen: list[int] = []
    await auditor.follow(lambda record: seen.append(record.revision))

    async def all_came() -> bool:
        return seen == list(range(1, 1 + await watcher.last_revision()))

    await until(all_came, "the auditor to have read all")
    await auditor.wire.publish(
        f"$JS.API.STREAM.INFO.{STREAM}", b"", reply="apportion.v1.workload.a", headers={}
    )
    await auditor.last_revision()
    await watcher.append([draft("workload.a")])
    await until(all_came, "the auditor to have read one more")
    assert await watcher.last_revision() == 301


@pytest.mark.parametrize(
    "role", ["auditor", "extender", "gateway", "operator", "scheduler", "watcher"]
)
async def test_what_is_said_to_all_is_heard_once(bus: Bus, role: str) -> None:
    """Each listener gets every heartbeat and usage sample once, even from another account."""
    listener = await bus.connect(role)
    heard: list[str] = []

    async def hear(subject: str, _payload: bytes) -> None:
        heard.append(subject)

    hears_use = role in {"auditor", "gateway", "operator"}
    for subject in ("apportion.beat.>", *(["apportion.usage.*"] if hears_use else [])):
        await listener.serve(subject, hear)
    said = [f"apportion.beat.{each}.one" for each in SPEAKERS]
    said += ["apportion.usage.n1"] if hears_use else []
    last = {f"apportion.beat.{each}.last" for each in SPEAKERS}
    for name in SPEAKERS:
        speaker = await bus.connect(name)
        for subject in [*said, *last]:
            if f".beat.{name}." in subject or (name == "agent" and ".usage." in subject):
                await speaker.publish(subject, b"{}")

    async def all_came() -> bool:
        return last <= set(heard)

    await until(all_came, "the last of each to be heard")
    assert sorted(heard) == sorted([*said, *last])


async def test_an_auditor_hears_each_event_once_as_it_is_written(bus: Bus) -> None:
    """An auditor that subscribes to all subjects of the ledger receives each new event once."""
    auditor = await bus.connect("auditor")
    heard: list[str] = []

    async def hear(subject: str, _payload: bytes) -> None:
        heard.append(subject)

    await auditor.serve("apportion.v1.>", hear)
    written = {
        "watcher": "workload.a",
        "gateway": "operator.node.n1",
        "operator": "operator.policy",
    }
    for role, subject in written.items():
        ledger = await bus.connect(role)
        await ledger.append([draft(subject)])
        await ledger.append([draft(subject)])
    expected = sorted(f"apportion.v1.{subject}" for subject in written.values() for _ in range(2))

    async def all_came() -> bool:
        return len(heard) >= len(expected)

    await until(all_came, "the auditor to hear all")
    assert sorted(heard) == expected


@pytest.mark.parametrize(("role", "account"), [("gateway", "FRONT"), ("operator", "PEOPLE")])
async def test_who_asks_what_he_may_is_told_so(bus: Bus, role: str, account: str) -> None:
    """Each user can query its own name, account and permissions, which `apportion doctor` uses."""
    ledger = await bus.connect(role)
    said = msgspec.json.decode(await ledger.request(USER_INFO, b"", 30))["data"]
    assert (said["user"], said["account"]) == (role, account)
    assert USER_INFO in said["permissions"]["publish"]["allow"]


async def test_a_rollup_header_is_refused(bus: Bus) -> None:
    """The server refuses a rollup header, which would delete earlier events, even from the
    subject's owner."""
    ledger = await bus.connect("watcher")
    await ledger.append([Draft("apportion.v1.workload.a", "one", b"{}")])
    reply = await ledger.wire.request(
        "apportion.v1.workload.a", b"{}", timeout_s=30, headers={"Nats-Rollup": "all"}
    )
    assert b"rollup not permitted" in reply.data
    assert await ledger.last_revision() == 1
