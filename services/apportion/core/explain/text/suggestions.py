"""What somebody may have meant by a name that nothing has.

Invariant: only names that are there are offered, so that the one that is copied works."""

from collections.abc import Iterable

from apportion.core.explain.text.event_text import listed
from apportion.core.explain.text.natural import natural
from apportion.core.explain.text.words import device_words
from apportion.core.similarity import ALIKE, near


def did_you_mean(name: str, known: Iterable[str], *, alike: float = ALIKE) -> str:
    """As in `did you mean mps-1?`; empty where no known name is near."""
    found = near(name, known, alike=alike)
    return f"did you mean {listed(found)}?" if found else ""


def named(what: str, known: Iterable[str]) -> str:
    """What there is, as in `the nodes are big-1, mig-1, mps-1 and 4 more`."""
    names = sorted(set(known), key=natural)
    return f"the {what} are {listed(names)}" if names else f"there are no {what}"


def target_meant(name: str, nodes: Iterable[str], devices: Iterable[str]) -> str:
    """What may be meant by a name of no node or device, or else which verbs list them. The ids of
    devices are as tables show them, where the name is as short."""
    listing = "`apportion get nodes` and `apportion get devices` list those that are there"
    shown = [(each, device_words(each)) for each in devices]
    ids = [short if len(name) <= len(short) else each for each, short in shown]
    return did_you_mean(name, [*nodes, *ids]) or listing
