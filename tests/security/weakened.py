"""Apportion with one of its guards removed, to show that an attack succeeds without the guard.

Each test of this folder makes the same attack with and without the guard. `GUARDS` names every
guard that is code. For a guard that is a permission or a manifest, the test edits the
configuration.

To run a service without a guard: `python -m tests.security.weakened GUARD -- agent --node n1 ...`.
"""

import asyncio
import contextlib
import functools
import json
import ssl
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import msgspec

from tests.security.weakened_agent import AGENT_GUARDS
from tests.security.weakened_intake import INTAKE_GUARDS


@contextlib.contextmanager
def looks_at_the_ledger() -> Iterator[None]:
    """Let services check the ledger's settings only when they start."""
    from apportion.runtime.service.soundness import Soundness  # noqa: PLC0415

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    with mock.patch.object(Soundness, "watch", never):
        yield


@contextlib.contextmanager
def doubts_annotations() -> Iterator[None]:
    """Remove a guard, so that the watcher believes a pod's device annotations even if a tenant
    wrote them."""
    from apportion.core.workloads.adoption import claims  # noqa: PLC0415

    def nothing(*_: object) -> tuple[str, ...]:
        return ()

    with mock.patch.object(claims, "_doubted", nothing):
        yield


@contextlib.contextmanager
def holds_what_was_asked() -> Iterator[None]:
    """Let the watcher assume that a pod without a device annotation uses every GPU of its node."""
    from apportion.watcher.kubernetes import facts  # noqa: PLC0415

    def nothing(*_: object) -> None:
        return None

    with mock.patch.object(facts, "taken", nothing):
        yield


@contextlib.contextmanager
def counts_documents() -> Iterator[None]:
    """Remove a guard, so that a YAML file is parsed however many documents it has."""
    from apportion.runtime.files import safe_yaml  # noqa: PLC0415

    with mock.patch.object(safe_yaml, "_too_many", return_value=None):
        yield


@contextlib.contextmanager
def stays_in_the_folder() -> Iterator[None]:
    """Remove a guard, so that the watcher follows symbolic links out of its folder."""
    from apportion.runtime.files import manifests  # noqa: PLC0415

    with mock.patch.object(manifests, "_outside", return_value=""):
        yield


@contextlib.contextmanager
def limits_of(service: str) -> Iterator[None]:
    """Remove a service's limits on request bodies and connections."""
    from apportion.runtime.service import own_machine  # noqa: PLC0415
    from apportion.runtime.service.limits import Limits  # noqa: PLC0415

    most = 1 << 30
    limits = Limits(
        body_bytes=most, heavy_bytes=most, heavy_at_once=most, connections_each=most,
        each_per_s=0, each_at_once=most,
    )  # fmt: skip
    with (
        mock.patch(f"{service}.LIMITS", limits),
        mock.patch.object(own_machine, "POD_BYTES_MAX", most),
        mock.patch.object(own_machine, "CONTAINERS_MAX", most),
    ):
        yield


@contextlib.contextmanager
def asks_its_book() -> Iterator[None]:
    """Let an agent give a pod any devices that the pod's annotation names."""
    from apportion.agent.shares.preparing import SharePreparing  # noqa: PLC0415

    with mock.patch.object(SharePreparing, "_check_doubtful", return_value=None):
        yield


def without(guard: str) -> str:
    """Return Python code that removes the named guard in the process that runs it. Without a name,
    return an empty string."""
    return (
        "import contextlib\nfrom tests.security.weakened import GUARDS\n"
        "_kept = contextlib.ExitStack()\n"  # an unreferenced generator would restore the guard
        f"_kept.enter_context(GUARDS[{guard!r}]())"
        if guard
        else ""
    )


@contextlib.contextmanager
def says_nothing_before_tls() -> Iterator[None]:
    """Let the NATS client continue without TLS if the server does not offer it."""
    from apportion.runtime.jetstream.nats_client import Client, LeavingClient  # noqa: PLC0415

    with mock.patch.object(LeavingClient, "_connect_command", Client._connect_command):
        yield


@contextlib.contextmanager
def believes_its_ca_alone() -> Iterator[None]:
    """Remove a guard, so that a client accepts any server certificate."""
    from apportion.runtime.process.tls import ClientTls  # noqa: PLC0415

    made = ClientTls.context

    def credulous(self: ClientTls) -> ssl.SSLContext:
        context = made(self)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context

    with mock.patch.object(ClientTls, "context", credulous):
        yield


@contextlib.contextmanager
def asks_what_is_enabled() -> Iterator[None]:
    """Remove a guard, so that every event format counts as enabled, even one that no operator has
    enabled."""
    from apportion.core.ledger.rules import Rules  # noqa: PLC0415

    with mock.patch.object(Rules, "legal", return_value=True):
        yield


@contextlib.contextmanager
def knows_the_node_of_a_token() -> Iterator[None]:
    """Remove a guard, so that an agent's token permits reports for any node."""
    from apportion.callout import answering  # noqa: PLC0415
    from apportion.core.identity.bearers import identity_of  # noqa: PLC0415
    from apportion.core.identity.identity import EVERY_NODE, Identity  # noqa: PLC0415

    def everywhere(*given: Any) -> Identity:
        return msgspec.structs.replace(identity_of(*given), nodes=(EVERY_NODE,))

    with mock.patch.object(answering, "identity_of", everywhere):
        yield


@contextlib.contextmanager
def looks_for_what_is_set_aside() -> Iterator[None]:
    """Remove a guard, so that a halted reader never resumes, because it does not notice that its
    event was set aside."""
    from apportion.runtime.ledger.reader import Reader  # noqa: PLC0415

    async def never(_: object) -> None:
        await asyncio.Event().wait()

    with mock.patch.object(Reader, "superseded", never):
        yield


@contextlib.contextmanager
def reviews_few_of_a_host() -> Iterator[None]:
    """Remove a guard, so that the callout sends every invented token to the API server."""
    from apportion.callout import tokens  # noqa: PLC0415

    with mock.patch.object(tokens, "REFUSED_BURST", 1 << 30):
        yield


@contextlib.contextmanager
def asks_for_its_audience() -> Iterator[None]:
    """Remove a guard, so that the callout accepts a token for any audience."""
    from apportion.callout.claims import payload_of  # noqa: PLC0415
    from apportion.callout.tokens import Reviewed, Tokens  # noqa: PLC0415

    review = Tokens.review

    async def any_audience(self: Tokens, token: str, *whose: str) -> Reviewed:
        self._audience = json.loads(payload_of(token.encode()))["aud"][0]
        return await review(self, token, *whose)

    with mock.patch.object(Tokens, "review", any_audience):
        yield


@contextlib.contextmanager
def holds_a_placement_to_its_turn() -> Iterator[None]:
    """Remove a guard, so that readers apply a placement with an outdated attempt number.

    They also apply a placement that does not follow the node's newest placement."""
    from msgspec import structs  # noqa: PLC0415

    from apportion.core.ledger.fold import HANDLERS  # noqa: PLC0415
    from apportion_schemas import PodPlaced  # noqa: PLC0415

    place = HANDLERS[PodPlaced]

    def credulous(context: Any, data: PodPlaced) -> Any:
        pod, node = context.state.pods.get(data.pod), context.state.nodes.get(data.node)
        if pod is not None and node is not None:
            pod.attempt = data.attempt
            data = structs.replace(data, previous=node.chain)
        return place(context, data)

    with mock.patch.dict(HANDLERS, {PodPlaced: credulous}):
        yield


@contextlib.contextmanager
def halts_at_its_own_fault() -> Iterator[None]:
    """Let a reader skip an event at which its fold fails."""
    from apportion.runtime.ledger.reader import Reader  # noqa: PLC0415

    def careless(self: Any, record: Any, event: object) -> Any:
        try:
            return self._fold.apply(record, event)
        except ZeroDivisionError:
            return self._fold.refuse(record, "passed over")

    with mock.patch.object(Reader, "_apply", careless):
        yield


@contextlib.contextmanager
def writes_one_event_a_line() -> Iterator[None]:
    """Remove a guard, so that the human-readable log prints text from outside unescaped, with its
    line breaks."""
    from apportion.runtime.process import logs  # noqa: PLC0415

    with mock.patch.object(logs, "one_event_a_line", lambda event: event):
        yield


@contextlib.contextmanager
def escapes_what_it_prints() -> Iterator[None]:
    """Remove a guard, so that the command line prints text from the ledger unescaped."""
    from apportion.cli.render import output, rows  # noqa: PLC0415

    def same(text: object, **_: object) -> Any:
        return text

    with (
        mock.patch.object(output, "escaped_json", same),
        mock.patch.object(output, "escaped", same),
        mock.patch.object(output, "clean", same),
        mock.patch.object(rows, "clean", same),
    ):
        yield


@contextlib.contextmanager
def limits_each_client() -> Iterator[None]:
    """Remove a guard, so that one client may use all of a shared resource, and half-sent requests
    stay open."""
    from apportion.gateway.api import live  # noqa: PLC0415
    from apportion.runtime.service.http import HttpServer  # noqa: PLC0415
    from apportion.runtime.service.limits import Limits, Turns  # noqa: PLC0415

    most = 1 << 30
    limits = Limits(
        connections_each=most, each_per_s=0, each_at_once=most, head_s=3600, body_s=3600
    )
    defaults = HttpServer.__init__.__kwdefaults__ or {}
    turns = Turns.__init__.__kwdefaults__ or {}
    with (
        mock.patch.dict(defaults, limits=limits),
        mock.patch.dict(turns, each=most, waiting=0),
        mock.patch.object(live, "EACH_MAX", most),
    ):
        yield


@contextlib.contextmanager
def reads_the_past_by_turns() -> Iterator[None]:
    """Remove a guard, so that the gateway uses a separate consumer for each client that reads old
    events."""
    from apportion.gateway.past.chronicle import Chronicle  # noqa: PLC0415
    from apportion.gateway.past_process import PIECE_EVENTS, Pieces  # noqa: PLC0415
    from apportion.runtime.ledger.port import Record  # noqa: PLC0415

    async def behind(pieces: Pieces, revision: int) -> list[Record]:
        chronicle = pieces._records
        assert isinstance(chronicle, Chronicle)
        _, last = await chronicle.span()
        found: list[Record] = []
        upto = min(last, revision + PIECE_EVENTS)
        await chronicle._read_ledger(found.append, after=revision, upto=upto)
        return found

    with mock.patch.object(Pieces, "behind", behind):
        yield


@contextlib.contextmanager
def masks_by_turns() -> Iterator[None]:
    """Let the gateway redact all answers at once, on its event loop."""
    from apportion.gateway.access import gate  # noqa: PLC0415
    from apportion.gateway.api import api  # noqa: PLC0415
    from apportion.runtime.service.limits import Turns  # noqa: PLC0415

    def at_once() -> Turns:
        return Turns(10_000, each=10_000)

    class Inline(Executor):
        def submit(self, work: Any, /, *args: Any, **named: Any) -> Future[Any]:
            done: Future[Any] = Future()
            done.set_result(work(*args, **named))
            return done

    with (
        mock.patch.object(api, "short_turns", at_once),
        mock.patch.object(gate, "short_turns", at_once),
        mock.patch.object(gate, "ThreadPoolExecutor", return_value=Inline()),
    ):
        yield


@contextlib.contextmanager
def shows_what_is_seen() -> Iterator[None]:
    """Remove a guard, so that any logged-in user can read every namespace."""
    from apportion.gateway.access import gate  # noqa: PLC0415

    async def everything(body: bytes, *_: object) -> bytes:
        return body

    async def allowed(*_: object) -> None:
        return None

    with (
        mock.patch.object(gate, "shown", everything),
        mock.patch.object(gate.Gate, "require", allowed),
    ):
        yield


@contextlib.contextmanager
def auditors_apart() -> Iterator[None]:
    """Put auditors into the ledger's NATS account, where they can change any consumer."""
    from apportion.core.identity import permissions, roles  # noqa: PLC0415

    auditor = roles.BY_NAME["auditor"]
    wide = msgspec.structs.replace(auditor, account=roles.LEDGER, reads="everything")
    with (
        mock.patch.dict(roles.BY_NAME, {"auditor": wide}),
        mock.patch.object(permissions, "_foreign", return_value=()),
    ):
        yield


@contextlib.contextmanager
def auditors_by_name() -> Iterator[None]:
    """Let an auditor create, read from and delete any consumer in the auditors' account."""
    from apportion.core.identity import permissions  # noqa: PLC0415

    with (
        mock.patch.object(permissions, "consumers_of", return_value=("*",)),
        mock.patch.object(permissions, "_foreign", return_value=()),
    ):
        yield


@contextlib.contextmanager
def auditors_beside_their_copy() -> Iterator[None]:
    """Put auditors into the NATS account that has their copy of the ledger."""
    from apportion.core.identity import roles  # noqa: PLC0415

    within = msgspec.structs.replace(roles.BY_NAME["auditor"], account=roles.AUDIT)
    with mock.patch.dict(roles.BY_NAME, {"auditor": within}):
        yield


@contextlib.contextmanager
def one_node_reads_its_part() -> Iterator[None]:
    """Let the key of one node's agent read the whole ledger."""
    from apportion.core.identity.identity import Identity  # noqa: PLC0415

    with mock.patch.object(Identity, "one_node", property(lambda _: False)):
        yield


@contextlib.contextmanager
def a_token_opens_few_connections() -> Iterator[None]:
    """Remove the limit on connections per token."""
    from apportion.callout import tokens  # noqa: PLC0415

    with mock.patch.object(tokens, "OPENED_BURST", 1e9):
        yield


GUARDS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    **AGENT_GUARDS,
    "a token opens few connections": a_token_opens_few_connections,
    "auditors apart": auditors_apart,
    "auditors beside their copy": auditors_beside_their_copy,
    "auditors by name": auditors_by_name,
    **INTAKE_GUARDS,
    "asks its book": asks_its_book,
    "asks for its audience": asks_for_its_audience,
    "knows the node of a token": knows_the_node_of_a_token,
    "counts documents": counts_documents,
    "doubts annotations": doubts_annotations,
    "escapes what it prints": escapes_what_it_prints,
    "halts at its own fault": halts_at_its_own_fault,
    "holds a placement to its turn": holds_a_placement_to_its_turn,
    "holds what was asked": holds_what_was_asked,
    "limits each client": limits_each_client,
    "limits of the extender": functools.partial(limits_of, "apportion.extender.main"),
    "limits of the webhook": functools.partial(limits_of, "apportion.admission.main"),
    "looks at the ledger": looks_at_the_ledger,
    "looks for what is set aside": looks_for_what_is_set_aside,
    "reads the past by turns": reads_the_past_by_turns,
    "reviews few of a host": reviews_few_of_a_host,
    "says nothing before TLS": says_nothing_before_tls,
    "asks what is enabled": asks_what_is_enabled,
    "believes its CA alone": believes_its_ca_alone,
    "masks by turns": masks_by_turns,
    "one node reads its part": one_node_reads_its_part,
    "shows what is seen": shows_what_is_seen,
    "stays in the folder": stays_in_the_folder,
    "writes one event a line": writes_one_event_a_line,
}
"""For each guard's name, the function that removes the guard within a `with` block."""


def guarded_but(guard: str) -> AbstractContextManager[None]:
    """Remove the named guard in this process while the block runs. An empty name removes none."""
    return GUARDS[guard]() if guard else contextlib.nullcontext()


def main() -> None:
    """Run an `apportion` command without a guard. The arguments name the command and the guard."""
    guard, separator, *arguments = sys.argv[1:]
    if separator != "--" or guard not in GUARDS:
        sys.exit(f"usage: python -m tests.security.weakened {{{','.join(GUARDS)}}} -- VERB ...")
    from apportion.cli.main import root  # noqa: PLC0415 - a guard may stand where it is imported

    with GUARDS[guard]():
        root.main(arguments, prog_name="apportion")


if __name__ == "__main__":
    main()
