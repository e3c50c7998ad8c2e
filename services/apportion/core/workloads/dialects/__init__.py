"""Dialects: the families of resource names and annotations that pods are written in.

One small module per dialect defines the names that it claims, what amounts and limits under them
mean, and which annotations its device plugin reads. Everything else is independent of the dialect.
To add one, write a module with a `DIALECT`, and add its row in `listing`. Invariant: a pod is read
completely in one dialect, or refused with the field, the value and the fix."""

from apportion.core.workloads.dialects.amounts import Container
from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.dialects.reading import NO_DIALECT, DeviceRequest, read_pod
from apportion.core.workloads.document import ManifestError

__all__ = ["NO_DIALECT", "Container", "DeviceRequest", "DialectConfig", "ManifestError", "read_pod"]
