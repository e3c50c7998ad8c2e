"""Read and check the configuration document, and derive settings of services from it.

Invariant: in a `Configuration` that passes `check`, every key has an effect and one meaning."""

from apportion.core.configuration.checks import check, manifest_config
from apportion.core.configuration.reading import passed_over, read_configuration

__all__ = ["check", "manifest_config", "passed_over", "read_configuration"]
