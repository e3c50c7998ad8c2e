"""What an agent needs of the devices of its node, whoever makes them.

Two implementations stand behind this port: `nvml` asks the driver, `simulated` makes cards up. One
contract suite runs over both. Invariant: `inventory` says the whole truth at the moment of the
call, and `changed` returns whenever it may say something else, so an agent that reports after each
`changed` never misses a change; it may look once too often.
"""

from __future__ import annotations

from typing import Protocol

from apportion_schemas import Device


class DevicesUnavailable(Exception):
    """The devices of this node cannot be read; the message says what was tried and the fix."""


class DeviceBackend(Protocol):
    """The devices of one node and their health."""

    @property
    def driver(self) -> str:
        """The driver's version, for people; empty where it is not known."""

    @property
    def simulated(self) -> bool:
        """Whether these devices exist only here."""

    async def inventory(self) -> tuple[Device, ...]:
        """Every device with its present health, in the order of its index.

        Raises:
            DevicesUnavailable: the devices cannot be listed at all.
        """

    async def changed(self) -> None:
        """Return when the inventory may differ from what it was at the last call."""

    async def close(self) -> None:
        """Let the driver go. The backend is of no use afterwards."""
