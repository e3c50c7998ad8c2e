"""Configure which subjects other accounts share with the ledger's and the auditors' accounts.

The server sends the reply to a request to any subject that the request names. So a client with
access to the stream's API could have a reply sent into the ledger, or to the API that purges it.
Therefore untrusted clients have accounts of their own, in which all replies to them stay. Their
requests are imported as services. Broadcasts are shared as streams from the sender's account to
those of the subscribers.

Auditors use a copy of the stream, in an account with its own JetStream limits. The auditors
themselves are not in that account, because a reply that reached it could delete the copy. Only
bootstrap's account can create the copy and drop its beginning.

Invariants: only what the table of roles contains passes between accounts. The server forwards a
reply to another account only through an import without wildcards. So every import has wildcards,
except for subjects that every client may publish to."""

from collections.abc import Iterable, Iterator
from typing import Final

from apportion.core.identity.identity import EVERY_NODE, Identity
from apportion.core.identity.permissions import DELIVERIES, permissions_of
from apportion.core.identity.roles import (
    ANSWERS_BESIDE,
    AUDIT,
    AUTH,
    BOOTSTRAP,
    LEDGER,
    ROLES,
    STORE,
    Role,
)
from apportion_schemas.catalogue import SUBJECTS

# The accounts of all users of the ledger or its copy; none is in the ledger's own account
BESIDE: Final = tuple(
    dict.fromkeys(role.account for role in ROLES if role.account not in (LEDGER, AUTH))
)
_ALL: Final = (LEDGER, *BESIDE)  # the accounts that send or receive broadcasts
_DELIVERED: Final = {LEDGER: f"{DELIVERIES}.>", AUDIT: ">"}
"""The subjects on which other accounts receive messages from consumers of the two streams.

Auditors' consumers deliver below any inbox, because tools choose it. Their permissions limit what
each may receive, and the copy's account has no other messages."""
_MADE: Final = ("INFO", "CREATE", "PURGE")  # what bootstrap may do with the auditors' copy
_COPY_API: Final = f"$JS.{AUDIT}.API."  # bootstrap's prefix for requests about the copy
# Subjects that the server needs to copy the stream; no user may publish on them
_COPYING: Final = ("$JS.API.CONSUMER.CREATE.APPORTION", "$JS.FC.APPORTION.>")
_COPIED: Final = "copy.audit.>"  # messages of the stream for the copy
# Prefixes of broadcasts, which no client answers
_SAID: Final = ("apportion.beat.", "apportion.usage.")
_STORE_API: Final = f"$JS.{STORE}.API."  # prefix of requests to the account with the buckets
_OBJECTS: Final = "$O."  # prefix of objects in a bucket
_OWN: Final = "$SYS."  # prefix of requests that the server answers within each account
_API: Final = "$JS.API."
_WHOLE_API: Final = f"{_API}>"
"""Only an import of exactly this subject replaces the server's default, which returns an error.

A user's permissions limit which JetStream API requests the user may send through it."""


def sharing(account: str) -> Iterator[str]:
    """Yield the lines of nats-server's configuration for an account's exports and imports."""
    for key, lines in (("exports", list(_gives(account))), ("imports", list(_takes(account)))):
        if lines:
            yield f"    {key}: ["
            yield from (f"      {line}" for line in lines)
            yield "    ]"


def _gives(account: str) -> Iterator[str]:
    if account == AUDIT:  # the copy; see `_takes`
        for verb in _MADE:
            yield f'{{ service: "{_API}STREAM.{verb}.APPORTION", accounts: [{BOOTSTRAP}] }}'
    if account == LEDGER:
        for subject in _COPYING:
            yield f'{{ service: "{subject}", accounts: [{AUDIT}] }}'
        yield f'{{ stream: "{_COPIED}", accounts: [{AUDIT}] }}'
    for subject, askers in (*_kept(account).items(), *_services(account).items()):
        many = ", response_type: stream" if subject == _WHOLE_API else ""
        yield f'{{ service: "{subject}", accounts: [{", ".join(askers)}]{many} }}'
    readers = [each for each in BESIDE if _reads(each) and _read_in(each) == account]
    if readers:
        yield f'{{ stream: "{_DELIVERED[account]}", accounts: [{", ".join(readers)}] }}'
    for subject in _said(account):
        listening = [each for each in _ALL if subject in _overheard(each, account)]
        if listening:  # an empty list would export to every account
            yield f'{{ stream: "{subject}", accounts: [{", ".join(listening)}] }}'


def _takes(account: str) -> Iterator[str]:
    # Bootstrap creates the auditors' copy, and the server fills it.
    if account == BOOTSTRAP:
        for verb in _MADE:
            subject = f"STREAM.{verb}.APPORTION"
            there = f'{{ account: {AUDIT}, subject: "{_API}{subject}" }}'
            yield f'{{ service: {there}, to: "{_COPY_API}{subject}" }}'
    if account == AUDIT:
        for subject in _COPYING:
            here = subject.replace("$JS.API.", f"$JS.{LEDGER}.API.")
            there = f'{{ account: {LEDGER}, subject: "{subject}" }}'
            yield f'{{ service: {there}, to: "{here}" }}'
        yield from _imports("stream", LEDGER, [_COPIED])
    for keeper in (STORE, AUDIT):
        for subject, askers in _kept(keeper).items():
            if account in askers:
                there = f'{{ account: {keeper}, subject: "{subject}" }}'
                to = f', to: "{_STORE_API}>"' if subject == _WHOLE_API else ""
                yield f"{{ service: {there}{to} }}"
    for giver in (*_ALL, AUDIT):
        asks = [subject for subject, askers in _services(giver).items() if account in askers]
        yield from _imports("service", giver, asks)
    if account in BESIDE and _reads(account):
        stream = _read_in(account)
        yield from _imports("stream", stream, [_DELIVERED[stream]])
    for giver in _ALL:
        yield from _imports("stream", giver, _overheard(account, giver))


def _said(account: str) -> Iterable[str]:
    """Return the subjects that an account exports as NATS streams.

    These are its broadcasts (heartbeats and usage) and the events that its roles append. An account
    exports only its own messages. Otherwise a subscriber in a cluster could get a message twice."""
    said = (*_SAID, f"{SUBJECTS}.")
    sent = (subject for role in ROLES if role.account == account for subject in _sent(role))
    return dict.fromkeys(subject for subject in sent if subject.startswith(said))


def _overheard(account: str, giver: str) -> tuple[str, ...]:
    hears = [
        pattern
        for role in ROLES
        if role.account == account and not role.answering
        for pattern in role.hears
    ]
    return tuple(
        subject
        for subject in _said(giver)
        if account != giver and any(_within(subject, pattern) for pattern in hears)
    )


def _within(subject: str, pattern: str) -> bool:
    return subject == pattern or (pattern.endswith(".>") and subject.startswith(pattern[:-1]))


def _services(giver: str) -> dict[str, list[str]]:
    nowhere = (_OWN, _COPY_API, _STORE_API, _OBJECTS, ANSWERS_BESIDE, *_SAID)
    found: dict[str, dict[str, None]] = {}
    for role in ROLES:
        if role.account in _ALL and role.account != giver:
            asked = (each for each in _sent(role) if not each.startswith(nowhere))
            for each in asked:
                request = _WHOLE_API if each.startswith(_API) else each
                answered: list[tuple[str, str]] = [
                    (other.account, subject)
                    for other in ROLES
                    if other.answering or ANSWERS_BESIDE in other.sends
                    for pattern in other.hears
                    if _within(subject := pattern.format(node=EVERY_NODE), request)
                ] or [(_read_in(role.account), request)]  # the stream, if no role answers it
                for answerer, subject in answered:
                    if answerer == giver:
                        found.setdefault(subject, {})[role.account] = None
    return {subject: list(accounts) for subject, accounts in found.items()}


def _imports(kind: str, account: str, subjects: Iterable[str]) -> Iterator[str]:
    for subject in subjects:
        yield f'{{ {kind}: {{ account: {account}, subject: "{subject}" }} }}'


def _kept(keeper: str) -> dict[str, list[str]]:
    """Return the bucket subjects that account `keeper` serves, each with the accounts using it."""
    found: dict[str, dict[str, None]] = {}
    for role in ROLES:
        if keeper == (AUDIT if role.reads == "copy" else STORE):
            for sent in _sent(role):
                if sent.startswith((_STORE_API, _OBJECTS)):
                    subject = _WHOLE_API if sent.startswith(_STORE_API) else sent
                    found.setdefault(subject, {})[role.account] = None
    return {subject: list(accounts) for subject, accounts in found.items()}


def _sent(role: Role) -> tuple[str, ...]:
    anybody = Identity(role.name, role.name, nodes=(EVERY_NODE,), shared=True)
    return permissions_of(anybody).publish


def _reads(account: str) -> bool:
    return any(role.account == account and role.reads != "nothing" for role in ROLES)


def _read_in(account: str) -> str:
    copied = any(role.account == account and role.reads == "copy" for role in ROLES)
    return AUDIT if copied else LEDGER
