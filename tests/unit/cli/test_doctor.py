"""What `doctor` says where it can look at nothing."""

from pathlib import Path

from click.testing import CliRunner

from apportion.cli.doctor import command
from apportion.cli.exits import UNREACHABLE


def test_that_nothing_runs_is_said_once(tmp_path: Path) -> None:
    """Ledger and gateway of a folder are away together; one that was named has words of its own."""
    env = {"APPORTION_DATA": str(tmp_path), "APPORTION_NATS_URL": "", "APPORTION_GATEWAY": ""}
    alone = CliRunner().invoke(command, [], env=env)
    assert alone.exit_code == UNREACHABLE
    assert alone.output.count(str(tmp_path)) == 1
    assert "--nats URL" in alone.output
    assert "--gateway URL" in alone.output
    url = "http://127.0.0.1:1"
    named = CliRunner().invoke(command, ["--gateway", url], env=env)
    assert (named.exit_code, url in named.output) == (UNREACHABLE, True)
