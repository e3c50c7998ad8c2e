"""Each function removes one guard of the intake, of the snapshots or of the accounts."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from unittest import mock

import msgspec


@contextlib.contextmanager
def answers_into_the_askers_account() -> Iterator[None]:
    """Remove a guard, so that all users are in the ledger's own NATS account, where replies can
    become events."""
    from apportion.core.identity import configuration  # noqa: PLC0415
    from apportion.core.identity.identity import Identity  # noqa: PLC0415
    from apportion.core.identity.permissions import role_of  # noqa: PLC0415
    from apportion.core.identity.roles import AUTH, LEDGER, Role  # noqa: PLC0415

    def together(identity: Identity) -> Role:
        role = role_of(identity)
        return msgspec.structs.replace(role, account=LEDGER) if role.account != AUTH else role

    with (
        mock.patch.object(configuration, "role_of", together),
        mock.patch.object(configuration, "BESIDE", ()),
        mock.patch.object(configuration, "sharing", return_value=()),
    ):
        yield


@contextlib.contextmanager
def schedulers_answer_where_the_server_says() -> Iterator[None]:
    """Let a scheduler publish to the reply subject of any message that it receives."""
    from apportion.core.identity import roles  # noqa: PLC0415

    answering = msgspec.structs.replace(roles.BY_NAME["scheduler"], answering=True)
    with mock.patch.dict(roles.BY_NAME, {"scheduler": answering}):
        yield


@contextlib.contextmanager
def takes_the_sender_for_the_node() -> Iterator[None]:
    """Let an agent report for any node that it names in the event."""
    from datetime import datetime  # noqa: PLC0415

    from apportion.core.intake.judging import Refusal  # noqa: PLC0415
    from apportion.intake import taking  # noqa: PLC0415
    from apportion_schemas import Event  # noqa: PLC0415

    real = taking.read

    def read(node: str, payload: bytes, now: datetime) -> Event | Refusal:
        named = msgspec.json.decode(payload)["data"].get("node", node)
        return real(named, payload, now)

    with mock.patch.object(taking, "read", read):
        yield


@contextlib.contextmanager
def knows_how_large_cards_are() -> Iterator[None]:
    """Remove a guard, so that an intake accepts a device of any size."""
    from apportion.core.intake import judging  # noqa: PLC0415

    with mock.patch.object(judging, "implausible", return_value=""):
        yield


@contextlib.contextmanager
def knows_whose_cards_are() -> Iterator[None]:
    """Let an intake accept a report that lists another node's devices."""
    from apportion.core.intake import judging  # noqa: PLC0415

    with mock.patch.object(judging, "other_owner", return_value=None):
        yield


@contextlib.contextmanager
def knows_what_is_yet_to_come() -> Iterator[None]:
    """Remove a guard, so that an intake accepts an event that refers to a revision beyond the end
    of the ledger."""
    from apportion.intake.taking import Taking  # noqa: PLC0415

    async def never(*_: object) -> None:
        return None

    with mock.patch.object(Taking, "_reach", never):
        yield


@contextlib.contextmanager
def looks_at_the_signature() -> Iterator[None]:
    """Remove a guard, so that an intake accepts an event signed with another agent's name."""
    from apportion.core.intake import judging  # noqa: PLC0415

    with mock.patch.object(judging, "source_of", return_value=mock.ANY):
        yield


@contextlib.contextmanager
def appends_under_its_own_ids() -> Iterator[None]:
    """Let an intake use the event id that an agent chose."""
    from apportion.intake import taking  # noqa: PLC0415

    with mock.patch.object(taking, "append_id", lambda _node, event_id: event_id):
        yield


@contextlib.contextmanager
def bounds_what_one_says() -> Iterator[None]:
    """Let an intake accept any number of events from one agent."""
    from apportion.intake import taking  # noqa: PLC0415

    with (
        mock.patch.object(taking, "UNANSWERED_MAX", 1 << 30),
        mock.patch.object(taking, "UNANSWERED_BYTES_MAX", 1 << 40),
        mock.patch.object(taking.Lane, "pace", return_value=0.0),
        mock.patch.object(taking.Lane, "may_change", return_value=True),
    ):
        yield


@contextlib.contextmanager
def attests_what_it_has_folded() -> Iterator[None]:
    """Let an intake attest every readable snapshot, even a false one."""
    from apportion.intake import reads  # noqa: PLC0415

    with mock.patch.object(reads, "_same", return_value=True):
        yield


@contextlib.contextmanager
def leaves_a_reserve() -> Iterator[None]:
    """Remove a guard, so that an intake appends agents' events even if almost no space of the
    ledger is free."""
    from apportion.intake import taking  # noqa: PLC0415

    with mock.patch.object(taking, "RESERVE", 0), mock.patch.object(taking, "RESERVE_OF_USAGE", 0):
        yield


@contextlib.contextmanager
def asks_for_its_node_alone() -> Iterator[None]:
    """Remove a guard, so that an intake forwards any read request of an agent to the server."""
    from apportion.core.intake import sight  # noqa: PLC0415

    with (
        mock.patch.object(sight, "_check_subjects", return_value=None),
        mock.patch.object(sight, "subjects_of_node", return_value=(">",)),
    ):
        yield


@contextlib.contextmanager
def budgets_a_nodes_hour() -> Iterator[None]:
    """Let a node append any number of bytes and records per hour."""
    from apportion.intake.taking import Lane  # noqa: PLC0415

    with mock.patch.object(Lane, "may_append", return_value=True):
        yield


@contextlib.contextmanager
def asks_what_a_pod_held() -> Iterator[None]:
    """Let an intake accept an agent's usage of pods that had no share on the agent's node."""
    from apportion.intake.taking import Holdings  # noqa: PLC0415

    async def never(*_: object) -> None:
        return None

    with mock.patch.object(Holdings, "refusal", never):
        yield


@contextlib.contextmanager
def records_seconds_once() -> Iterator[None]:
    """Remove a guard, so that the usage of the same seconds of a container can be recorded more
    than once."""
    from apportion.intake.taking import Lane  # noqa: PLC0415

    with mock.patch.object(Lane, "used_twice", return_value=""):
        yield


@contextlib.contextmanager
def misses_what_was_attested() -> Iterator[None]:
    """Remove a guard, so that an intake does not report that attested snapshots are gone."""
    from apportion.intake.reads import Attesting  # noqa: PLC0415

    never = property(lambda _: False, lambda *_: None)
    with mock.patch.object(Attesting, "_gone", never, create=True):
        yield


@contextlib.contextmanager
def keeps_the_beginning_apart() -> Iterator[None]:
    """Let services on a trimmed ledger start from a snapshot that schedulers can purge."""
    from apportion.runtime.jetstream.snapshots import Beginning, Snapshots  # noqa: PLC0415

    async def nowhere(_: Snapshots, _beginning: Beginning) -> None:
        return None

    with mock.patch.object(Snapshots, "begin_with", nowhere):
        yield


@contextlib.contextmanager
def is_unready_when_full() -> Iterator[None]:
    """Let a service stay ready when the ledger is full."""
    from apportion.runtime.service import soundness  # noqa: PLC0415

    def drifted(self: soundness.Soundness) -> list[str]:
        return list(self._drifted)

    with mock.patch.object(soundness.Soundness, "not_ready", drifted):
        yield


INTAKE_GUARDS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "answers into the asker's account": answers_into_the_askers_account,
    "asks for its node alone": asks_for_its_node_alone,
    "asks what a pod held": asks_what_a_pod_held,
    "appends under its own ids": appends_under_its_own_ids,
    "attests what it has folded": attests_what_it_has_folded,
    "bounds what one says": bounds_what_one_says,
    "budgets a node's hour": budgets_a_nodes_hour,
    "is unready when full": is_unready_when_full,
    "keeps the beginning apart": keeps_the_beginning_apart,
    "knows how large cards are": knows_how_large_cards_are,
    "knows what is yet to come": knows_what_is_yet_to_come,
    "knows whose cards are": knows_whose_cards_are,
    "leaves a reserve": leaves_a_reserve,
    "looks at the signature": looks_at_the_signature,
    "misses what was attested": misses_what_was_attested,
    "records seconds once": records_seconds_once,
    "schedulers answer where the server says": schedulers_answer_where_the_server_says,
    "takes the sender for the node": takes_the_sender_for_the_node,
}
"""Rows of `weakened.GUARDS`."""
