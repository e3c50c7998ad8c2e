"""The bounded scalar types that events are made of.

An event comes from outside, so every field has a limit here, once. Amounts are whole numbers with
their unit in the field's name; a negative or absurd amount is refused when the event is decoded,
before it can reach a fold."""

from typing import Annotated

from msgspec import Meta, Struct

NAME_MAX = 253  # a Kubernetes DNS subdomain name
TEXT_MAX = 1024  # free text: a reason, a message
MEMORY_MIB_MAX = 1 << 24  # 16 TiB on one device
HOST_MEMORY_MIB_MAX = 1 << 25  # 32 TiB on one node
CPU_MILLI_MAX = 1_000_000  # 1,000 CPUs of one node
COUNT_MAX = 64  # devices that one container may ask for, and devices of one node
WHOLE = 100  # percent
CONTAINERS_MAX = 128  # containers of one pod
GANG_PODS_MAX = 900  # placed together: one atomic batch, and the server takes 1,000 messages of it

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
Priority = Annotated[int, Meta(ge=-(1 << 31), le=1 << 31)]
Labels = dict[Key, Text]


class Payload(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """What every part of an event is: immutable, strict, and silent about its defaults.

    What never changes holds nothing that holds it: the collector of cycles need not know of it."""
