"""From amounts to the bounded numbers of an `Ask`.

The bounds are those of the event schema. Invariant: an amount that an ask cannot hold is refused,
unless the caller says that its dialect clamps it.
"""

from apportion.core.workloads.dialects.container import Amount
from apportion_schemas.quantities import COUNT_MAX, MEMORY_MIB_MAX, WHOLE


def count(amount: Amount) -> int:
    """A number of different devices, at least one."""
    if not 1 <= amount.value <= COUNT_MAX:
        raise amount.refusal(
            f"is not from 1 to {COUNT_MAX} devices",
            "ask for no more devices than one node has",
        )
    return amount.value


def memory_mib(amount: Amount, unit_mib: int) -> int | None:
    """Memory per device in MiB; zero is the same as not asking."""
    if amount.value * unit_mib > MEMORY_MIB_MAX:
        meant = (amount.value >> 20) // unit_mib  # bytes, where somebody wrote 4Gi
        raise amount.refusal(
            f"is more memory than any device has (the unit is {unit_mib} MiB)",
            f"write {meant}" if isinstance(amount.written, str) and meant
            else f"write at most {MEMORY_MIB_MAX // unit_mib}",
        )  # fmt: skip
    return amount.value * unit_mib or None


def memory_percent(amount: Amount) -> int:
    """A part of each device's memory."""
    if not 1 <= amount.value <= WHOLE:
        raise amount.refusal(
            "is not a percentage from 1 to 100", "write 1 to 100, or leave it out for the whole"
        )
    return amount.value


def cores_percent(amount: Amount, *, clamp: bool) -> int:
    """A part of each device's compute; zero reserves none. `clamp`: above the whole is the whole,
    as HAMi has it (`Fit`: "core limit can't exceed 100").
    """
    if amount.value > WHOLE and not clamp:
        raise amount.refusal(
            "is more than 100 percent of a device",
            "write 0 to 100, and ask for more devices with the count",
        )
    return min(amount.value, WHOLE)
