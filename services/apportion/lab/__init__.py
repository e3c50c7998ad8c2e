"""The laboratory: try fleets, manifests, traces and ledgers with the real engine.

    from apportion.lab import Cluster, read_fleet, read_manifests, record, replay

`docs/contribute/lab.md` is its guide; `apportion plan` and `apportion replay` use these functions.
Invariant: nothing here appends to a ledger. Names are imported on first use, because only a part of
the laboratory needs the solver."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from apportion.lab.changes import Changes, WishInvalid
    from apportion.lab.cluster import (
        Cluster,
        Pods,
        compare,
        compare_policies,
        read_manifests,
        rows,
        slices,
    )
    from apportion.lab.course import CourseFailed
    from apportion.lab.forecast_meter import ForecastFigures, ForecastMeter
    from apportion.lab.job_meter import JobFigures, JobMeter
    from apportion.lab.jobs import Rules, Trace, workload_of
    from apportion.lab.ledgers import SpanInvalid, record
    from apportion.lab.packing import Packed, pack, shuffled
    from apportion.lab.recording import Recorded
    from apportion.lab.replaying import Otherwise, Replay, replay
    from apportion.lab.setups import Setup
    from apportion.lab.traces import (
        TraceInvalid,
        read_trace,
        read_trace_jobs,
        read_trace_nodes,
        read_trace_queues,
    )
    from apportion.runtime.files.fleets import FleetInvalid, numbered_nodes, read_fleet

_WHERE: Final = {
    "apportion.lab.changes": ("Changes", "WishInvalid"),
    "apportion.lab.cluster": (
        "Cluster", "Pods", "compare", "compare_policies", "read_manifests", "rows", "slices",
    ),
    "apportion.lab.course": ("CourseFailed",),
    "apportion.lab.forecast_meter": ("ForecastFigures", "ForecastMeter"),
    "apportion.lab.job_meter": ("JobFigures", "JobMeter"),
    "apportion.lab.jobs": ("Rules", "Trace", "workload_of"),
    "apportion.lab.ledgers": ("SpanInvalid", "record"),
    "apportion.lab.packing": ("Packed", "pack", "shuffled"),
    "apportion.lab.recording": ("Recorded",),
    "apportion.lab.replaying": ("Otherwise", "Replay", "replay"),
    "apportion.lab.setups": ("Setup",),
    "apportion.lab.traces": (
        "TraceInvalid", "read_trace", "read_trace_jobs", "read_trace_nodes", "read_trace_queues",
    ),
    "apportion.runtime.files.fleets": ("FleetInvalid", "numbered_nodes", "read_fleet"),
}  # fmt: skip
_MODULE: Final = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "Changes", "Cluster", "CourseFailed", "FleetInvalid", "ForecastFigures", "ForecastMeter",
    "JobFigures", "JobMeter", "Otherwise", "Packed", "Pods", "Recorded", "Replay", "Rules", "Setup",
    "SpanInvalid", "Trace", "TraceInvalid", "WishInvalid", "compare", "compare_policies",
    "numbered_nodes", "pack", "read_fleet", "read_manifests", "read_trace", "read_trace_jobs",
    "read_trace_nodes", "read_trace_queues", "record", "replay", "rows", "shuffled", "slices",
    "workload_of",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import an exported name on first use."""
    if name not in _MODULE:
        raise AttributeError(f"apportion.lab has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_MODULE[name]), name)
