"""Build hourly usage reports of pods, and configurations that look for idle pods."""

from typing import Any

from apportion.core.ledger.moments import HOUR, micros_of, text_of
from apportion_schemas import Configuration, ConfigurationChanged, ShareUsed, UsageRecorded
from apportion_schemas.configuration import IdleConfiguration
from tests.support.ledger_of import TIME, Ledger

BEGIN = micros_of(TIME) or 0


def looking(after: str = "4h", **fields: Any) -> ConfigurationChanged:
    """Return a configuration that looks for idle pods; without `after`, it ignores them."""
    idle = IdleConfiguration(after=after, **fields)
    return ConfigurationChanged(by="ann", configuration=Configuration(idle=idle))


def used(
    ledger: Ledger, uid: str, cores: int | None = 0, *, seconds: int = 3_600, mib: int = 2_048
) -> tuple[ShareUsed, ...]:
    """Return what the pod used of each share: a percentage of the device, and memory."""
    pod = ledger.pod(uid)
    work: dict[str, Any] = {}
    if cores is not None:
        work = {"cores_seconds": cores * seconds, "cores_peak": cores}
    return tuple(
        ShareUsed(
            pod=uid, namespace=pod.submitted.namespace, name=pod.submitted.name,
            container=share.container, device=share.device, instance=share.instance,
            seconds=seconds, memory_mib=share.memory_mib, memory_mib_seconds=mib * seconds,
            memory_mib_peak=mib, cores=share.cores, **work,
        )
        for share in ledger.shares(uid)
    )  # fmt: skip


def report(
    ledger: Ledger, hour: float, node: str, *shares: ShareUsed, seconds: int = 3_600
) -> Ledger:
    """Play a node's report of its usage, written this many hours after the begin of the ledger.

    The engine learns the time, too."""
    return at(ledger, hour).play(UsageRecorded(node=node, seconds=seconds, shares=shares))


def at(ledger: Ledger, hour: float) -> Ledger:
    """Set the time of the next events, and of the engine's clock."""
    now = BEGIN + int(hour * HOUR)
    ledger.time = text_of(now)
    ledger.engine.tell_time(now)
    return ledger


def idle_for(ledger: Ledger, hours: int, *uids: str, first: int = 1) -> Ledger:
    """Play hourly reports in which these pods, all on the same node or not, do no work."""
    for hour in range(first, first + hours):
        for uid in uids:
            report(ledger, hour, ledger.where(uid), *used(ledger, uid))
    return ledger
