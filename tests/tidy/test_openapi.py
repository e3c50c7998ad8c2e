"""The API's OpenAPI document and reference page are those that the gateway's endpoints make."""

import re
from collections import Counter

import pytest

from apportion.gateway.main import ENDPOINTS
from tests.tidy.tree import ROOT
from tools.openapi import document, files


@pytest.mark.parametrize("path", files())
def test_what_is_committed_is_current(path: str) -> None:
    """`make generate` mends it."""
    assert (ROOT / path).read_text("utf-8") == files()[path]


def test_each_endpoint_is_declared_once() -> None:
    """No two share a method and a path, whatever the parts of the path are called."""
    counted = Counter((each.method, re.sub(r"{\w+}", "{}", each.path)) for each in ENDPOINTS)
    assert not [each for each, times in counted.items() if times > 1]


def test_each_operation_has_a_name_of_its_own() -> None:
    """Clients that are generated call their functions so."""
    operations = [each for path in document()["paths"].values() for each in path.values()]
    assert len({each["operationId"] for each in operations}) == len(operations) == len(ENDPOINTS)
