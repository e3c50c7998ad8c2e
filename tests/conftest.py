"""What every test leaves as it found it: where the logs of this process go."""

import logging
from collections.abc import Iterator

import pytest
import structlog


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
