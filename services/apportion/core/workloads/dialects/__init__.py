"""Dialects: the sets of resource names and annotations in which pods request devices.

To add a dialect, write a module with a `DIALECT`, and add its row in `listing`. Invariant: a pod is
read completely in one dialect, or refused with the field, the value and the fix. After reading,
nothing depends on the dialect."""

from apportion.core.workloads.dialects.amounts import Container
from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.dialects.reading import NO_DIALECT, DeviceRequest, read_pod
from apportion.core.workloads.document import ManifestError

__all__ = ["NO_DIALECT", "Container", "DeviceRequest", "DialectConfig", "ManifestError", "read_pod"]
