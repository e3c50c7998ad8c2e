"""What holds for every test: examples that are the same in every run, and logs put back after it.

By itself Hypothesis draws other examples in every run, and takes one that was slow for a fault, as
it is where the machine was busy elsewhere: a change would fail by chance for what is none of it.
More of them, and so others, are drawn with `PROPERTIES_EFFORT=10`, or by
`--hypothesis-profile=default`.
"""

import logging
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

settings.register_profile(
    "the same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("the same")


@pytest.fixture(autouse=True)
def _logs_put_back() -> Iterator[None]:
    """A service or verb that ran in this process has set them up: the next test begins without."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    before = structlog.get_config() if structlog.is_configured() else None
    yield
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)
