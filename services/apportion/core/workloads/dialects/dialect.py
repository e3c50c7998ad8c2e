"""The interface of a dialect, and the types that its functions accept and return.

Invariant: other code uses dialects only through `listing`, and depends on none of them. A limit of
a queue or quota counts what pods have allocated under any name, so no dialect bypasses it. An
annotation that is not understood completely is refused with the key, the value and the fix
(`Unclear` on a bound pod)."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from msgspec import Struct

from apportion.core.workloads.dialects.amounts import Amounts, Container
from apportion.core.workloads.dialects.borrowing import Parts, lent, parted
from apportion.core.workloads.dialects.inventory import Inventory
from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.document import ManifestError, within
from apportion_schemas import (
    Ask,
    Device,
    DeviceConstraints,
    DeviceWeights,
    MigInstance,
    Plugin,
    PodPlaced,
    PodSubmitted,
    Share,
)
from apportion_schemas.quantities import COUNT_MAX, NAME_MAX

SHARES: Final = "shares"
DEVICE_MEMORY: Final = "device memory"
CORES: Final = "cores"
CORES_PERCENT: Final = "percent of the cores"  # of families whose shares have a number of cores
ENTIRE: Final = "entire devices"
PARTIAL_MEMORY: Final = "memory of shares that are parts of a device"
INSTANCES: Final = "instances"
# A resource that only marks a container with devices. A kubelet calls a device plugin only for
# containers that name a resource which the plugin counts. Some dialects have none (vcuda's
# hundredths and units of memory, gpushare's MiB), so the webhook adds one slot to their amounts.
# Every agent offers the name, and it never changes what a pod requests.
SLOT: Final = "apportion.dev/slot"
# GPUs in thousandths, in the amounts of a queue of KAI; not a resource that pods request
GPU_MILLI: Final = "apportion.dev/gpu-milli"
# what can be counted of devices: instances by profile, all else by family
COUNTED: Final = (SHARES, DEVICE_MEMORY, CORES, CORES_PERCENT, ENTIRE, PARTIAL_MEMORY, INSTANCES)


class Bound(NamedTuple):
    """What a limit on a resource name counts: devices, memory or cores of a family or MIG profile.

    A limit of 1 allows `unit` devices, MiB or percent."""

    counts: str  # one of `COUNTED`
    of: str
    unit: int = 1


class Resource(NamedTuple):
    """The device families that a resource name requests, and what a limit on that name counts."""

    families: tuple[str, ...]
    bound: Bound | None = None  # None: a limit has no effect
    clamps: bool = False  # more than 100 percent counts as 100
    caps: bool = False  # more memory than the device's counts as all of it


Resources = Mapping[str, Resource]  # by name


def of_family(
    family: str, names: tuple[str, str, str], *, unit_mib: int = 1, clamps: bool, caps: bool = False
) -> dict[str, Resource]:
    """Return a family's three usual resources: count, memory in units of `unit_mib`, and cores."""
    count, memory, cores = names
    return {
        count: Resource((family,), Bound(SHARES, family)),
        memory: Resource((family,), Bound(DEVICE_MEMORY, family, unit_mib), caps=caps),
        cores: Resource((family,), Bound(CORES, family), clamps=clamps),
    }


LIST_MAX = 256
INDEX_DIGITS_MAX = 3
TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})  # what Go's `strconv.ParseBool` accepts
FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})
T = TypeVar("T")


class Notes(NamedTuple):
    """A pod's annotations, and their path for error messages."""

    values: Mapping[str, str]
    field: str

    def refusal(self, key: str, problem: str, fix: str) -> ManifestError:
        """Return the error that refuses the annotation with this key."""
        return ManifestError(within(self.field, key), self.values[key], problem, fix)


class Selecting(NamedTuple):
    """The annotation keys with which pods choose or exclude a vendor's devices.

    Each value is a list of model names or device ids, separated by commas."""

    use_types: tuple[str, ...] = ()
    nouse_types: tuple[str, ...] = ()
    use_ids: tuple[str, ...] = ()
    nouse_ids: tuple[str, ...] = ()


def selected(notes: Notes, keys: Selecting) -> DeviceConstraints:
    """Return the device constraints that these annotations set.

    An excluded device stays excluded even if it is chosen, as in HAMi and Volcano. Raises
    ManifestError if a list is malformed, or everything chosen is excluded."""
    use_types, nouse_types, use_ids, nouse_ids = (
        one(notes, spellings, name_list) or () for spellings in keys
    )
    for spellings, use, nouse in (
        (keys.nouse_types, use_types, nouse_types),
        (keys.nouse_ids, use_ids, nouse_ids),
    ):
        out = {name.lower() for name in nouse}
        if use and all(name.lower() in out for name in use):
            key = next(key for key in spellings if notes.values.get(key, "").strip())
            problem = f"excludes {use[0]!r}, which is also selected"
            raise notes.refusal(key, problem, "keep one of them")
    return DeviceConstraints(
        use_types=use_types, nouse_types=nouse_types, use_ids=use_ids, nouse_ids=nouse_ids
    )


def one(notes: Notes, keys: tuple[str, ...], read: Callable[[Notes, str], T]) -> T | None:
    """Return the value of an annotation; `keys` are its spellings, which must agree.

    A blank value counts as absent, because Helm writes one for an unset value, and HAMi
    (`CheckUUID`, `CheckType`) and Volcano (`parseGPUUUIDList`) accept it. Raises ManifestError if
    values differ or are invalid."""
    found = [(key, read(notes, key)) for key in keys if notes.values.get(key, "").strip()]
    for key, value in found[1:]:
        if value != found[0][1]:
            raise notes.refusal(key, f"differs from {found[0][0]}", "keep one of them")
    return found[0][1] if found else None


def name_list(notes: Notes, key: str) -> tuple[str, ...]:
    """Split a text at its commas into sorted, distinct names.

    Raises ManifestError if there are none or too many."""
    found = {part for raw in notes.values[key].split(",") if (part := raw.strip())}
    if not found:
        raise notes.refusal(key, "is empty", "write a comma-separated list, or remove it")
    if len(found) > LIST_MAX or any(len(name) > NAME_MAX for name in found):
        raise notes.refusal(key, "is too long", f"use at most {LIST_MAX} names")
    return tuple(sorted(found))


def indexes(notes: Notes, key: str) -> tuple[int, ...]:
    """Split a text at its commas into device indexes.

    Raises ManifestError if one is not a number below `COUNT_MAX`."""
    words = name_list(notes, key)
    found = {
        int(word)
        for word in words
        if word.isascii() and word.isdecimal() and len(word) <= INDEX_DIGITS_MAX
    }
    if len(found) != len(words) or max(found) >= COUNT_MAX:
        fix = f'write numbers below {COUNT_MAX}, such as "0,2"'
        raise notes.refusal(key, "is not a list of GPU indexes", fix)
    return tuple(sorted(found))


def flag(notes: Notes, key: str) -> bool:
    """Return the annotation as a boolean, in any spelling of Go's `strconv.ParseBool`.

    Raises ManifestError for any other value."""
    value = notes.values[key]
    if value not in TRUE | FALSE:
        raise notes.refusal(key, "is neither true nor false", 'write "true", or remove it')
    return value in TRUE


NANOSECONDS = 1_000_000_000


class PlacedPod(NamedTuple):
    """The input of `render`: a pod, its placement, the node's devices by id, and the time in ns."""

    pod: PodSubmitted
    placed: PodPlaced
    devices: Mapping[str, Device]
    now_ns: int
    config: DialectConfig

    @property
    def seconds(self) -> str:
        """Return when the pod is bound, in whole Unix seconds."""
        return str(self.now_ns // NANOSECONDS)

    @property
    def init_containers(self) -> tuple[str, ...]:
        """Return the init containers in the order of the spec."""
        return self._named(self.pod.init_containers, init=True)

    @property
    def containers(self) -> tuple[str, ...]:
        """Return the containers in the order of the spec."""
        return self._named(self.pod.containers, init=False)

    def shares(self, container: str) -> list[Share]:
        """Return the container's own or borrowed shares, in the order of its asks."""
        borrower = next((ask for ask in self.pod.borrowing if ask.container == container), None)
        if borrower is not None:
            return lent(borrower, self.pod, self.placed.shares, self.devices)
        return [share for share in self.placed.shares if share.container == container]

    def ask(self, container: str) -> Ask:
        """Return the container's first ask; asks for borrowed devices come first."""
        asks = (*self.pod.borrowing, *self.pod.shape.asks)
        return next(ask for ask in asks if ask.container == container)

    def index_of(self, share: Share) -> int:
        """Return the index, on its node, of the device of this share."""
        return self.devices[share.device].index

    def _named(self, named: tuple[str, ...], *, init: bool) -> tuple[str, ...]:
        if self.pod.containers:
            return named
        # a pod of a trace has only the containers with asks
        asks = (*self.pod.shape.asks, *self.pod.borrowing)
        return tuple(dict.fromkeys(ask.container for ask in asks if ask.init is init))


def segments(it: PlacedPod, recorded: Callable[[Share], str]) -> str:
    """Format one segment per container, as HAMi does; a segment may be empty."""
    return "".join(
        "".join(map(recorded, it.shares(name))) + ";"
        for name in (*it.init_containers, *it.containers)
    )


def record(device: str, kind: str, memory: int, cores: int) -> str:
    """Format one device of a container as HAMi and Volcano do, with a colon at the end."""
    return f"{device},{kind},{memory},{cores}:"


def commas(numbers: Iterable[int]) -> str:
    """Join numbers with commas, as in `0,2`."""
    return ",".join(map(str, numbers))


DIGITS_MAX = 8
_RECORD_FIELDS = 4


class BoundPod(NamedTuple):
    """The input of `recover`: a bound pod's annotations, containers in order, and asks.

    `borrowing` are the asks of containers that use devices of other containers; `limits` has the
    resource names that each app container limits."""

    annotations: Mapping[str, str]
    init_containers: Sequence[str]
    containers: Sequence[str]
    asks: Sequence[Ask]
    config: DialectConfig
    borrowing: Sequence[Ask] = ()
    limits: Mapping[str, Collection[str]] = {}


class Held(NamedTuple):
    """A device that a container of a bound pod uses, known by id or by index (`number`)."""

    container: str
    family: str
    device: str = ""
    number: int = -1
    memory_mib: int | None = None  # None: as in the ask
    cores: int | None = None  # None: as in the ask
    instance: MigInstance | None = None
    place: tuple[str, int] | None = None  # MIG group and position


class Unclear(ValueError):
    """Raised if the annotation of a bound pod cannot be understood."""


_NO_DEVICE: Final = ",,0,0"  # HAMi 2.5 writes it for a container without devices


def records(segment: str, *, places: bool = False) -> Iterator[tuple[str, int, int]]:
    """Yield id, memory and cores of each device in text like `GPU-a,NVIDIA,3000,50:GPU-b,…:`.

    Raises Unclear if the text has another format. Only with `places` may an id end with the group
    and position of a MIG instance in brackets."""
    for text in segment.split(":"):
        if text in ("", _NO_DEVICE):
            continue
        parts = text.split(",")
        if len(parts) != _RECORD_FIELDS or not parts[0] or ("[" in parts[0] and not places):
            raise Unclear
        yield parts[0], whole_number(parts[2]), whole_number(parts[3])


def whole_number(text: str) -> int:
    """Parse a whole number. Raises Unclear if the text has other characters, or too many digits."""
    if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX):
        raise Unclear
    return int(text)


# Reads a pod's devices from its annotations, given the text of the one that names them. Raises
# `Unclear`, `LookupError` or msgspec's errors if they cannot be understood.
Recover = Callable[[BoundPod, str], Iterator[Held]]


class Lock(NamedTuple):
    """An annotation of a node that a device plugin needs while a pod with devices starts there.

    It has the time, and the pod if `names_pod`; the plugin removes it."""

    key: str
    names_pod: bool = True
    expires_s: int = 300  # HAMI_NODELOCK_EXPIRE


class Dialect(Struct, frozen=True, kw_only=True, eq=False):
    """One dialect: how pods request a kind of device under one system's names.

    - `read` returns a container's ask, or None if it requests no device.
    - `choose` returns the device constraints in the pod's annotations. Both raise `ManifestError`.
    - `part` splits the asks into those that get devices and those that borrow them.
    - `render` returns the annotations that the system's own scheduler would write for a placed pod.
    - `recover` maps annotation keys to readers, which are tried in this order.
    - `device_choice` is the rule by which the system's plugin chooses devices. The plugin fails a
      pod whose devices were chosen otherwise.
    - `idle` names a resource that is ignored if the container also requests a certain other one.
    - `plugin` is the system whose device plugin reads the annotations of `render`.
    - `lists` maps annotation keys that choose devices to the only family that each applies to.
    - `served` has the annotations that this plugin changes once the pod has its devices.
    - `inventory` reads the devices that the plugin offers on a node.
    - `locks` has the annotations that the binder sets on a node of that system."""

    name: str  # as in the ledger
    devices: str  # what users call them, as in "GPUs"
    resources: Callable[[DialectConfig], Resources]
    read: Callable[[Container, Amounts, DialectConfig], Ask | None]
    choose: Callable[[Notes], DeviceConstraints]
    reserved: Mapping[str, str]  # annotations of its pods only; the error for others
    lists: Mapping[str, str] = {}
    render: Callable[[PlacedPod], dict[str, str]]
    recover: Mapping[str, Recover]
    priority: Callable[[DialectConfig], str] | None = None  # the resource; empty: none
    part: Callable[[Sequence[Ask], Collection[str]], Parts] = parted
    variant: Callable[["Dialect", Notes], "Dialect"] | None = None
    device_choice: tuple[str, DeviceWeights | None] = ("", None)
    plugin: Callable[[DialectConfig], Plugin] = lambda _: ""
    locks: Mapping[Plugin, Lock] = {}
    inventory: Inventory | None = None
    served: Mapping[str, str] = {}
    instances_alike: bool = False  # on a MIG GPU, a count means instances
    needs: Mapping[str, tuple[str, str]] = {}  # no effect without a resource; why
    idle: Callable[[DialectConfig], tuple[str, str, str]] | None = None
    writes: tuple[str, ...] = ()  # prefixes of annotations that its scheduler writes
    sections: Mapping[str, Callable[[object, str], str]] = {}
    one_container: tuple[str, ...] = ()  # families that only one container of a pod can have
    raises: Mapping[str, int] = {}  # a count of 1 that HAMi's webhook replaces by this number
    # what HAMi's webhook sets in a container with this ask: limits, and environment variables
    fills: Callable[[Ask], Mapping[str, int]] = lambda _: {}
    env: Callable[[Ask], Mapping[str, str]] = lambda _: {}
