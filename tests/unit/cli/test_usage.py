"""What is answered to usage that comes of other tools and of haste."""

import re

import pytest
from click.testing import CliRunner

from apportion.cli.exits import UNREACHABLE, USAGE
from apportion.cli.main import root
from apportion.cli.usage import SAY_WHY

NOWHERE = {
    "APPORTION_GATEWAY": "http://127.0.0.1:1",
    "APPORTION_NATS_URL": "nats://127.0.0.1:1",
}


@pytest.mark.parametrize(
    ("typed", "answered"),
    [
        ("submit fits.yaml", "write -f fits.yaml"),
        ("plan fits.yaml", "write -f fits.yaml"),
        ("policy set spread", "write --nodes spread, --devices spread, or both"),
        ("replay --without n1", "Did you mean '--lose'?"),
        ("plan --without n1", "Did you mean '--lose'?"),
        ("replay --form 1", "'--from', '--to'?"),
        ("replay n1", "Got unexpected extra argument (n1)"),
        ("get pods -n a -n b", "'-n' / '--namespace': given 2 times"),
        ("get devices --node a --node b", "'--node': given 2 times"),
        ("get pods -A -n a", "-A and -n: choose one"),
        ("get pods --phase pend", "'pend' is not one of"),
        ("get events", "`apportion tail` shows events, `apportion history NAME` those of one"),
        ("get deployments", "`apportion get pods` lists pods, whoever made them"),
        ("describe pod x", "`apportion why POD` says of a pod why"),
        ("logs x", "`apportion tail` shows what happens"),
        ("apply -f x", "`apportion submit -f FILE` takes manifests"),
        ("get evens", "No such command 'evens'"),
        ("resize p --memory 3Gi", "'3Gi' is no whole number; it is in MiB: write 3072"),
        ("run --memory 1500M -- true", "'1500M' is no whole number; it is in MiB: write 1431"),
        ("resize p --memory 3Gib", "'3Gib' is not a valid integer range"),
        ("resize p --memory 90Ti", "'90Ti' is not a valid integer range"),
        ("cordon n1", SAY_WHY),
        ("cordon n1 --reason=", SAY_WHY),
        ("drain n1", SAY_WHY),
        ("ledger set-aside 7", SAY_WHY),
    ],
)
def test_wrong_usage_is_met_with_what_to_write(typed: str, answered: str) -> None:
    """Before anything is asked of a gateway."""
    tried = CliRunner().invoke(root, typed.split(), env=NOWHERE)
    assert tried.exit_code == USAGE, tried.output
    assert answered in " ".join(tried.output.split())


@pytest.mark.parametrize("typed", ["get pods -A", "get pods --phase pending", "get pods -n a"])
def test_what_people_know_from_elsewhere_is_taken(typed: str) -> None:
    """It comes as far as the gateway, which is not there."""
    tried = CliRunner().invoke(root, typed.split(), env=NOWHERE)
    assert tried.exit_code == UNREACHABLE, tried.output


def test_help_says_which_word_of_the_json_is_which_phase() -> None:
    """What is printed by one form can be asked for in another."""
    said = " ".join(CliRunner().invoke(root, ["get", "pods", "--help"]).output.split())
    assert re.search(r"\bpending\b[^.;]*--json[^.;]*\bwaiting\b", said)
