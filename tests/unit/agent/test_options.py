"""Tests of the command-line options of an agent that makes shares itself."""

import pytest
from click.testing import CliRunner

from apportion.agent.main import command


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--runs", "--kubelet", "/var/lib/kubelet"), "exclude each other"),
        (("--runs", "--nodes", "2", "--simulate", "1xT4"), "serve one node"),
        (("--runs", "--dra"), "--dra requires --kubelet"),
        (("--runs", "--no-cdi"), "--no-cdi requires --kubelet"),
        (("--kubelet", "/var/lib/kubelet", "--no-cdi", "--dra"), "omit --no-cdi"),
        (("--ignore-xid", "48", "--critical-xid", "48"), "both name 48"),
        (("--ignore-xid", "0"), "0 is not in the range 1<=x<=9999"),
        (("--critical-xid", "ecc"), "'ecc' is not a valid integer"),
        (("--runs", "--library", "/nonexistent/libvgpu.so"), "does not exist"),
    ],
)
def test_what_does_not_go_together_is_refused(words: tuple[str, ...], expected: str) -> None:
    """The agent refuses contradictory options before it connects to the ledger."""
    url = "nats://agent:secret@127.0.0.1:4222"
    done = CliRunner().invoke(command, ("--nats", url, *words))
    assert done.exit_code != 0
    assert expected in done.output
