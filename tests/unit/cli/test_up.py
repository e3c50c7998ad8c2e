"""What `up` says of a fleet and of ports before it begins anything."""

import socket

import pytest
from click.testing import CliRunner

from apportion.cli.standalone import check_ports
from apportion.cli.supervisor import UpFailed
from apportion.cli.up import FLEET, command
from apportion.runtime.files.fleets import read_fleet


def test_nodes_alone_are_nodes_of_nothing() -> None:
    """Nobody gave a file, so it is not one that is spoken of: a spec is asked for, with this N."""
    tried = CliRunner().invoke(command, ["--nodes", "20"])
    assert tried.exit_code == 2
    assert "give that too, as in --fleet 8xH100-80GB --nodes 20" in tried.output
    assert "file" not in tried.output


def test_help_says_what_is_simulated_by_default() -> None:
    """As many nodes as there are, and of each model."""
    fleet = read_fleet(FLEET)
    said = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    assert (
        f"of a new one {len(fleet)} nodes, with H100, A100, V100, T4, L40S and Ascend310P]" in said
    )
    models = {device.model for node in fleet for device in node.devices}
    assert len(models) == 6


def test_ports_that_are_taken_are_told_at_once() -> None:
    """Who runs a second `up` names both in one go; of one that is taken, only that."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        first, second = (each.getsockname()[1] for each in (one, two))
        with pytest.raises(UpFailed) as both:
            check_ports(f"127.0.0.1:{first}", second)
        with pytest.raises(UpFailed) as alone:
            check_ports("127.0.0.1:0", second)
    for part in (f":{first} (", f":{second} (", "choose free ports with --port and --nats-port"):
        assert part in str(both.value)
    assert str(alone.value).endswith("choose a free port with --nats-port")
    check_ports("127.0.0.1:0", 0)
