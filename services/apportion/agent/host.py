"""The machine's own CPU and memory, for where no Kubernetes tells them."""

from __future__ import annotations

import os
from pathlib import Path

from apportion_schemas import HOSTNAME, Host

_KIB_PER_MIB = 1024


def local_host(node: str) -> Host:
    """What this machine has, labelled as a kubelet labels its node.

    Raises OSError where /proc is not mounted.
    """
    fields = dict(
        line.split(":", 1) for line in Path("/proc/meminfo").read_text("ascii").splitlines()
    )
    memory_kib = int(fields["MemTotal"].split()[0])
    return Host(
        cpu_milli=(os.cpu_count() or 1) * 1_000,
        memory_mib=memory_kib // _KIB_PER_MIB,
        labels={HOSTNAME: node},
    )
