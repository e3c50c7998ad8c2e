"""What `up` says of a fleet before it begins anything."""

from click.testing import CliRunner

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
    assert f"[default: {len(fleet)} nodes, with H100, A100, V100, T4, L40S and Ascend310P]" in said
    models = {device.model for node in fleet for device in node.devices}
    assert len(models) == 6
