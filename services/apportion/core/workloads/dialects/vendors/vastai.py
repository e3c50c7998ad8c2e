"""The dialect of VastAI accelerators: `vastaitech.com/va`, a number of whole cards or dies.

The rules are those of HAMi's Vastai device, whose annotations have 0 as memory and cores. Its
plugin registers either cards or their dies. Dies are chosen by index, while HAMi prefers cards with
the most free dies. With the device policy `mutex`, HAMi keeps the other dies of a card free; such a
pod is refused."""

from apportion.core.devices.chains import MUTEX
from apportion.core.workloads.dialects.dialect import Notes, Selecting, selected
from apportion.core.workloads.dialects.hami_device import HamiDevice, Names
from apportion.core.workloads.dialects.inventory import WHOLE_ONLY, in_annotation
from apportion_schemas import DeviceConstraints

VA = HamiDevice(
    family="vastai",
    devices="VastAI accelerators",
    names=Names("vastaitech.com/va"),
    word="Vastai",
    type="Vastai",
    selecting=Selecting(
        use_ids=("vastaitech.com/use-gpuuuid",), nouse_ids=("vastaitech.com/nouse-gpuuuid",)
    ),
)
POLICY = "hami.io/gpu-scheduler-policy"


def _choose(notes: Notes) -> DeviceConstraints:
    if MUTEX in map(str.strip, notes.values.get(POLICY, "").split(",")):
        problem = "would reserve whole cards, but only dies can be reserved"
        raise notes.refusal(POLICY, problem, f"remove {MUTEX}; a die is never shared")
    return selected(notes, VA.selecting)


DIALECT = VA.dialect(
    "vastai",
    section=VA.names.section,
    choose=_choose,
    render=VA.allocated_whole,
    inventory=in_annotation("hami.io/node-va-register", VA.family, VA.names.number, **WHOLE_ONLY),
)
