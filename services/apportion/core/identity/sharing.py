"""What the account of the ledger shares with the other accounts, and with that of auditors.

The server sends the answer to a request to whatever subject the request names, and does not check
whether its sender may send there: one who may ask for the stream's state could have the answer sent
into the ledger, or to the API that purges it. So a client that is not trusted with that has an
account of its own. What it asks comes over as a service, and the answer goes back into its own
account whatever it wrote, and to no client outside it. What is said to all goes as a stream from
the account of its sender to those in which it is heard.

Auditors have a copy of the stream, in an account with JetStream and limits of its own: what they
ask and use up is theirs. They are beside it as others are beside the ledger: an answer to one of
them that reached the copy's own account could have the copy deleted. What the server itself needs
to make the copy comes over from the ledger. Only bootstrap's account reaches the copy to make it
and to drop its beginning: what the ledger's own account reaches, so does every consumer of the
ledger, by where it delivers.

Invariants: between two accounts passes what the table of roles says, and nothing else. The server
hands an answer on to a service of another account only where that is taken under a subject without
a wildcard; so none is, but what all in the account may send to."""

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

BESIDE: Final = tuple(
    dict.fromkeys(role.account for role in ROLES if role.account not in (LEDGER, AUTH))
)
"""The accounts of those who use the ledger, or the copy of it, and are not in its own."""
_ALL: Final = (LEDGER, *BESIDE)
"""The accounts of all who say something to all, or hear it."""
_DELIVERED: Final = {LEDGER: f"{DELIVERIES}.>", AUDIT: ">"}
"""What consumers of each of the two streams deliver to other accounts.

Those of auditors deliver wherever their tools like to be answered, below the inbox of each: what of
it somebody may hear, his permissions say, and nothing else is said where the copy is.
"""
_MADE: Final = ("INFO", "CREATE", "PURGE")
"""What bootstrap may do with the auditors' copy."""
_COPY_API: Final = f"$JS.{AUDIT}.API."
"""How it says that the copy is meant."""
_COPYING: Final = ("$JS.API.CONSUMER.CREATE.APPORTION", "$JS.FC.APPORTION.>")
"""What the server needs to copy the stream; no user may send on it."""
_COPIED: Final = "copy.audit.>"
"""What comes of the stream for the copy."""
_SAID: Final = ("apportion.beat.", "apportion.usage.")
"""The beginnings of what is said to all, and that no client answers."""
_STORE_API: Final = f"$JS.{STORE}.API."
"""The prefix of requests to the account that has the buckets."""
_OBJECTS: Final = "$O."
"""The prefix of what is put into a bucket."""
_OWN: Final = "$SYS."
"""The beginning of what the server answers to each account by itself."""
_API: Final = "$JS.API."
_WHOLE_API: Final = f"{_API}>"
"""An account without JetStream imports this from the server's own account, to be told that it has
none; only where this very subject is another's does it come to the ledger. What of it somebody may
ask, his permissions say.
"""


def sharing(account: str) -> Iterator[str]:
    """The lines of an account that say what it gives to others, and what it takes."""
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
        if listening:  # none would be everybody
            yield f'{{ stream: "{subject}", accounts: [{", ".join(listening)}] }}'


def _takes(account: str) -> Iterator[str]:
    # Bootstrap makes the auditors' copy, and the server keeps it.
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
    """What those of an account say to all, and the events that they write.

    It goes to each who hears it from where it is said, and from nowhere else: then it is heard
    once, on whichever server of a cluster the client is. What came into an account as a service, as
    events come into the ledger's, its server gives to no other as a stream."""
    said = (*_SAID, f"{SUBJECTS}.")
    sent = (subject for role in ROLES if role.account == account for subject in _sent(role))
    return dict.fromkeys(subject for subject in sent if subject.startswith(said))


def _overheard(account: str, giver: str) -> tuple[str, ...]:
    """What of that is heard in another account, by those who have not asked for it."""
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
    """Whether all of the subject is of the pattern."""
    return subject == pattern or (pattern.endswith(".>") and subject.startswith(pattern[:-1]))


def _services(giver: str) -> dict[str, list[str]]:
    """What those of other accounts ask of this one, and their accounts, each once."""
    nowhere = (_OWN, _COPY_API, _STORE_API, _OBJECTS, ANSWERS_BESIDE, *_SAID)
    found: dict[str, dict[str, None]] = {}
    for role in ROLES:
        if role.account in _ALL and role.account != giver:
            asked = (each for each in _sent(role) if not each.startswith(nowhere))
            for each in asked:
                request = _WHOLE_API if each.startswith(_API) else each
                for answerer, subject in _answered(request, role.account):
                    if answerer == giver:
                        found.setdefault(subject, {})[role.account] = None
    return {subject: list(accounts) for subject, accounts in found.items()}


def _imports(kind: str, account: str, subjects: Iterable[str]) -> Iterator[str]:
    for subject in subjects:
        yield f'{{ {kind}: {{ account: {account}, subject: "{subject}" }} }}'


def _kept(keeper: str) -> dict[str, list[str]]:
    """Subjects of the buckets that `keeper` answers, and the accounts that ask there, each once.

    The auditors' account has no bucket, and answers auditors that it has none. What of the API
    somebody may ask, his permissions say, as with the ledger."""
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
    """The account of the stream that those of this one read."""
    copied = any(role.account == account and role.reads == "copy" for role in ROLES)
    return AUDIT if copied else LEDGER


def _answered(asked: str, account: str) -> list[tuple[str, str]]:
    """Who answers it: accounts, with their subjects; where no role does, that of the stream."""
    return [
        (role.account, subject)
        for role in ROLES
        if role.answering or ANSWERS_BESIDE in role.sends
        for pattern in role.hears
        if _within(subject := pattern.format(node=EVERY_NODE), asked)
    ] or [(_read_in(account), asked)]
