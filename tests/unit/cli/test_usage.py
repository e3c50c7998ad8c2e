"""Tests of usage errors, and of options that users know from similar tools."""

import re

import click
import pytest
from click.testing import CliRunner

from apportion.cli.exits import UNREACHABLE, USAGE
from apportion.cli.main import root
from apportion.cli.usage import described
from tests.support.golden import Golden

NOWHERE = {"APPORTION_GATEWAY": "http://127.0.0.1:1", "APPORTION_NATS_URL": "nats://127.0.0.1:1"}


WRONG = [
    "submit fits.yaml",
    "plan fits.yaml",
    "policy set spread",
    "replay --without n1",
    "plan --without n1",
    "replay --form 1",
    "replay n1",
    "get pods -n a -n b",
    "get devices --node a --node b",
    "get pods -A -n a",
    "get pods --phase waiting",
    "get events",
    "get deployments",
    "describe pod x",
    "logs x",
    "apply -f x",
    "get evens",
    "resize p --memory 3Gi",
    "run --memory 1500M -- true",
    "resize p --memory 3Gib",
    "resize p --memory 90Ti",
    "cordon n1",
    "cordon n1 --reason=",
    "drain n1",
    "ledger set-aside 7",
]


def test_wrong_usage_is_met_with_what_to_write(golden: Golden) -> None:
    """After a usage error, the CLI prints the correct usage and sends no request."""
    told = {}
    for typed in WRONG:
        tried = CliRunner().invoke(root, typed.split(), env=NOWHERE)
        assert tried.exit_code == USAGE, tried.output
        told[typed] = tried.output[tried.output.index("Error: ") :]
    golden(told)


@pytest.mark.parametrize("typed", ["get pods -A", "get pods --phase pending", "get pods -n a"])
def test_what_people_know_from_elsewhere_is_taken(typed: str) -> None:
    """Options that users know from kubectl are accepted and reach the gateway."""
    tried = CliRunner().invoke(root, typed.split(), env=NOWHERE)
    assert tried.exit_code == UNREACHABLE, tried.output


CONNECTION_FLAGS = (
    "--gateway", "--token", "--gateway-ca", "--gateway-cert", "--gateway-cert-key", "--data",
    "--nats", "--nats-key", "--nats-token", "--nats-ca", "--nats-cert", "--nats-cert-key",
    "--ledger-key",
)  # fmt: skip


def flags(*typed: str) -> set[str]:
    """Return the options that are listed on a verb's help page."""
    shown = CliRunner().invoke(root, [*typed])
    assert shown.exit_code == 0, shown.output
    return set(re.findall(r"^ {2}(?:-\w, )?(--[\w-]+)", shown.output, re.MULTILINE))


@pytest.mark.parametrize("verb", ["cordon", "get pods", "ledger check", "run", "submit"])
def test_connection_options_are_listed_by_a_topic_only(verb: str) -> None:
    """Only the help topic `connection` lists the options for connecting. The help of each verb
    refers to it."""
    shown = CliRunner().invoke(root, [*verb.split(), "--help"]).output
    assert flags(*verb.split(), "--help").isdisjoint(CONNECTION_FLAGS)
    assert "apportion help connection" in shown
    assert flags("help", "connection") > set(CONNECTION_FLAGS)


def test_help_of_a_verb() -> None:
    """`apportion help VERB` prints the same page as `apportion VERB --help`."""
    page = CliRunner().invoke(root, ["get", "pods", "--help"]).output
    assert CliRunner().invoke(root, ["help", "get", "pods"]).output == page
    assert CliRunner().invoke(root, ["help", "get", "podz"]).exit_code == USAGE
    assert CliRunner().invoke(root, ["help", "podz"]).exit_code == USAGE


def test_exit_codes_are_a_list() -> None:
    """A verb's help can be split into its text and a list of its exit codes."""
    command = root.get_command(click.Context(root), "plan")
    assert command is not None
    text, codes = described(command)
    assert [code for code, _ in codes] == ["0", "1", "2", "3", "5", "6"]
    assert "Exit codes" not in text
