"""Number and text types with bounds, for the fields of events.

Events are untrusted input, so every field has a limit. Amounts are whole numbers with the unit in
the field's name. An amount out of range is refused at decoding, before any fold sees it."""

from typing import Annotated

from msgspec import Meta, Struct

NAME_MAX = 253  # a Kubernetes DNS subdomain name
LEVELS_MAX = 16  # levels of one topology, as in KAI and Kueue
PARTS_MAX = 256  # subgroups of one gang
TEXT_MAX = 1024  # free text: a reason, a message
MEMORY_MIB_MAX = 1 << 24  # 16 TiB on one device
HOST_MEMORY_MIB_MAX = 1 << 25  # 32 TiB on one node
CPU_MILLI_MAX = 1_000_000  # 1,000 CPUs of one node
COUNT_MAX = 64  # devices that one container may ask for, and devices of one node
WHOLE = 100  # percent
CONTAINERS_MAX = 128  # containers of one pod
GANG_BATCH_MAX = 900  # pods of a gang in one atomic batch; the server takes 1,000 messages of it

Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
Text = Annotated[str, Meta(max_length=TEXT_MAX)]
Key = Annotated[str, Meta(max_length=317)]  # prefix/name of a label: 253 + 1 + 63
MemoryMib = Annotated[int, Meta(ge=0, le=MEMORY_MIB_MAX)]
HostMemoryMib = Annotated[int, Meta(ge=0, le=HOST_MEMORY_MIB_MAX)]
CpuMilli = Annotated[int, Meta(ge=0, le=CPU_MILLI_MAX)]
Cores = Annotated[int, Meta(ge=0, le=10_000)]
Percent = Annotated[int, Meta(ge=0, le=100)]
Count = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
Index = Annotated[int, Meta(ge=0, lt=COUNT_MAX)]  # of a device in its node
Weight = Annotated[int, Meta(ge=0, le=1000)]
Natural = Annotated[int, Meta(ge=0, le=1 << 53)]
NOTICE_MAX_S = 3600
# between the eviction of a pod and its deletion; the grace period of its spec follows
NoticeSeconds = Annotated[int, Meta(ge=0, le=NOTICE_MAX_S)]
DEADLINE_MAX_S = (1 << 31) - 1  # as in Kubernetes' ValidatePodSpec
Priority = Annotated[int, Meta(ge=-(1 << 31), le=1 << 31)]
Labels = dict[Key, Text]


class Payload(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """Base class of all data in events: immutable, without unknown fields or defaults in JSON.

    The garbage collector skips these objects, because immutable objects form no reference cycles.
    """
