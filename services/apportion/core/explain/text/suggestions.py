"""Suggest existing names for an unknown name."""

from collections.abc import Iterable

from apportion.core.explain.text.words import device_words, listed
from apportion.core.names import ALIKE, natural, near


def did_you_mean(name: str, known: Iterable[str], *, alike: float = ALIKE) -> str:
    """Return text such as `did you mean mps-1?`; empty if no known name is similar."""
    found = near(name, known, alike=alike)
    return f"did you mean {listed(found)}?" if found else ""


def named(what: str, known: Iterable[str]) -> str:
    """Return which names exist, as in `the nodes are big-1, mig-1, mps-1 and 4 more`."""
    names = sorted(set(known), key=natural)
    return f"the {what} are {listed(names)}" if names else f"there are no {what}"


def target_meant(name: str, nodes: Iterable[str], devices: Iterable[str]) -> str:
    """Return nodes and devices with similar names, or else the commands that list them."""
    listing = "list them with `apportion get nodes` or `apportion get devices`"
    shown = [(each, device_words(each)) for each in devices]
    ids = [short if len(name) <= len(short) else each for each, short in shown]
    return did_you_mean(name, [*nodes, *ids]) or listing
