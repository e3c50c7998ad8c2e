"""Tests of the usage account, which adds up a node's GPU usage over an hour. The account has sums
over time and peaks, and survives restarts of the agent."""

import pytest

from apportion.agent.usage.account import Account, restored, saved
from apportion.agent.usage.owners import Owner
from apportion.agent.usage.uses import Look, Unshared, Use
from apportion_schemas import UsageRecorded
from apportion_schemas.usage import SHARES_MAX

MIB = 1 << 20


def use(pod: str = "uid-1", *, mib: int = 0, cores: int | None = 0, limit: int = 1_000) -> Use:
    limits = limit * MIB, mib * MIB, 30, cores
    return Use(pod, "default", "pod", "main", 0, "GPU-1", None, *limits)


def stranger(pid: int, mib: int) -> Unshared:
    """Return a sample of a process that uses the GPU without a share."""
    return Unshared("GPU-1", pid, Owner("", "", pid, "Xorg"), mib * MIB)


def records(account: Account) -> list[UsageRecorded]:
    """Return the usage events of the account, as if it had run for one hour."""
    account.ended_s = account.began_s + 3_600
    return list(account.records("n1"))


def recorded(account: Account) -> UsageRecorded:
    """Return the only usage event of the account."""
    (record,) = records(account)
    return record


def test_integrals_and_peaks() -> None:
    """The account weights each sample by the seconds since the previous sample. Its usage event has
    the weighted sums (integrals) and the peaks."""
    account = Account(0)
    account.add(Look((use(mib=100, cores=10),)), 5)
    account.add(Look((use(mib=400, cores=40, limit=2_000),)), 10)
    account.add(Look(), 5)
    (share,) = recorded(account).shares
    assert (share.seconds, share.memory_mib, share.cores) == (15, 2_000, 30)
    assert (share.memory_mib_seconds, share.memory_mib_peak) == (4_500, 400)
    assert (share.cores_seconds, share.cores_peak) == (450, 40)


def test_compute_that_nobody_tells_is_not_zero() -> None:
    """If the driver reports no compute usage, the event records it as unknown, not as zero."""
    account = Account(0)
    account.add(Look((use(cores=None),)), 5)
    (share,) = recorded(account).shares
    assert (share.cores_seconds, share.cores_peak) == (None, None)


def test_an_hour_that_was_measured_only_in_part_shows_no_idleness() -> None:
    """If compute was not measured for more than a minute, a record with little work reports no
    compute. Work that was measured is reported."""
    account = Account(0)
    for cores, seconds in ((0, 5), (None, 60)):
        account.add(Look((use("a", cores=cores),)), seconds)
    account.add(Look((use("b", cores=3), use("c", cores=80))), 5)
    account.add(Look((use("b", cores=None), use("c", cores=None))), 61)
    found = {each.pod: (each.cores_seconds, each.cores_peak) for each in recorded(account).shares}
    assert found == {"a": (0, 0), "b": (None, None), "c": (400, 80)}


def test_strangers_are_summed_by_program() -> None:
    """The account adds up the usage of processes without a share by program name."""
    account = Account(0)
    account.add(Look(unshared=(stranger(1, 100), stranger(2, 50))), 10)
    account.add(Look(unshared=(stranger(3, 20),)), 10)
    (program,) = recorded(account).unshared
    assert (program.command, program.seconds) == ("Xorg", 20)
    assert (program.memory_mib_seconds, program.memory_mib_peak) == (1_700, 150)


def test_an_hour_without_anything_is_no_event() -> None:
    """If nothing was used for an hour, the account produces no event."""
    account = Account(0)
    account.add(Look(), 5)
    assert not records(account)


def test_many_shares_are_several_events() -> None:
    """If there are more shares than one usage event may hold, the account writes several events.
    Each share is in exactly one of these events."""
    account = Account(0)
    account.add(
        Look(tuple(use(f"uid-{n}") for n in range(SHARES_MAX + 1)), unshared=(stranger(1, 1),)), 5
    )
    first, second = records(account)
    assert (len(first.shares), len(second.shares)) == (SHARES_MAX, 1)
    assert (len(first.unshared), len(second.unshared)) == (1, 0)


def test_it_survives_its_agent() -> None:
    """After a restart, the agent loads its usage account from disk and continues with the same
    start time and totals."""
    account = Account(7)
    account.add(Look((use(mib=100),), unshared=(stranger(1, 1),)), 5)
    closed = Account(1)
    closed.ended_s = 7.0
    before, again = restored(saved([closed, account]))
    assert (before.began_s, before.ended_s, again.ended_s) == (1, 7, 0)
    again.add(Look((use(mib=300),)), 5)
    assert again.began_s == 7
    (share,) = recorded(again).shares
    assert (share.seconds, share.memory_mib_seconds, share.memory_mib_peak) == (10, 2_000, 300)
    assert recorded(again).unshared


def test_a_share_that_no_event_can_hold_takes_no_other_with_it() -> None:
    """The account drops a share whose values exceed the schema's limits, and still records all
    other shares."""
    account = Account(0)
    account.add(Look((use(mib=1 << 30), use("uid-2", mib=100))), 5)
    assert [share.pod for share in recorded(account).shares] == ["uid-2"]


@pytest.mark.parametrize("seconds", [float("inf"), float("nan")])
def test_sums_that_are_no_number_are_left_out(seconds: float) -> None:
    """The account ignores a sample with an infinite or undefined duration."""
    account = Account(0)
    account.add(Look((use(mib=1), use("uid-2")), unshared=(stranger(1, 1),)), seconds)
    assert not [used for each in records(account) for used in (*each.shares, *each.unshared)]
