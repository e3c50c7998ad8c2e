"""What is answered to usage that comes of other tools and of haste."""

import re

import pytest
from click.testing import CliRunner

from apportion.cli.exits import UNREACHABLE, USAGE
from apportion.cli.main import root
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
    "get pods --phase pend",
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
    """Before anything is asked of a gateway."""
    told = {}
    for typed in WRONG:
        tried = CliRunner().invoke(root, typed.split(), env=NOWHERE)
        assert tried.exit_code == USAGE, tried.output
        told[typed] = tried.output[tried.output.index("Error: ") :]
    golden(told)


@pytest.mark.parametrize("typed", ["get pods -A", "get pods --phase pending", "get pods -n a"])
def test_what_people_know_from_elsewhere_is_taken(typed: str) -> None:
    """It comes as far as the gateway, which is not there."""
    tried = CliRunner().invoke(root, typed.split(), env=NOWHERE)
    assert tried.exit_code == UNREACHABLE, tried.output


def test_help_says_which_word_of_the_json_is_which_phase() -> None:
    """What is printed by one form can be asked for in another."""
    said = " ".join(CliRunner().invoke(root, ["get", "pods", "--help"]).output.split())
    assert re.search(r"\bpending\b[^.;]*--json[^.;]*\bwaiting\b", said)
