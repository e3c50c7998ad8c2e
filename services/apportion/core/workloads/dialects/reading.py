"""Convert the resources and annotations of one pod to asks, in the dialect that it uses.

A resource name can belong to several dialects (`nvidia.com/gpu` is HAMi's and the plain dialect's).
The pod's dialect is the first one that has all of its names; a pod that mixes dialects is refused.
Invariant: an annotation that requests an unsupported function is refused."""

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct, structs

from apportion.core.devices.chains import CHAINABLE, MUTEX
from apportion.core.workloads.dialects.amounts import Amounts, Container, amounts_of
from apportion.core.workloads.dialects.dialect import SLOT, Dialect, Notes, one
from apportion.core.workloads.dialects.listing import (
    AND,
    RESERVED,
    claims,
    count_names,
    parts,
    serves,
)
from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.document import ManifestError
from apportion_schemas import Ask, DeviceConstraints, DeviceWeights

NO_DIALECT = "none"  # the dialect of a pod that requests no device


class DeviceRequest(Struct, frozen=True, kw_only=True):
    """What devices a pod requests, and how they are chosen. An empty policy means the cluster's."""

    dialect: str = NO_DIALECT
    asks: tuple[Ask, ...] = ()
    borrowing: tuple[Ask, ...] = ()  # asks for another container's devices
    devices: DeviceConstraints = DeviceConstraints()
    node_policy: str = ""
    device_policy: str = ""
    device_weights: DeviceWeights | None = None
    high_priority: tuple[str, ...] = ()  # containers that go first on a shared GPU


def read_pod(
    containers: Sequence[Container],
    annotations: Mapping[str, str],
    *,
    annotations_field: str = "metadata.annotations",
    config: DialectConfig,
) -> DeviceRequest:
    """Return the device request of a pod; `containers` are in the order in which they start.

    Raises ManifestError if the pod mixes dialects, contradicts itself, has an amount out of bounds,
    or requests something that is not implemented."""
    notes = Notes(annotations, annotations_field)
    dialect = _dialect(containers, notes, config)
    if dialect is None:
        check_slots(containers, (), ())
        return DeviceRequest()
    names = claims(config)
    priority_name = dialect.priority(config) if dialect.priority is not None else ""
    asks: list[Ask] = []
    high_priority: list[str] = []
    for container in containers:
        amounts = amounts_of(container, names)
        ask = dialect.read(container, amounts, config)
        if ask is None:
            continue
        asks.append(ask)
        priority = amounts.get(priority_name)
        if priority is not None and priority.value == 0:
            high_priority.append(container.name)
    check_slots(containers, {ask.container for ask in asks}, count_names(config).keys())
    if not asks:
        return DeviceRequest()
    if AND in dialect.name:  # some may only have zeros
        families = {ask.family for ask in asks}
        used = (each.name for each in parts(dialect.name) if serves(each, families, config))
        dialect = structs.replace(dialect, name=AND.join(used))
    request = selection(annotations, field=annotations_field, dialect=dialect, config=config)
    chosen = {dialect.lists[key] for key in dialect.lists if annotations.get(key, "").strip()}
    if chosen and (others := {ask.family for ask in asks} - chosen):
        key = next(key for key in dialect.lists if annotations.get(key, "").strip())
        fix = "remove it, or request these devices in a pod of their own"
        raise notes.refusal(key, f"does not apply to {min(others)}, which the pod requests", fix)
    own, borrowing = dialect.part(asks, {each.name for each in containers if each.role == "app"})
    _check_holders(own, dialect.one_container, containers)
    # The `count` of an ask means distinct devices, but MIG instances may share a GPU.
    alike = dialect.instances_alike and request.devices.modes == ("mig",)
    single: list[Ask] = []
    for ask in own:
        apart = ask.profile or alike
        single += [structs.replace(ask, count=1)] * ask.count if apart else [ask]
    return structs.replace(
        request, asks=tuple(single), borrowing=borrowing, high_priority=tuple(high_priority)
    )


def _check_holders(
    asks: Sequence[Ask], families: Collection[str], containers: Sequence[Container]
) -> None:
    """Raise ManifestError if a second container requests devices of one of these families."""
    first: dict[str, str] = {}
    for ask in asks:
        holder = first.setdefault(ask.family, ask.container)
        if ask.family in families and holder != ask.container:
            field = next(each.field for each in containers if each.name == ask.container)
            problem = f"requests {ask.family} devices, which container {holder} requests as well"
            fix = "request them in one container, or in a second pod"
            raise ManifestError(f"{field}.resources", None, problem, fix)


def _dialect(
    containers: Sequence[Container], notes: Notes, config: DialectConfig
) -> Dialect | None:
    """Return the dialect with all names of the pod, or one for each vendor that HAMi serves."""
    known = claims(config)
    groups: list[tuple[Dialect, ...]] = []  # each is in the first of its dialects
    seen: str | None = None
    for container in containers:
        left: tuple[Dialect, ...] = ()
        for name in (*container.limits, *container.requests):
            if name not in known:
                continue
            claiming = known[name]
            fitting = tuple(each for each in left if each in claiming) if left else claiming
            if not fitting:
                raise _mixed(container, name, seen)
            left, seen = fitting, name
        if not left:
            continue
        for at, group in enumerate(groups):
            if both := tuple(each for each in group if each in left):
                groups[at] = both
                break
        else:
            groups.append(left)
            if len(groups) > 1 and any(each[0].plugin(config) != HAMI for each in groups):
                raise _mixed(container, seen or "", next(iter(groups[0][0].resources(config))))
    used = [each.variant(each, notes) if each.variant is not None else each for each, *_ in groups]
    return (used[0] if len(used) == 1 else _several(used)) if used else None


HAMI = "hami"


def _mixed(container: Container, name: str, seen: str | None) -> ManifestError:
    return ManifestError(
        container.at("limits" if name in container.limits else "requests", name),
        None,
        f"belongs to another dialect than {seen}, which the pod also requests",
        "use one dialect for all amounts of a pod",
    )


def _several(dialects: Sequence[Dialect]) -> Dialect:
    """Return a dialect for containers with devices of different vendors.

    HAMi has annotations for each vendor, but a pod's device constraints apply to all its devices.
    So such a pod is refused if it sets device constraints."""

    def read(container: Container, amounts: Amounts, config: DialectConfig) -> Ask | None:
        for each in dialects:
            if own := {key: amounts[key] for key in amounts if key in each.resources(config)}:
                return each.read(container, own, config)
        return None

    def choose(notes: Notes) -> DeviceConstraints:
        for each in dialects:
            if each.choose(notes) != DeviceConstraints():
                key = next(key for key in each.reserved if notes.values.get(key, "").strip())
                fix = "remove it, or request each vendor's devices in a pod of their own"
                raise notes.refusal(key, "is in a pod with devices of several vendors", fix)
        return DeviceConstraints()

    return structs.replace(
        dialects[0],
        name=AND.join(each.name for each in dialects),
        devices=" and ".join(dict.fromkeys(each.devices for each in dialects)),
        read=read,
        choose=choose,
        reserved={key: why for each in dialects for key, why in each.reserved.items()},
        one_container=tuple(family for each in dialects for family in each.one_container),
        priority=next((each.priority for each in dialects if each.priority is not None), None),
    )


def check_slots(
    containers: Sequence[Container], asking: Collection[str], counts: Collection[str]
) -> None:
    """Raise ManifestError if a container requests slots without a device, or next to a count."""
    for container in containers:
        said = {**container.requests, **container.limits}
        counted = sorted((said.keys() - {SLOT}).intersection(counts))
        if SLOT in said and (counted or container.name not in asking):
            beside = f"next to {counted[0]}" if counted else "in a container without a device"
            raise ManifestError(
                container.at("limits" if SLOT in container.limits else "requests", SLOT),
                said[SLOT],
                f"has no effect {beside}",
                "remove it" if counted else "request a device as well, or remove it",
            )


POLICIES = ("binpack", "spread")
SCORING_WEIGHTS = "hami.io/device-scoring-weights"
WEIGHT_MAX = 1000
WEIGHT_DIGITS_MAX = 9
# HAMi's name of each weight, and ours
WEIGHTS = {"slot": "slots", "core": "cores", "memory": "memory"}
NODE_POLICY = "hami.io/node-scheduler-policy"
DEVICE_POLICY = "hami.io/gpu-scheduler-policy"
GROUP_POLICY = "volcano.sh/vgpu-podgroup-policy"


def selection(
    annotations: Mapping[str, str], *, field: str, dialect: Dialect, config: DialectConfig
) -> DeviceRequest:
    """Return the constraints, policies and weights in a pod's annotations, without asks.

    Raises ManifestError if a value is malformed, or two values contradict each other."""
    notes = Notes(annotations, field)
    for key, problem in RESERVED.items():
        if key in annotations and key not in dialect.reserved:
            raise notes.refusal(key, problem.format(devices=dialect.devices), "remove it")
    policy = one(notes, (DEVICE_POLICY,), _chain) or ""
    weights = one(notes, (SCORING_WEIGHTS,), _weights)
    if not policy and weights is None:
        policy, weights = dialect.device_choice
    if one(notes, (GROUP_POLICY,), _policy) == "spread":
        # Volcano's `spread` puts no two pods of one PodGroup on a GPU; its `binpack` adds nothing
        # to the cluster's policy. `mutex` is stricter: it also keeps the pod off other pods' GPUs.
        policy = ",".join(dict.fromkeys((*filter(None, policy.split(",")), MUTEX)))
    return DeviceRequest(
        dialect=dialect.name,
        devices=structs.replace(dialect.choose(notes), plugin=dialect.plugin(config)),
        node_policy=one(notes, (NODE_POLICY,), _policy) or "",
        device_policy=policy,
        device_weights=weights,
    )


def _policy(notes: Notes, key: str) -> str:
    value = notes.values[key].strip()
    if value not in POLICIES:
        fix = f"write one of {', '.join(POLICIES)}, or remove it"
        raise notes.refusal(key, "is not supported", fix)
    return value


def _chain(notes: Notes, key: str) -> str:
    names = tuple(dict.fromkeys(name.strip() for name in notes.values[key].split(",")))
    if not set(names) <= set(CHAINABLE):
        fix = f"write one or more of {', '.join(CHAINABLE)}, separated by commas, or remove it"
        raise notes.refusal(key, "is not a device policy", fix)
    return ",".join(names)


def _weights(notes: Notes, key: str) -> DeviceWeights:
    pairs = [part.partition("=") for part in notes.values[key].split(",")]
    found = {name.strip(): value.strip() for name, _, value in pairs}
    if len(pairs) != len(WEIGHTS) or set(found) != set(WEIGHTS):
        fix = 'write "slot=1,core=1,memory=3"'
        raise notes.refusal(key, "must set each of slot, core and memory exactly once", fix)
    if not all(value.isascii() and value.isdecimal() for value in found.values()) or any(
        len(value) > WEIGHT_DIGITS_MAX or int(value) > WEIGHT_MAX for value in found.values()
    ):
        fix = f"write whole numbers from 0 to {WEIGHT_MAX}"
        raise notes.refusal(key, "has an invalid weight", fix)
    weights = {ours: int(found[theirs]) for theirs, ours in WEIGHTS.items()}
    if not any(weights.values()):
        raise notes.refusal(key, "has only zero weights", "set at least one weight above 0")
    return DeviceWeights(**weights)
