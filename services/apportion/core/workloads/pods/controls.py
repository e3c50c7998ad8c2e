"""What containers say in their own environment of how HAMi-core is to hold them.

The node's agent adds to a container's environment, and what it adds wins; so the ledger keeps what
the container itself says, for the few variables that are its own to say. Invariant: nothing else of
an environment gets into the ledger, for there may be secrets in it.
"""

from collections.abc import Iterable
from typing import Final, get_args

from apportion.core.workloads import kube
from apportion_schemas import Ask
from apportion_schemas.workload import Control, Controls

NAMES: Final[frozenset[Control]] = frozenset(get_args(Control))
VALUE_MAX: Final = 64


def controls_of(spec: kube.PodSpec, asks: Iterable[Ask]) -> Controls:
    """By container, of those that ask for devices; a value too long to be one is passed over."""
    asking = {ask.container for ask in asks}
    found: Controls = {}
    for container in (*spec.init_containers, *spec.containers):
        if container.name not in asking:
            continue
        said = {
            each.name: each.value
            for each in container.env
            if each.name in NAMES and 0 < len(each.value) <= VALUE_MAX
        }
        if said:
            found[container.name] = said
    return found
