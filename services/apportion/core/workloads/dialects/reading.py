"""From the resources and annotations of one pod to its asks: which dialect, and what it says.

A pod's resource names tell its dialect. A name can belong to several (`nvidia.com/gpu` is HAMi's
and the plain one), so the dialect is the first that claims every name the pod uses.

Invariant: no dialect is guessed. Names that no single dialect has together are refused.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from apportion.core.workloads.dialects.annotations import selection
from apportion.core.workloads.dialects.container import Container, amounts_of
from apportion.core.workloads.dialects.dialect import Dialect
from apportion.core.workloads.dialects.errors import ManifestError
from apportion.core.workloads.dialects.listing import claims, count_names
from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.dialects.notes import Notes
from apportion.core.workloads.dialects.slot import check_slots
from apportion_schemas import Ask, DeviceConstraints, DeviceWeights

NO_DIALECT = "none"
"""What a pod is written in that asks for no device."""


class DeviceRequest(Struct, frozen=True, kw_only=True):
    """What a pod wants of devices.

    `high_priority` names the containers whose tasks go first on a shared card. `borrowing` are the
    asks that take no devices: those of another container are free when they are wanted.
    """

    dialect: str = NO_DIALECT
    asks: tuple[Ask, ...] = ()
    borrowing: tuple[Ask, ...] = ()
    devices: DeviceConstraints = DeviceConstraints()
    node_policy: str = ""
    device_policy: str = ""
    device_weights: DeviceWeights | None = None
    high_priority: tuple[str, ...] = ()


def read_pod(
    containers: Sequence[Container],
    annotations: Mapping[str, str],
    *,
    annotations_field: str = "metadata.annotations",
    config: DialectConfig,
) -> DeviceRequest:
    """What a pod wants of devices; its containers in the order in which they start.

    Raises:
        ManifestError: the pod mixes dialects, contradicts itself, has an amount out of bounds, or
            asks for what is not implemented.
    """
    dialect = _dialect(containers, config)
    if dialect is None:
        check_slots(containers, (), ())
        return DeviceRequest()
    dialect = dialect.variant(dialect, Notes(annotations, annotations_field))
    names = claims(config)
    asks: list[Ask] = []
    high_priority: list[str] = []
    for container in containers:
        amounts = amounts_of(container, names)
        ask = dialect.read(container, amounts, config)
        if ask is None:
            continue
        asks.append(ask)
        priority = amounts.get(dialect.priority(config))
        if priority is not None and priority.value == 0:
            high_priority.append(container.name)
    check_slots(containers, {ask.container for ask in asks}, count_names(config).keys())
    if not asks:
        return DeviceRequest()
    chosen = selection(annotations, field=annotations_field, dialect=dialect)
    own, borrowing = dialect.part(asks, {each.name for each in containers if each.role == "app"})
    alike = dialect.instances_alike and chosen.devices.modes == ("mig",)
    return DeviceRequest(
        dialect=dialect.name,
        asks=tuple(each for ask in own for each in _one_by_one(ask, instances=alike)),
        borrowing=borrowing,
        devices=chosen.devices,
        node_policy=chosen.node_policy,
        device_policy=chosen.device_policy,
        device_weights=chosen.device_weights,
        high_priority=tuple(high_priority),
    )


def _one_by_one(ask: Ask, *, instances: bool) -> list[Ask]:
    """MIG instances may share a card, and the `count` of an ask is of different cards."""
    return [structs.replace(ask, count=1)] * ask.count if ask.profile or instances else [ask]


def _dialect(containers: Sequence[Container], config: DialectConfig) -> Dialect | None:
    """The first dialect that claims every name of devices in the pod; None where there is none."""
    known = claims(config)
    left: tuple[Dialect, ...] = ()
    seen: str | None = None
    for container in containers:
        for name in (*container.limits, *container.requests):
            if name not in known:
                continue
            claiming = known[name]
            fitting = tuple(d for d in left if d in claiming) if seen else claiming
            if not fitting:
                raise ManifestError(
                    container.at("limits" if name in container.limits else "requests", name),
                    None,
                    f"is of another dialect than {seen}, which the pod uses as well",
                    "write all amounts of a pod in one dialect",
                )
            left, seen = fitting, name
    return left[0] if seen else None
