"""The one configuration document: read, checked, and turned into what each service needs of it.

Pure: a parsed document comes in, a frozen `Configuration` or a `ManifestError` goes out. It reaches
every service as the event `ConfigurationChanged`, so no two of them can disagree on a name.

Invariant: a `Configuration` that `check` passes has no key without an effect, and none of two
meanings."""

from apportion.core.configuration.checks import check, manifest_config
from apportion.core.configuration.reading import passed_over, read_configuration

__all__ = ["check", "manifest_config", "passed_over", "read_configuration"]
