"""What the front door asks of the rest of the agent."""

from typing import Final, Protocol

from msgspec import Struct

from apportion.core.grants import Edits

HANDED_TO: Final = "apportion.dev/handed-to"
"""The annotation of what `Allocate` answers that says for which claim and container it is."""


class Handed(Struct, frozen=True):
    """What a container was given at `Allocate`, and for whom that was meant; to nobody if empty."""

    to: str
    edits: Edits


class Holder(Struct, frozen=True):
    """Who holds slots, by the kubelet's own books.

    `containers` are several where an init container and another one, which starts after it, have
    the same slots: the kubelet does not say which of them starts now. `handed` is what each of them
    was given already. `starting`: the container is about to start, so none of its processes is
    left; a claim is prepared again while its pod runs, too."""

    pod: str
    namespace: str
    name: str
    containers: tuple[str, ...]
    resource: str
    slots: tuple[str, ...]
    handed: tuple[Handed, ...] = ()
    starting: bool = True


class NotPrepared(Exception):
    """The container may not start now; the message says why, and the kubelet tries again."""


class Preparing(Protocol):
    """Makes a container's shares ready."""

    async def prepare(self, holder: Holder) -> Edits:
        """What the container gets, once all of it is there.

        It is asked before every start, so also when everything was there before.

        Raises NotPrepared: not yet, or never; the reason is for people."""
