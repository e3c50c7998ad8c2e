"""What `up` says of a fleet and of ports before it begins anything."""

import asyncio
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from apportion.cli.up.fleet import Fleet
from apportion.cli.up.fork_server import ForkServer
from apportion.cli.up.main import FLEET, command
from apportion.cli.up.options import Wanted
from apportion.cli.up.standalone import PRICES_ENV, Up, check_ports
from apportion.cli.up.supervisor import UpFailed
from apportion.runtime.files.fleets import read_fleet


def test_nodes_alone_are_nodes_of_nothing() -> None:
    """Nobody gave a file, so it is not one that is spoken of: a spec is asked for, with this N."""
    tried = CliRunner().invoke(command, ["--nodes", "20"])
    assert tried.exit_code == 2
    assert "give that too, as in --fleet 8xH100-80GB --nodes 20" in tried.output
    assert "file" not in tried.output


def test_a_description_may_be_longer_than_the_name_of_a_file() -> None:
    """It is judged as a description, and what is wrong with it is said."""
    tried = CliRunner().invoke(command, ["--ephemeral", "--fleet", "+".join(["1xT4"] * 60 + ["7"])])
    assert tried.exit_code == 2
    assert "devices: '7' cannot be read; write COUNTxMODEL" in tried.output


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    """As whatever keeps it from starting, not as a mistake of this build."""
    (tmp_path / "file").touch()
    data = str(tmp_path / "file" / "data")
    tried = CliRunner().invoke(command, ["--gpus", "local", "--data", data])
    assert tried.exit_code == 3
    assert f"Error: cannot start: [Errno 20] Not a directory: '{data}'" in tried.output


def test_a_remark_about_prices_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody answers who could tell what there is to price: it is left out."""
    monkeypatch.setenv(PRICES_ENV, str(tmp_path / "prices.toml"))
    wanted = Wanted(
        data=tmp_path, ephemeral=False, nats_port=0, port=0, agent=(), fleet=Fleet("none"),
        samples=False, advice=(), exit_after_samples=False, began_s=0.0,
    )  # fmt: skip
    asyncio.run(Up(wanted, ForkServer(())).tell_unpriced())
    assert capsys.readouterr().out == ""


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
