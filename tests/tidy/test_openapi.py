"""The OpenAPI document and the API reference match the gateway's endpoints."""

import re
from collections import Counter

import pytest

from apportion.gateway.main import ENDPOINTS
from tests.tidy.tree import ROOT
from tools.openapi import document, files


@pytest.mark.parametrize("path", files())
def test_what_is_committed_is_current(path: str) -> None:
    """The committed files are current. Fix: `make generate`."""
    assert (ROOT / path).read_text("utf-8") == files()[path]


def test_each_endpoint_is_declared_once() -> None:
    """No two endpoints share a method and a path, whatever their path parameters are called."""
    counted = Counter((each.method, re.sub(r"{\w+}", "{}", each.path)) for each in ENDPOINTS)
    assert not [each for each, times in counted.items() if times > 1]


def test_each_operation_has_a_name_of_its_own() -> None:
    """Every operation has a unique name, because generated clients name their functions after
    it."""
    operations = [each for path in document()["paths"].values() for each in path.values()]
    assert len({each["operationId"] for each in operations}) == len(operations) == len(ENDPOINTS)
