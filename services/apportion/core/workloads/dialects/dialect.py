"""What a dialect is: everything that is known of one family of names, in one value.

A module of its own makes one `DIALECT` of small functions (vcuda, whose names exist twice, makes
two), and `listing` lists it. All that is done with dialects goes through that list, so that a new
one is its module and its row.

Invariant: a dialect says itself what it means; nobody asks which one it is.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from msgspec import Struct

from apportion.core.workloads.dialects.borrowing import Parts, parted
from apportion.core.workloads.dialects.bound_pod import BoundPod, Held
from apportion.core.workloads.dialects.container import Amounts, Container
from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.dialects.notes import Notes
from apportion.core.workloads.dialects.placed_pod import PlacedPod
from apportion.core.workloads.dialects.resource import Resources
from apportion_schemas import Ask, DeviceConstraints, DeviceWeights

Recover = Callable[[BoundPod, str], Iterator[Held]]
"""What a pod holds, out of its annotations; the text is that of the annotation that says so. Raises
`Unclear`, `LookupError` or msgspec's errors where that cannot be understood.
"""


def _no_priority(_: DialectConfig) -> str:
    return ""


def _itself(dialect: "Dialect", _: Notes) -> "Dialect":
    return dialect


class Dialect(Struct, frozen=True, kw_only=True, eq=False):
    """One dialect. `name` is what the ledger calls it, and `devices` what people call the vendor's
    devices, as in "GPUs".

    `resources` are the names that it claims under a configuration, each with its meaning.
    `read` says what a container wants of the amounts under these names, and None where it wants no
    device. `choose` says among which devices, by the pod's annotations. Both raise `ManifestError`.
    `part` says which of a pod's asks take devices and which borrow them (`borrowing`), by the names
    of the containers that start after all init containers. `instances_alike`: a count of cards that
    are cut is one of instances, which may be of one card.
    `device_choice` is how devices of a node are preferred for pods that do not say it, where the
    plugin chooses by itself and fails a pod for which another was chosen; elsewhere the policy of
    the cluster holds.
    `variant` gives the dialect as the pod's annotations have it, where they change what amounts
    mean; it has the same name.
    `reserved` are the annotations that only its own pods may have, with what is wrong with each in
    a pod of a dialect that does not reserve it too; `{devices}` is what that pod asks for.
    `render` gives the annotations that its own scheduler writes on a pod with a place, and
    `recover` reads them back: by the annotation that says what the pod holds, in the order in which
    they are looked at.
    `priority` is the resource that gives a container's tasks their priority on a shared device
    under a configuration, empty where there is none.
    """

    name: str
    devices: str
    resources: Callable[[DialectConfig], Resources]
    read: Callable[[Container, Amounts, DialectConfig], Ask | None]
    choose: Callable[[Notes], DeviceConstraints]
    reserved: Mapping[str, str]
    render: Callable[[PlacedPod], dict[str, str]]
    recover: Mapping[str, Recover]
    priority: Callable[[DialectConfig], str] = _no_priority
    part: Callable[[Sequence[Ask], Collection[str]], Parts] = parted
    variant: Callable[["Dialect", Notes], "Dialect"] = _itself
    device_choice: tuple[str, DeviceWeights | None] = ("", None)
    instances_alike: bool = False
