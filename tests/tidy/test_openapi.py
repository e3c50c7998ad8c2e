"""The OpenAPI document and the API reference match the gateway's endpoints."""

import re
from collections import Counter

from apportion.gateway.main import ENDPOINTS
from tests.support import generated
from tools.openapi import document, files


def test_what_is_committed_is_current() -> None:
    """The committed OpenAPI document and API reference equal those generated from the endpoints."""
    generated.assert_none(generated.outdated(files()))


def test_each_endpoint_is_declared_once() -> None:
    """No two endpoints have the same method and path, ignoring the names of path parameters."""
    counted = Counter((each.method, re.sub(r"{\w+}", "{}", each.path)) for each in ENDPOINTS)
    assert not [each for each, times in counted.items() if times > 1]


def test_each_operation_has_a_name_of_its_own() -> None:
    """Every operation has a unique name, because generated clients name their functions after
    it."""
    operations = [each for path in document()["paths"].values() for each in path.values()]
    assert len({each["operationId"] for each in operations}) == len(operations) == len(ENDPOINTS)
