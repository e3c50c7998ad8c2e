"""Tests that query parameters have limits. The error about an invalid parameter contains its name
and a fix."""

import pytest

from apportion.gateway.api.pages import PodsQuery
from apportion.gateway.api.query import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    WAIT_DEFAULT_S,
    PageQuery,
    RequestRefused,
    WaitQuery,
    parsed,
    wait_of,
)
from apportion_schemas.quantities import NAME_MAX


def test_defaults() -> None:
    """Without query parameters, a list has the default page size and a request returns at once."""
    query = parsed(PageQuery, {})
    assert (query.limit, query.after, query.after_revision) == (LIMIT_DEFAULT, "", 0)
    assert (wait_of({}).at_least, wait_of({}).wait_s) == (0, WAIT_DEFAULT_S)


def test_everything_given() -> None:
    """Each query parameter is read into its field."""
    asked = {"limit": "7", "continue": "42", "namespace": "a", "phase": "refused", "node": "n1"}
    query = parsed(PodsQuery, asked)
    assert (query.limit, query.after_revision) == (7, 42)
    assert (query.namespace, query.phase, query.node) == ("a", "refused", "n1")
    assert (wait_of({"at_least": "9", "wait_s": "0.5"}).at_least) == 9


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("limit", "0"),
        ("limit", str(LIMIT_MAX + 1)),
        ("limit", "-1"),
        ("limit", "1e3"),
        ("limit", "٣"),
        ("limit", "9" * 400),
        ("limit", ""),
        ("phase", "running"),
        ("namespace", "x" * 254),
        ("node", "x" * 254),
        ("continue", "x" * 254),
        ("color", "red"),
    ],
)
def test_wrong_list_parameter(name: str, text: str) -> None:
    """If a list parameter is malformed, out of range, too long or unknown, the gateway's error
    names it."""
    with pytest.raises(RequestRefused) as refused:
        parsed(PodsQuery, {name: text})
    assert refused.value.status == 400
    assert refused.value.answer.field == name
    assert refused.value.answer.fix
    assert len(refused.value.answer.error) < 400


@pytest.mark.parametrize("text", ["x", "-1", "1.5"])
def test_continue_of_a_list_by_revision(text: str) -> None:
    """A list that is ordered by revision refuses a cursor that is not a revision."""
    with pytest.raises(RequestRefused) as refused:
        _ = parsed(PageQuery, {"continue": text}).after_revision
    assert refused.value.answer.field == "continue"


@pytest.mark.parametrize("text", ["", "nan", "inf", "-1", "31", "soon"])
def test_wrong_wait(text: str) -> None:
    """The gateway refuses a waiting time that is out of range or not a number."""
    with pytest.raises(RequestRefused) as refused:
        wait_of({"wait_s": text})
    assert refused.value.answer.field == "wait_s"


def test_filter_of_another_list_is_not_known() -> None:
    """The gateway refuses a filter that only another list has, instead of ignoring it."""
    with pytest.raises(RequestRefused) as refused:
        parsed(PageQuery, {"phase": "placed"})
    assert "limit" in refused.value.answer.fix


def test_a_parameter_that_is_not_declared() -> None:
    """The error about an unknown parameter quotes the start of the parameter's name and lists the
    valid parameters."""
    parsed(WaitQuery, {"at_least": "1", "wait_s": "1"})
    with pytest.raises(RequestRefused) as refused:
        parsed(WaitQuery, {"at_least": "1", "x" * (NAME_MAX + 1): "1"})
    answer = refused.value.answer
    assert (answer.field, answer.fix) == ("x" * NAME_MAX, "use at_least, wait_s")
