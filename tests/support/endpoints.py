"""Find the endpoint of an API path."""

import re

from apportion.gateway.api.endpoint import Endpoint
from apportion.gateway.main import ENDPOINTS


def endpoint_at(path: str) -> Endpoint:
    """Return the API endpoint that serves this path. The path does not include the API's prefix."""
    [found] = (
        each for each in ENDPOINTS if re.fullmatch(re.sub(r"{\w+}", "[^/]+", each.path), path)
    )
    return found
