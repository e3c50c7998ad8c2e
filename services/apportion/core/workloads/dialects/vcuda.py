"""The dialect of gpu-manager's vcuda: hundredths of a GPU, and memory in units of 256 MiB.

1 to 99 hundredths are a share of one GPU and need memory; a multiple of 100 is that many whole
GPUs. The names exist under two prefixes. Annotations are written with the prefix of the pod's
request, as its device plugin expects."""

from collections.abc import Iterator

from apportion.core.workloads.dialects import nvidia
from apportion.core.workloads.dialects.amounts import Amount, Amounts, Container
from apportion.core.workloads.dialects.dialect import (
    CORES,
    DEVICE_MEMORY,
    DIGITS_MAX,
    Bound,
    BoundPod,
    Dialect,
    Held,
    Notes,
    PlacedPod,
    Resource,
    Resources,
    commas,
    whole_number,
)
from apportion.core.workloads.dialects.names import DialectConfig
from apportion_schemas import Ask, DeviceConstraints, DeviceWeights
from apportion_schemas.quantities import CONTAINERS_MAX, WHOLE

# The fewest free cores, then the least free memory: gpu-manager's plugin takes that GPU
# (`NewShareMode`), and fails a pod for which another one was chosen ("Nvidia node mismatch"). One
# percent of the cores weighs more than all memory.
FULLEST = ("binpack", DeviceWeights(slots=0, cores=1000, memory=1))
WRITER = "tencent.com"  # prefix under which gpu-admission writes other annotations on pods too
PREFIXES = ("docker.com", WRITER)
UNIT_MIB = 256
CARD = 100


class Vcuda:
    """The vcuda dialect under one prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.name = f"{prefix}/vcuda"
        self.cores = f"{prefix}/vcuda-core"  # hundredths of a GPU
        self.memory = f"{prefix}/vcuda-memory"
        # The annotation with the most of an otherwise idle GPU that the pod may use. The node's
        # plugin reads it from the pod; it affects no decision.
        self.core_limit = f"{prefix}/vcuda-core-limit"

    def resources(self, _: DialectConfig) -> Resources:
        """Return what the two resource names mean."""
        family = nvidia.FAMILY
        return {
            self.cores: Resource((family,), Bound(CORES, family)),
            self.memory: Resource((family,), Bound(DEVICE_MEMORY, family, UNIT_MIB)),
        }

    def read(self, container: Container, amounts: Amounts, _: DialectConfig) -> Ask | None:
        """Return the container's ask; None if it requests no GPU.

        Raises ManifestError if cores or memory are missing, or for a fraction above one GPU."""
        cores, memory = amounts.get(self.cores), amounts.get(self.memory)
        memory_mib = memory.memory_mib(UNIT_MIB) if memory else None
        if cores is None or cores.value == 0:
            if memory is None or memory_mib is None:
                return None
            fix = f"add {self.cores}: 1 to 99 for a share, or 100 for a whole GPU"
            raise memory.refusal(f"is requested without {self.cores}", fix)
        if cores.value < CARD and memory_mib is None:
            fix = f"add {self.memory} in units of {UNIT_MIB} MiB"
            raise cores.refusal(f"is a share of a GPU without {self.memory}", fix)
        if cores.value < CARD:
            return container.ask(nvidia.FAMILY, memory_mib=memory_mib, cores=cores.value)
        cards, rest = divmod(cores.value, CARD)
        if rest:
            problem = "is neither a share of one GPU (1 to 99) nor whole GPUs (a multiple of 100)"
            raise cores.refusal(problem, f"write {cards * CARD} or {(cards + 1) * CARD}")
        count = Amount(cards, cores.field, cores.written).devices()
        return container.ask(nvidia.FAMILY, count=count, cores=WHOLE)

    def choose(self, notes: Notes) -> DeviceConstraints:
        """Return the device constraints in the pod's annotations. Raises ManifestError."""
        value = notes.values.get(self.core_limit, "")
        if value.strip():
            digits = value.isascii() and value.isdecimal() and len(value) <= DIGITS_MAX
            if not digits or not int(value):  # gpu-manager reads more than 100 as 100
                fix = f"write a whole number from 1 to {WHOLE}"
                raise notes.refusal(self.core_limit, "is not a percentage of a GPU", fix)
        return nvidia.choose(notes)

    def render(self, it: PlacedPod) -> dict[str, str]:
        """Return the annotations that gpu-admission would write. Init containers get none."""
        cards = {
            self.of_container(position): commas(map(it.index_of, shares))
            for position, name in enumerate(it.containers)
            if (shares := it.shares(name))
        }
        return {
            **cards,
            f"{self.prefix}/predicate-node": it.placed.node,
            f"{self.prefix}/predicate-time": str(it.now_ns),
            f"{self.prefix}/gpu-assigned": "false",
        }

    def recover(self, pod: BoundPod, _text: str) -> Iterator[Held]:
        """Yield the GPUs in the annotations of each container."""
        for position, name in enumerate(pod.containers):
            numbers = pod.annotations.get(self.of_container(position), "")
            for number in numbers.split(",") if numbers else ():
                yield Held(name, nvidia.FAMILY, number=whole_number(number))

    def of_container(self, position: int) -> str:
        """Return the key of the annotation with the GPUs of the container at this position."""
        return f"{self.prefix}/predicate-gpu-idx-{position}"

    def dialect(self) -> Dialect:
        """Create the dialect whose names begin with this prefix."""
        alone = {self.core_limit: f"applies only to {self.name} pods"}
        # gpu-manager without gpu-admission writes no node, only the annotations of containers
        notes = (f"{self.prefix}/predicate-node", *map(self.of_container, range(CONTAINERS_MAX)))
        return nvidia.dialect(
            self.name,
            resources=self.resources,
            read=self.read,
            choose=self.choose,
            reserved=nvidia.RESERVED | alone,
            render=self.render,
            recover=dict.fromkeys(notes, self.recover),
            device_choice=FULLEST,
            writes=(f"{self.prefix}/",) if self.prefix == WRITER else (),
        )


DIALECTS = tuple(Vcuda(prefix).dialect() for prefix in PREFIXES)
