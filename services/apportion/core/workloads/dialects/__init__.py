"""Dialects: the families of resource names and annotations that pods are written in today.

One small module per dialect says which names it claims, what amounts and limits under them mean,
what its device plugin is told and how that is read back; from there on nothing depends on how a pod
was written. To add one: a module beside these that makes a `DIALECT`, and its row in `listing`.
Invariant: a pod is read in one dialect, whole, or refused with the field, the value and the fix."""

from apportion.core.workloads.dialects.amounts import Container
from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.dialects.reading import NO_DIALECT, DeviceRequest, read_pod
from apportion.core.workloads.document import ManifestError

__all__ = ["NO_DIALECT", "Container", "DeviceRequest", "DialectConfig", "ManifestError", "read_pod"]
