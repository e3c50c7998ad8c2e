"""Turn answers into tables: one function for each list of `apportion get`."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from rich.text import Text

from apportion.cli.render.output import phase, plain
from apportion.cli.render.rows import Rows, clean
from apportion.core.answers.reads import (
    DeviceAnswer,
    GangAnswer,
    NodeAnswer,
    PlacementAnswer,
    PodAnswer,
    QueueAnswer,
    QueuePart,
    QuotaAnswer,
    StartForecast,
)
from apportion.core.answers.visibility import NOT_TOLD
from apportion.core.devices.worth import DEVICE
from apportion.core.explain.health import failed_words, found_silent
from apportion.core.explain.text.answer_text import part_number, part_words, start_band
from apportion.core.explain.text.event_text import added_up, ask_words, families_of, shares_words
from apportion.core.explain.text.vocabulary import PHASES
from apportion.core.explain.text.words import (
    SYSTEMS,
    device_words,
    listed,
    number_of_resource,
    of_resource,
)
from apportion.core.workloads.dialects.dialect import GPU_MILLI


class Look(NamedTuple):
    """The display options of a list. `wide` shows all columns; ages are relative to `now`."""

    wide: bool = False
    now: datetime | None = None


PLAIN = Look()


def shown_phase(pod: PodAnswer) -> str:
    """Return the pod's phase as shown to users."""
    return PHASES.get(pod.phase, pod.phase)


def shown_phases(phases: Mapping[str, int]) -> dict[str, int]:
    """Add up the counts by phase, with phases named as users see them."""
    shown = Counter[str]()
    for name, count in phases.items():
        shown[PHASES.get(name, name)] += count
    return shown


def age(time: str, now: datetime) -> str:
    """Return an age as kubectl does: `45s`, `12m`, `5h`, `3d`; empty without a time."""
    if not time:
        return ""
    seconds = max(int((now - datetime.fromisoformat(time)).total_seconds()), 0)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def short_name(namespace: str, name: str) -> str:
    """Return the pod's name, with its namespace unless that is `default`."""
    return name if namespace == "default" else f"{namespace}/{name}"


def pods(items: Iterable[PodAnswer], look: Look = PLAIN) -> Rows:
    """Return the table of pods with their nodes and shares, or the reasons why they are pending."""
    wide = ("START", "UID", "ATTEMPT", "PRIORITY", "CPU", "MEMORY", "DIALECT", "GANG")
    more = wide if look.wide else ()
    made = Rows("NAMESPACE", "NAME", "PHASE", "NODE", "REVISION", "AGE", *more,
                "SHARES OR REASON",
                right=("REVISION", "AGE", "ATTEMPT", "PRIORITY", "CPU", "MEMORY"),
                wraps=("SHARES OR REASON",),
                drops=() if look.wide else ("REVISION", "AGE", "SHARES OR REASON"))  # fmt: skip
    now = look.now or datetime.now(UTC)
    for pod in items:
        newest = max(
            pod.submitted_revision, pod.refused_revision, pod.placed_revision, pod.bound_revision,
            pod.allocated_revision,
        )  # fmt: skip
        at = phase(shown_phase(pod))
        if pod.evicted_for:  # here, because the last column may be dropped
            at.append(", evicted", "yellow")
        made.add_row(
            pod.namespace, pod.name, at, pod.node,
            str(newest or ""), age(pod.submitted_time, now),
            *((start_cell(pod.start, now.timestamp()), pod.uid, str(pod.attempt), str(pod.priority),
               f"{pod.cpu_milli / 1000:g}", f"{pod.memory_mib:,} MiB", pod.dialect, pod.group)
              if look.wide else ()), _held(pod),
        )  # fmt: skip
    return made


def start_cell(start: StartForecast | None, now_s: float) -> str:
    """Return when a pod should start, as in `in 40 s to 2 h`; "unknown", or "" without forecast."""
    if start is None or start.unknown:
        return "" if start is None else "unknown"
    return start_band(start, now_s)


def _held(pod: PodAnswer) -> str:
    if pod.rejection:
        return pod.rejection
    if pod.shares:
        said = [failed_words(pod.failed_devices)] if pod.failed_devices else []
        said += [shares_words(pod.shares, families_of(pod.asks))]
        said += [pod.unready] if pod.unready else []
        said += [f"being evicted for {pod.evicted_for}"] if pod.evicted_for else []
        return "; ".join(said)
    if pod.unready:
        return pod.unready
    if pod.room_on:
        return f"will run on {pod.room_on}, once evicted pods have ended"
    return pod.cause or listed([*map(ask_words, added_up(pod.asks))]) or "no device"


def placements(items: Iterable[PlacementAnswer], look: Look = PLAIN) -> Rows:
    """Return the table with one row per placement."""
    more = ("UID", "ATTEMPT") if look.wide else ()
    made = Rows("REVISION", "NAMESPACE", "NAME", "NODE", "PHASE", "AGE", "SCORE", *more, "SHARES",
                right=("REVISION", "AGE", "SCORE", "ATTEMPT"), wraps=("SHARES",),
                drops=() if look.wide else ("SCORE", "AGE", "REVISION", "SHARES"))  # fmt: skip
    now = look.now or datetime.now(UTC)
    for placed in items:
        made.add_row(
            str(placed.placed_revision), placed.namespace, placed.name,
            placed.node, phase(placed.phase), age(placed.placed_time, now),
            f"{placed.score.total:.1f}", *((placed.uid, str(placed.attempt)) if look.wide else ()),
            shares_words(placed.shares, placed.families),
        )  # fmt: skip
    return made


def nodes(items: Iterable[NodeAnswer], look: Look = PLAIN) -> Rows:
    """Return the table with one row per node."""
    more = ("DRIVER", "LABELS") if look.wide else ()
    made = Rows("NODE", "STATE", "DEVICES", "MODELS", "PODS", "CPU", "MEMORY", *more,
                right=("DEVICES", "PODS", "CPU", "MEMORY"), wraps=("STATE", "MODELS", "LABELS"),
                drops=() if look.wide else ("MEMORY", "CPU", "PODS", "MODELS"))  # fmt: skip
    for node in items:
        made.add_row(
            node.node, node_state(node), f"{node.devices_open}/{node.devices}",
            listed(list(node.models)), f"{node.pods}/{node.pods_max}",
            f"{node.cpu_used_milli / 1000:g}/{node.cpu_milli / 1000:g}",
            f"{node.memory_used_mib / 1024:.0f}/{node.memory_mib / 1024:.0f} GiB",
            *((node.driver, ",".join(f"{k}={v}" for k, v in sorted(node.labels.items())))
              if look.wide else ()),
        )  # fmt: skip
    return made


def node_state(node: NodeAnswer) -> Text:
    """Return the node's state, with every reason why it is not ready."""
    said = []
    if node.gone:
        said.append(Text("gone", "red"))
    elif node.cordon:
        said.append(Text("cordoned: ", "yellow").append_text(plain(node.cordon)))
    if node.silent and not (node.gone or node.plugin):
        said.append(Text(f"agent not reporting, {found_silent(node.silent)}", "red"))
    elif not (node.ready or node.gone):
        said.append(Text("not ready", "red"))
    whole = Text("; ").join(said) if said else Text("ready", "green")
    if node.plugin and not node.gone:
        system = SYSTEMS.get(node.plugin, node.plugin)
        problem = f" cannot be read: {node.plugin_problem}" if node.plugin_problem else ""
        whole.append(clean(f"; devices of {system}'s plugin{problem}"), "red" if problem else "")
    if node.closed and not node.gone:
        closed = [f"device {device_words(each.device)} {each.cause}" for each in node.closed]
        whole.append(clean(f"; {listed(closed)}"), "red")
    if node.refused is not None:
        whole.append(f"; report rejected ({node.refused.cause}): ", "red")
        whole.append_text(plain(node.refused.message))
    return whole


def devices(items: Iterable[DeviceAnswer], look: Look = PLAIN) -> Rows:
    """Return the table with one row per device; `wide` shows its whole id."""
    amounts = ("MEMORY FREE", "CORES FREE", "SLOTS FREE")
    more = ("FAMILY", "NUMA") if look.wide else ()
    drops = () if look.wide else ("MODE", "SLOTS FREE", "CORES FREE", "MODEL")
    made = Rows("NODE", "#", "DEVICE", "MODEL", "MODE", *amounts, "STATE", "PODS", *more,
                right=("#", *amounts, "NUMA"), wraps=("MODEL", "STATE", "PODS"),
                drops=drops)  # fmt: skip
    for device in items:
        made.add_row(
            device.node, str(device.index),
            device.device if look.wide else device_words(device.device),
            device.model, device.mode,
            f"{device.memory_free_mib:,}/{device.memory_mib:,} MiB",
            cores_free(device), f"{device.slots_free}/{device.slots}",
            device_state(device), holders(device),
            *((device.family, "" if device.numa is None else str(device.numa))
              if look.wide else ()),
        )  # fmt: skip
    return made


def cores_free(device: DeviceAnswer) -> str:
    """Return free and total cores; `-` in MIG mode, where each instance has its own."""
    return "-" if device.mode == "mig" else f"{device.cores_free}/{device.cores}"


def device_state(device: DeviceAnswer) -> Text:
    """Return the device's state, with every reason why the device takes no new pods."""
    said = []
    if not device.present:
        said.append(Text("gone", "red"))
    elif not device.healthy:
        reason = plain(device.health_reason or "no reason given")
        said.append(Text("failed: ", "red").append_text(reason))
    if device.present and not device.node_ready:
        said.append(Text("agent not reporting" if device.node_silent else "node not ready", "red"))
    for word, cordon in (("cordoned: ", device.cordon), ("node cordoned: ", device.node_cordon)):
        if cordon:
            said.append(Text(word, "yellow").append_text(plain(cordon)))
    return Text("; ").join(said) if said else Text("healthy", "green")


def holders(device: DeviceAnswer) -> str:
    """Return the names of the pods on the device, without duplicates."""
    return listed(list(dict.fromkeys(f"{held.namespace}/{held.pod}" for held in device.holders)))


def gangs(items: Iterable[GangAnswer], _look: Look = PLAIN) -> Rows:
    """Return the table with one row per gang."""
    made = Rows("GANG", "REQUIRED", "PODS", "PHASES", "QUEUE", right=("REQUIRED", "PODS"),
                wraps=("PHASES",), drops=("QUEUE",))  # fmt: skip
    for gang in items:
        phases = ", ".join(f"{count} {name}" for name, count in shown_phases(gang.phases).items())
        lost = [f"{count} on {node} (not ready)" for node, count in gang.unready.items()]
        phases += f"; {' and '.join(lost)}" if lost else ""
        needs = str(gang.min_available) if gang.declared else "not declared"
        name = gang.namespace if gang.group == NOT_TOLD else gang.group
        made.add_row(name, needs, str(gang.pods), phases, gang.queue)
    return made


def queues(items: Iterable[QueueAnswer], _look: Look = PLAIN) -> Rows:
    """Return the table with one row per queue, indented below the queue above it."""
    shown = list(items)
    lends = ("USED/ENTITLED",) if any(each.parts for each in shown) else ()
    past = ("PAST USE",) if any(each.past_use for each in shown) else ()
    made = Rows("QUEUE", "WEIGHT", "STATE", "PODS", "PENDING", *lends, *past, "DEVICES",
                "USED/LIMIT", right=("WEIGHT", "PODS", "PENDING"),
                wraps=(*lends, *past, "DEVICES", "USED/LIMIT"),
                drops=("WEIGHT",))  # fmt: skip
    for queue in shown:
        models = [
            f"{count:,} x {model.removeprefix('NVIDIA ')}"
            for model, count in (queue.devices or {}).items()
        ]
        limits = _limits(queue.capability, queue.used)
        limits += [f"at most {most:,} x {card}" for card, most in sorted(queue.cards.items())]
        made.add_row(
            "  " * len(queue.above) + queue.queue, str(queue.weight),
            Text("open", "green") if queue.open else Text("closed", "yellow"),
            _count(queue.pods), _count(queue.waiting),
            *([", ".join(map(_part, queue.parts or ()))] if lends else ()),
            *([_past(queue.past_use)] if past else ()),
            NOT_TOLD if queue.devices is None else ", ".join(models),
            ", ".join(limits) or "no limit",
        )  # fmt: skip
    return made


def _part(part: QueuePart) -> str:
    """Return a queue's use and its entitlement, as in `10/7 GPUs, 3 borrowed`."""
    entitled = part_words(part, max(part.entitled, part.deserved))
    loans = (("borrowed", part.borrowed), ("lent", part.lent))
    notes = [f"{part_number(part, much)} {what}" for what, much in loans if much]
    return ", ".join((f"{part_number(part, part.used)}/{entitled}", *notes))


def _past(past: Mapping[str, int] | None) -> str:
    """Return the device hours that a queue used in the past: `84 GPU-hours`."""
    if past is None:
        return NOT_TOLD
    return ", ".join(
        f"{much / DEVICE:,.1f} {'GPU' if of == 'nvidia' else of}-hours"
        for of, much in sorted(past.items())
        if of not in ("cpu", "memory")
    )


def _count(count: int | None) -> str:
    return NOT_TOLD if count is None else str(count)


def quotas(items: Iterable[QuotaAnswer], _look: Look = PLAIN) -> Rows:
    """Return the table with one row per quota."""
    made = Rows("NAMESPACE", "QUOTA", "USED/LIMIT", wraps=("USED/LIMIT",))
    for quota in items:
        made.add_row(quota.namespace, quota.quota, ", ".join(_limits(quota.hard, quota.used)))
    return made


def _named(resource: str, much: int) -> str:
    said = of_resource(resource, much)
    return said if resource in ("cpu", GPU_MILLI) else f"{said} of {resource}"


def _limits(most: Mapping[str, int], used: Mapping[str, int] | None) -> list[str]:
    if used is None:
        return [f"at most {_named(name, much)}" for name, much in sorted(most.items())]
    return [
        f"{number_of_resource(name, used[name])}/{_named(name, much)}"
        if name in used else f"{name}: ignored, not a device resource"
        for name, much in sorted(most.items())
    ]  # fmt: skip
