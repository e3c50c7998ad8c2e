"""The endpoint that a path of the API belongs to."""

import re

from apportion.gateway.api.endpoint import Endpoint
from apportion.gateway.main import ENDPOINTS


def endpoint_at(path: str) -> Endpoint:
    """The one at this path, which is below the prefix and has its parts filled in."""
    [found] = (
        each for each in ENDPOINTS if re.fullmatch(re.sub(r"{\w+}", "[^/]+", each.path), path)
    )
    return found
