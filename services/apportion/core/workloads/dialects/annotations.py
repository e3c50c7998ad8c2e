"""How nodes and devices are preferred, and among which devices a pod chooses: its annotations.

The preferences are HAMi's and are read in every dialect; the choice is the dialect's own.

Invariant: an annotation that asks for something we do not do is refused by name, never passed over.
"""

from collections.abc import Mapping
from typing import NamedTuple

from apportion.core.devices.chains import CHAINABLE, MUTEX
from apportion.core.workloads.dialects.dialect import Dialect
from apportion.core.workloads.dialects.listing import reserved
from apportion.core.workloads.dialects.notes import Notes, one
from apportion_schemas import DeviceConstraints, DeviceWeights

POLICIES = ("binpack", "spread")
SCORING_WEIGHTS = "hami.io/device-scoring-weights"
WEIGHT_MAX = 1000
WEIGHT_DIGITS_MAX = 9
WEIGHTS = {"slot": "slots", "core": "cores", "memory": "memory"}
"""What HAMi calls each weight, and we."""
NODE_POLICY = "hami.io/node-scheduler-policy"
DEVICE_POLICY = "hami.io/gpu-scheduler-policy"
GROUP_POLICY = "volcano.sh/vgpu-podgroup-policy"


class Selection(NamedTuple):
    """What the annotations say; an empty policy leaves it to the cluster's."""

    devices: DeviceConstraints
    node_policy: str
    device_policy: str
    device_weights: DeviceWeights | None


def selection(annotations: Mapping[str, str], *, field: str, dialect: Dialect) -> Selection:
    """What the annotations of a pod that asks for devices in this dialect mean.

    Raises:
        ManifestError: a value is malformed, or two contradict.
    """
    notes = Notes(annotations, field)
    for key, problem in reserved().items():
        if key in annotations and key not in dialect.reserved:
            raise notes.refusal(key, problem.format(devices=dialect.devices), "remove it")
    policy = one(notes, (DEVICE_POLICY,), _chain) or ""
    weights = one(notes, (SCORING_WEIGHTS,), _weights)
    if not policy and weights is None:
        policy, weights = dialect.device_choice
    if one(notes, (GROUP_POLICY,), _policy) == "spread":
        policy = _alone(policy)
    return Selection(
        devices=dialect.choose(notes),
        node_policy=one(notes, (NODE_POLICY,), _policy) or "",
        device_policy=policy,
        device_weights=weights,
    )


def _policy(notes: Notes, key: str) -> str:
    value = notes.values[key].strip()
    if value not in POLICIES:
        raise notes.refusal(
            key, "is not implemented", f"write one of {', '.join(POLICIES)}, or remove it"
        )
    return value


def _alone(chain: str) -> str:
    """The chain, and only devices that nobody holds.

    Volcano's `spread` puts no two pods of one PodGroup onto a card, and its `binpack` says nothing
    beyond the cluster's policy. Here it also keeps the pod off cards of other pods, which is more
    than was asked, and never what was forbidden.
    """
    return ",".join(dict.fromkeys((*filter(None, chain.split(",")), MUTEX)))


def _chain(notes: Notes, key: str) -> str:
    """A chain of device policies; a name that comes twice counts once."""
    names = tuple(dict.fromkeys(name.strip() for name in notes.values[key].split(",")))
    if not set(names) <= set(CHAINABLE):
        raise notes.refusal(
            key,
            "is no policy for devices",
            f"write one of {', '.join(CHAINABLE)}, or several with commas, or remove it",
        )
    return ",".join(names)


def _weights(notes: Notes, key: str) -> DeviceWeights:
    """Three weights, as in `slot=1,core=1,memory=3`, in any order."""
    pairs = [part.partition("=") for part in notes.values[key].split(",")]
    found = {name.strip(): value.strip() for name, _, value in pairs}
    if len(pairs) != len(WEIGHTS) or set(found) != set(WEIGHTS):
        raise notes.refusal(
            key, "does not name slot, core and memory once each", 'write "slot=1,core=1,memory=3"'
        )
    if not all(value.isascii() and value.isdecimal() for value in found.values()) or any(
        len(value) > WEIGHT_DIGITS_MAX or int(value) > WEIGHT_MAX for value in found.values()
    ):
        raise notes.refusal(
            key, "has a weight that is no whole number", f"write numbers from 0 to {WEIGHT_MAX}"
        )
    weights = {ours: int(found[theirs]) for theirs, ours in WEIGHTS.items()}
    if not any(weights.values()):
        raise notes.refusal(key, "weighs nothing", "let at least one be more than 0")
    return DeviceWeights(**weights)
