"""The dialect of Hygon DCUs: `hygon.com/dcunum`, memory in MiB, percent of cores.

The rules are those of HAMi's Hygon device. A request without cores gets the DCU exclusively."""

from apportion.core.workloads.dialects.dialect import Selecting
from apportion.core.workloads.dialects.hami_device import HamiDevice, Names
from apportion.core.workloads.dialects.inventory import in_annotation

DCU = HamiDevice(
    family="hygon",
    devices="DCUs",
    names=Names("hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores"),
    word="dcu",
    type="DCU",
    selecting=Selecting(
        use_types=("hygon.com/use-dcutype",),
        nouse_types=("hygon.com/nouse-dcutype",),
        use_ids=("hygon.com/use-gpuuuid",),
        nouse_ids=("hygon.com/nouse-gpuuuid",),
    ),
)
DIALECT = DCU.dialect(
    "hygon",
    section=DCU.names.section | {"memoryFactor": 1},
    inventory=in_annotation("hami.io/node-dcu-register", DCU.family, DCU.names.number),
)
