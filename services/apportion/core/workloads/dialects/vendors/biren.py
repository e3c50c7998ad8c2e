"""The dialect of Biren GPUs: `birentech.com/gpu`, a number of whole GPUs.

The rules are those of HAMi's Biren device, whose annotations have 0 as memory and cores. Its
registration has no cores, so a GPU has 100."""

from apportion.core.workloads.dialects.dialect import Selecting
from apportion.core.workloads.dialects.hami_device import HamiDevice, Names
from apportion.core.workloads.dialects.inventory import WHOLE_ONLY, in_annotation

GPU = HamiDevice(
    family="biren",
    devices="Biren GPUs",
    names=Names("birentech.com/gpu"),
    word="Biren",
    type="Biren",
    selecting=Selecting(
        use_ids=("birentech.com/use-gpuuuid",), nouse_ids=("birentech.com/nouse-gpuuuid",)
    ),
)
DIALECT = GPU.dialect(
    "biren",
    section=GPU.names.section,
    render=GPU.allocated_whole,
    inventory=in_annotation(
        "hami.io/node-biren-register", GPU.family, GPU.names.number, **WHOLE_ONLY
    ),
)
