"""What a dialect is, and what it is given: everything that is known of one family of names.

A module of its own makes one `DIALECT` of small functions (vcuda, whose names exist twice, makes
two), and `listing` lists it. All that is done with dialects goes through that list, so that a new
one is its module and its row. The types before `Dialect` are what its functions take and give: the
meaning of a name in a limit (`Resource`), the pod's annotations (`Notes`), a pod with a place as
its device plugin is to see it (`PlacedPod`), and what is read back of a pod that another scheduler
bound (`BoundPod`, `Held`). Invariant: a dialect says itself what it means; nobody asks which one it
is. A limit counts what pods hold, by whichever names they asked for it, so that no dialect is a way
around it. What is under an annotation is understood whole, or refused with the key, the value and
the fix; of a bound pod it is `Unclear`. What is rendered depends on the `PlacedPod` and nothing
else; the time is handed in."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from msgspec import Struct

from apportion.core.devices.demand import memory_needed_mib
from apportion.core.workloads.dialects.amounts import Amounts, Container
from apportion.core.workloads.dialects.borrowing import Parts, lent, parted
from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.document import ManifestError, within
from apportion_schemas import (
    Ask,
    Device,
    DeviceConstraints,
    DeviceWeights,
    MigInstance,
    PodPlaced,
    PodSubmitted,
    Share,
)
from apportion_schemas.quantities import COUNT_MAX, NAME_MAX

SHARES: Final = "shares"
DEVICE_MEMORY: Final = "device memory"
CORES: Final = "cores"
ENTIRE: Final = "entire devices"
PARTIAL_MEMORY: Final = "memory of partial shares"
INSTANCES: Final = "instances"
SLOT: Final = "apportion.dev/slot"
"""A resource that counts nothing but that a container has devices.

A kubelet asks a device plugin only about containers that name a resource which it counts. Some
dialects have none (vcuda's hundredths and units of memory, gpushare's MiB), so their containers ask
for one slot beside their amounts; the webhook writes it. Every agent offers the name. It never
changes what a pod asks for.
"""
COUNTED: Final = (SHARES, DEVICE_MEMORY, CORES, ENTIRE, PARTIAL_MEMORY, INSTANCES)
"""What can be counted of devices: instances by their profile, all else by family."""


class Bound(NamedTuple):
    """What a limit of a resource counts: one of `COUNTED`, of a family or of a profile.

    One of the resource is `unit` of that: devices, MiB or percent."""

    counts: str
    of: str
    unit: int = 1


class Resource(NamedTuple):
    """The families of devices that a name is about, and what a limit of it counts.

    `bound` is None where a limit has no meaning, as of a priority. `clamps`: more percent of a
    device than 100 counts as 100. `caps`: more memory than a device has counts as all of it."""

    families: tuple[str, ...]
    bound: Bound | None = None
    clamps: bool = False
    caps: bool = False


Resources = Mapping[str, Resource]
"""By name."""


def of_family(
    family: str, names: tuple[str, str, str], *, unit_mib: int = 1, clamps: bool, caps: bool = False
) -> dict[str, Resource]:
    """The usual three names of a family: devices, memory in units of so many MiB, and cores."""
    count, memory, cores = names
    return {
        count: Resource((family,), Bound(SHARES, family)),
        memory: Resource((family,), Bound(DEVICE_MEMORY, family, unit_mib), caps=caps),
        cores: Resource((family,), Bound(CORES, family), clamps=clamps),
    }


LIST_MAX = 256
INDEX_DIGITS_MAX = 3
TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
"""What Go's `strconv.ParseBool` takes."""
FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})
T = TypeVar("T")


class Notes(NamedTuple):
    """The pod's annotations and the path of that field, for errors."""

    values: Mapping[str, str]
    field: str

    def refusal(self, key: str, problem: str, fix: str) -> ManifestError:
        """Why the annotation under this key cannot be used."""
        return ManifestError(within(self.field, key), self.values[key], problem, fix)


class Selecting(NamedTuple):
    """The annotations by which pods choose among the devices of a vendor: comma lists of model
    names and of device ids, wanted and unwanted, each under all of its spellings."""

    use_types: tuple[str, ...] = ()
    nouse_types: tuple[str, ...] = ()
    use_ids: tuple[str, ...] = ()
    nouse_ids: tuple[str, ...] = ()


def selected(notes: Notes, keys: Selecting) -> DeviceConstraints:
    """What these annotations say, and nothing else.

    What is wanted and unwanted is ruled out and the rest serves, as HAMi and Volcano have it ("the
    denylist takes precedence"); where nothing is left, no device would ever do. Raises
    ManifestError: a list is malformed, or all that is wanted is ruled out."""
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
            problem = f"rules out {use[0]!r}, which is asked for as well"
            raise notes.refusal(key, problem, "keep one")
    return DeviceConstraints(
        use_types=use_types, nouse_types=nouse_types, use_ids=use_ids, nouse_ids=nouse_ids
    )


def one(notes: Notes, keys: tuple[str, ...], read: Callable[[Notes, str], T]) -> T | None:
    """The value under any of the keys, which are spellings of one thing and must agree.

    A blank value is none: so Helm renders one that nobody set, and so HAMi (`CheckUUID`,
    `CheckType`) and Volcano (`parseGPUUUIDList`) take it. Raises ManifestError: two of them differ,
    or `read` refuses one."""
    found = [(key, read(notes, key)) for key in keys if notes.values.get(key, "").strip()]
    for key, value in found[1:]:
        if value != found[0][1]:
            raise notes.refusal(key, f"differs from {found[0][0]}", "keep one of the two")
    return found[0][1] if found else None


def name_list(notes: Notes, key: str) -> tuple[str, ...]:
    """A comma list of names, without doubles, in a fixed order.

    Raises ManifestError: it is empty or too long."""
    found = {part for raw in notes.values[key].split(",") if (part := raw.strip())}
    if not found:
        raise notes.refusal(key, "names nothing", "write a comma list, or remove it")
    if len(found) > LIST_MAX or any(len(name) > NAME_MAX for name in found):
        raise notes.refusal(key, "is too long", f"name at most {LIST_MAX}")
    return tuple(sorted(found))


def indexes(notes: Notes, key: str) -> tuple[int, ...]:
    """A comma list of numbers of devices on their node.

    Raises ManifestError: one is no number below `COUNT_MAX`."""
    words = name_list(notes, key)
    found = {
        int(word)
        for word in words
        if word.isascii() and word.isdecimal() and len(word) <= INDEX_DIGITS_MAX
    }
    if len(found) != len(words) or max(found) >= COUNT_MAX:
        raise notes.refusal(
            key, "is no list of card numbers", f'write numbers below {COUNT_MAX}, as in "0,2"'
        )
    return tuple(sorted(found))


def flag(notes: Notes, key: str) -> bool:
    """Whether it says "true", in any spelling that Go's `strconv.ParseBool` takes: HAMi reads
    `nvidia.com/numa-bind` with it.

    Raises ManifestError: it is none of them."""
    value = notes.values[key]
    if value not in TRUE | FALSE:
        raise notes.refusal(key, "is neither true nor false", 'write "true", or remove it')
    return value in TRUE


NANOSECONDS = 1_000_000_000


class PlacedPod(NamedTuple):
    """The pod, its placement, the node's devices by id, and when it is bound (Unix time in ns)."""

    pod: PodSubmitted
    placed: PodPlaced
    devices: Mapping[str, Device]
    now_ns: int
    config: DialectConfig

    @property
    def seconds(self) -> str:
        """Unix time in whole seconds."""
        return str(self.now_ns // NANOSECONDS)

    @property
    def nanoseconds(self) -> str:
        """The time of the placement, as Unix time in nanoseconds."""
        return str(self.now_ns)

    @property
    def init_containers(self) -> tuple[str, ...]:
        """Init containers in the order of the spec."""
        return self._named(self.pod.init_containers, init=True)

    @property
    def containers(self) -> tuple[str, ...]:
        """Containers in the order of the spec."""
        return self._named(self.pod.containers, init=False)

    def shares(self, container: str) -> list[Share]:
        """What the container gets, in the order of its asks: what it holds, unless it borrows."""
        borrower = next((ask for ask in self.pod.borrowing if ask.container == container), None)
        if borrower is not None:
            return lent(borrower, self.pod, self.placed.shares, self.devices)
        return [share for share in self.placed.shares if share.container == container]

    def ask(self, container: str) -> Ask:
        """What the container asked for."""
        asks = (*self.pod.borrowing, *self.pod.shape.asks)
        return next(ask for ask in asks if ask.container == container)

    def asked_memory_mib(self, share: Share) -> int:
        """What was asked of the device, which a MIG instance may exceed."""
        return memory_needed_mib(self.ask(share.container), self.devices[share.device])

    def index_of(self, share: Share) -> int:
        """The number of the device on its node."""
        return self.devices[share.device].index

    def _named(self, named: tuple[str, ...], *, init: bool) -> tuple[str, ...]:
        """Those of the spec; a pod that came without them (a trace) has those that ask."""
        if self.pod.containers:
            return named
        asks = (*self.pod.shape.asks, *self.pod.borrowing)
        return tuple(dict.fromkeys(ask.container for ask in asks if ask.init is init))


def segments(it: PlacedPod, recorded: Callable[[Share], str]) -> str:
    """One segment per container as HAMi writes it: init containers first, empty ones kept."""
    return "".join(
        "".join(map(recorded, it.shares(name))) + ";"
        for name in (*it.init_containers, *it.containers)
    )


def record(device: str, kind: str, memory: int, cores: int) -> str:
    """One device of a container as HAMi and Volcano write it; the colon ends it."""
    return f"{device},{kind},{memory},{cores}:"


def commas(numbers: Iterable[int]) -> str:
    """Numbers in increasing order with commas between them, as in `0,2`."""
    return ",".join(map(str, numbers))


DIGITS_MAX = 8
_RECORD_FIELDS = 4


class BoundPod(NamedTuple):
    """What there is to read: the pod's annotations, its containers in order, and what they ask."""

    annotations: Mapping[str, str]
    init_containers: Sequence[str]
    containers: Sequence[str]
    asks: Sequence[Ask]
    config: DialectConfig


class Held(NamedTuple):
    """One device of one container: named by its id, or else by its number on the node.

    `memory_mib` and `cores` are None where they follow from the ask. `place` is of a MIG instance
    that is named by its group and its position there, which the card's model makes slices of."""

    container: str
    family: str
    device: str = ""
    number: int = -1
    memory_mib: int | None = None
    cores: int | None = None
    instance: MigInstance | None = None
    place: tuple[str, int] | None = None


class Unclear(ValueError):
    """The annotation cannot be understood."""


def records(segment: str, *, places: bool = False) -> Iterator[tuple[str, int, int]]:
    """Id, memory and cores of each device, as in `GPU-a,NVIDIA,3000,50:GPU-b,NVIDIA,3000,50:`.

    `places`: an instance may be named by its place in a group behind the id. Raises Unclear: a
    device is not written like that."""
    for text in segment.split(":"):
        if not text:
            continue
        parts = text.split(",")
        if len(parts) != _RECORD_FIELDS or not parts[0] or ("[" in parts[0] and not places):
            raise Unclear
        yield parts[0], natural(parts[2]), natural(parts[3])


def natural(text: str) -> int:
    """A whole number of zero or more, in plain digits.

    Raises Unclear: it is none, or absurdly long."""
    if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX):
        raise Unclear
    return int(text)


Recover = Callable[[BoundPod, str], Iterator[Held]]
"""What a pod holds, out of its annotations; the text is that of the annotation that says so. Raises
`Unclear`, `LookupError` or msgspec's errors where that cannot be understood.
"""


class Dialect(Struct, frozen=True, kw_only=True, eq=False):
    """One dialect. `name` is what the ledger calls it, and `devices` what people call the vendor's
    devices, as in "GPUs".

    `resources` are the names that it claims under a configuration, each with its meaning. `read`
    says what a container wants of the amounts under these names, and None where it wants no device.
    `choose` says among which devices, by the pod's annotations. Both raise `ManifestError`. `part`
    says which of a pod's asks take devices and which borrow them (`borrowing`), by the names of the
    containers that start after all init containers. `instances_alike`: a count of cards that are
    cut is one of instances, which may be of one card. `device_choice` is how devices of a node are
    preferred for pods that do not say it, where the plugin chooses by itself and fails a pod for
    which another was chosen; elsewhere the policy of the cluster holds. `variant` gives the dialect
    as the pod's annotations have it, where they change what amounts mean; it has the same name.
    `reserved` are the annotations that only its own pods may have, with what is wrong with each in
    a pod of a dialect that does not reserve it too; `{devices}` is what that pod asks for. `render`
    gives the annotations that its own scheduler writes on a pod with a place, and `recover` reads
    them back: by the annotation that says what the pod holds, in the order in which they are looked
    at. `priority` is the resource that gives a container's tasks their priority on a shared device
    under a configuration, empty where there is none.

    What follows is for those that look for what is probably not meant, and for the configuration.
    `needs` are resources that are of use only beside another, with that one and the reason. `idle`
    are two resources of which the first says nothing beside the second under a configuration, and
    the system that has it so. `writes` is how annotations begin that its own scheduler and plugin
    write on pods. `sections` are those of HAMi's and Volcano's configuration files that are about
    it: each is checked, by the path to it, and the answer is why it is taken; it raises
    `ManifestError` (`chart`)."""

    name: str
    devices: str
    resources: Callable[[DialectConfig], Resources]
    read: Callable[[Container, Amounts, DialectConfig], Ask | None]
    choose: Callable[[Notes], DeviceConstraints]
    reserved: Mapping[str, str]
    render: Callable[[PlacedPod], dict[str, str]]
    recover: Mapping[str, Recover]
    priority: Callable[[DialectConfig], str] | None = None
    part: Callable[[Sequence[Ask], Collection[str]], Parts] = parted
    variant: Callable[["Dialect", Notes], "Dialect"] | None = None
    device_choice: tuple[str, DeviceWeights | None] = ("", None)
    instances_alike: bool = False
    needs: Mapping[str, tuple[str, str]] = {}
    idle: Callable[[DialectConfig], tuple[str, str, str]] | None = None
    writes: tuple[str, ...] = ()
    sections: Mapping[str, Callable[[object, str], str]] = {}
