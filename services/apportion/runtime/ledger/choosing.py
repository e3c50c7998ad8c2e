"""What extender and schedulers say to one another of pods whose node is chosen elsewhere.

A plain request, not an event: nothing is so until a scheduler has written it. Invariant: either
side reads what the other one writes, and nothing larger than a few names.
"""

from __future__ import annotations

import msgspec

from apportion_schemas.quantities import Name

SUBJECT = "apportion.command.scheduler.place"


class Choice(msgspec.Struct, frozen=True):
    """The pod of this uid is to be placed on this node."""

    pod: Name
    node: Name


class Heard(msgspec.Struct, frozen=True):
    """The choice was heard, or what is wrong with it."""

    error: str = ""
