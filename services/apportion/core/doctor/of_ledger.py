"""Checks of the ledger: its server, its stream, its clocks, and what a restart needs of it."""

from typing import Final

from apportion.core.doctor.facts import Facts
from apportion.core.doctor.found import Found, age, broken, counted, ok, size, soon

SKEW_SOON_S: Final = 2.0
SKEW_BROKEN_S: Final = 30.0
"""Clocks order nothing in the ledger, but times are what people read, and leases hang on them."""
DISK_SOON: Final = 0.8
DISK_BROKEN: Final = 0.95
LONG_EVENTS: Final = 100_000
"""So many events without a snapshot make every restart a matter of seconds."""
REPLICAS: Final = 3
ARCHIVE_AGE_SOON_S: Final = 8 * 86_400.0
RECEIPT_AGE_SOON_S: Final = 25 * 3_600.0
"""Hourly, or at least daily."""


def reachable(facts: Facts) -> Found | None:
    """Whether the ledger answers at all."""
    if facts.ledger_problem:
        fix = (
            "where no nats-server runs, start it, or tell where it is: --nats URL or "
            "APPORTION_NATS_URL; one that runs and does not answer is stopped, or has no processor "
            "or disk: look at its process and its log"
        )
        return broken(facts.ledger_problem, fix)
    ledger = facts.ledger
    if ledger is None:
        return None
    first, last = ledger.first_revision, ledger.last_revision
    return ok(f"answers, as {ledger.user}; revisions {first:,} to {last:,}")


def server(facts: Facts) -> Found | None:
    """The version of nats-server; connecting has refused one that is too old."""
    ledger = facts.ledger
    if ledger is None:
        return None
    return ok(f"nats-server {ledger.server}; {ledger.oldest} is needed")


def durability(facts: Facts) -> Found | None:
    """Whether what is acknowledged is on the disk (`sync_interval: always`)."""
    ledger = facts.ledger
    if ledger is None:
        return None
    if ledger.sync_always is None:
        return soon(
            "nobody can see from here whether the server syncs each write before it answers",
            "give --monitor URL of its monitoring port, and set `jetstream { sync_interval: always "
            "}` as the nats.conf that comes with Apportion does",
        )
    if not ledger.sync_always:
        return broken(
            "the server answers before a write is on the disk: a power cut loses up to two "
            "minutes of the ledger",
            "set `jetstream { sync_interval: always }` in its configuration and restart it",
        )
    return ok("every write is on the disk before it is acknowledged (sync_interval: always)")


def replicas(facts: Facts) -> Found | None:
    """How many servers hold the stream, and whether each holds all of it."""
    ledger = facts.ledger
    if ledger is None:
        return None
    if ledger.lagging:
        return broken(
            f"{counted(ledger.lagging, 'server')} of {ledger.replicas} not in step with the leader",
            "look at the log and the disk of that server",
        )
    if ledger.replicas < REPLICAS:
        return soon(
            f"{ledger.replicas} server holds the ledger: it is as safe as that disk",
            "in production run three servers, and `apportion ledger create --replicas 3`",
        )
    return ok(f"{ledger.replicas} servers hold the ledger, all in step")


def stream(facts: Facts) -> Found | None:
    """Whether the stream has the settings that the ledger's promises rest on."""
    ledger = facts.ledger
    if ledger is None:
        return None
    if ledger.drifted:
        return broken("; ".join(ledger.drifted), "`apportion ledger check` names each setting")
    if ledger.lost_records:
        return broken(
            f"{ledger.lost_records:,} events are gone from the middle of the ledger",
            "`apportion verify` names the first; keep a copy of the server's store",
        )
    return ok("the stream's settings are as Apportion makes them")


def disk(facts: Facts) -> Found | None:
    """How full the stream and the disk of its server are."""
    ledger = facts.ledger
    if ledger is None:
        return None
    takes = f"the ledger takes {size(ledger.size_bytes)}"
    parts = [
        (ledger.size_bytes, ledger.max_bytes, "; it may take {most} ({part:.0%})"),
        (
            ledger.store_bytes,
            ledger.store_max_bytes,
            "; with all that is there {used} of {most} of its server's disk are used ({part:.0%})",
        ),
    ]
    limited = [part for part in parts if part[1] > 0]
    full = facts.frozen == "ledger-full"
    if not limited and not full:
        return ok(f"{takes}; no limit is seen from here")
    used, most, said = max(limited, key=lambda part: part[0] / part[1], default=(0, 1, ""))
    words = takes + said.format(used=size(used), most=size(most), part=used / most)
    words += "; it takes no more" if full else ""
    fix = (
        "archive and trim it: `apportion ledger archive FILE`, `apportion ledger trim`; or give it "
        "more: `apportion ledger resize`, and max_file_store of the server"
    )
    if used / most >= DISK_BROKEN or full:
        return broken(words, fix)
    return soon(words, fix) if used / most >= DISK_SOON else ok(words)


def clocks(facts: Facts) -> Found | None:
    """Whether clocks agree with that of the ledger's server."""
    ledger = facts.ledger
    if ledger is None or not ledger.skews:
        return None
    worst = max(ledger.skews, key=lambda skew: abs(skew.seconds))
    seconds = abs(worst.seconds)
    if seconds < SKEW_SOON_S:
        return ok(f"{len(ledger.skews)} clocks agree with the server's within {SKEW_SOON_S:g} s")
    side = "before" if worst.seconds > 0 else "behind"
    words = f"the clock of {worst.who} is {age(seconds)} {side} that of the ledger's server"
    fix = "let NTP set the clocks (chrony, systemd-timesyncd)"
    return broken(words, fix) if seconds >= SKEW_BROKEN_S else soon(words, fix)


def permissions(facts: Facts) -> Found | None:
    """Whether the user may do what its role does."""
    ledger = facts.ledger
    if ledger is None or ledger.missing is None:
        return None
    if ledger.missing:
        return broken(
            f"{ledger.user} may not use {counted(ledger.missing, 'subject')}",
            "take over the role's permissions from the nats.conf of this version",
        )
    return ok(f"{ledger.user} may do all that its role does")


def snapshots(facts: Facts) -> Found | None:
    """Whether a restart folds a tail, or the whole ledger."""
    ledger = facts.ledger
    if ledger is None:
        return None
    behind = ledger.last_revision - max(ledger.snapshot_revision, ledger.first_revision - 1)
    if not ledger.snapshot_revision and ledger.first_revision > 1:
        return broken(
            "the ledger's beginning was dropped and there is no snapshot: nothing can start",
            "put the beginning back from an archive; see recovery",
        )
    if ledger.snapshots_doubtful:
        return broken(
            f"{ledger.snapshots_doubtful} snapshots are attested by no intake, and not used",
            "look at the /readyz and the log of the intakes: either none runs, or a snapshot is "
            "forged; then replace the schedulers' key and delete it",
        )
    if behind > LONG_EVENTS:
        return soon(
            f"{behind:,} events since the newest snapshot: each restart folds them",
            "run a scheduler with --snapshot-every, and look at its log",
        )
    if not ledger.snapshot_revision:
        return ok(f"none yet: the ledger has {behind:,} events")
    since = age(ledger.snapshot_age_s)
    return ok(f"the newest is {since} old, {behind:,} events behind the end")


def archives(facts: Facts) -> Found | None:
    """Whether there is a copy of the ledger, and how old it is."""
    found = facts.archives
    if found is None:
        return None
    fix = "`apportion ledger archive FILE` every day, kept elsewhere"
    if not found.archives:
        return soon(f"no archive (*.jsonl) in {found.folder}", fix)
    words = f"{found.archives} in {found.folder}, the newest {age(found.newest_age_s)} old"
    return soon(words, fix) if found.newest_age_s > ARCHIVE_AGE_SOON_S else ok(words)


def receipts(facts: Facts) -> Found | None:
    """Whether somebody signs what the ledger holds, and how long ago that was."""
    found = facts.receipts
    if found is None:
        return None
    fix = "`apportion receipt write` every hour, by somebody who does not run the ledger"
    if not found.last:
        return soon(f"no receipt in {found.folder}", fix)
    newest = facts.ledger.last_revision if facts.ledger else 0
    behind = f", and {newest - found.last:,} events since" if newest > found.last else ""
    words = f"signed up to revision {found.last:,}, {age(found.newest_age_s)} ago{behind}"
    return soon(words, fix) if behind and found.newest_age_s > RECEIPT_AGE_SOON_S else ok(words)
