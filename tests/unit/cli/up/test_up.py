"""Tests of what `up` checks before it starts its services."""

import asyncio
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from apportion.cli.up.fleet import PRICES_ENV, Fleet, Wanted
from apportion.cli.up.fork_server import ForkServer
from apportion.cli.up.main import FLEET, command
from apportion.cli.up.standalone import Up, check_ports
from apportion.cli.up.supervisor import UpFailed
from apportion.runtime.files.fleets import read_fleet
from tests.support.golden import Golden


def test_nodes_alone_are_nodes_of_nothing(golden: Golden) -> None:
    """`up --nodes` without a description of the nodes is a usage error, which asks for a
    description."""
    tried = CliRunner().invoke(command, ["--nodes", "20"])
    assert tried.exit_code == 2
    assert "file" not in tried.output
    golden({"--nodes 20": tried.output})


def test_a_description_may_be_longer_than_the_name_of_a_file() -> None:
    """If a fleet description is longer than a file name may be, `up` still reads it as a
    description."""
    tried = CliRunner().invoke(command, ["--ephemeral", "--fleet", "+".join(["1xT4"] * 60 + ["7"])])
    assert tried.exit_code == 2
    assert "'7'" in tried.output
    assert "COUNTxMODEL" in tried.output


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    """If `up` cannot create its data folder, it fails with exit code 3."""
    (tmp_path / "file").touch()
    data = str(tmp_path / "file" / "data")
    tried = CliRunner().invoke(command, ["--gpus", "local", "--data", data])
    assert tried.exit_code == 3
    assert f"[Errno 20] Not a directory: '{data}'" in tried.output


def test_a_remark_about_prices_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`up` notes which GPUs have no price. If the gateway does not answer, `up` omits the note and
    continues."""
    monkeypatch.setenv(PRICES_ENV, str(tmp_path / "prices.toml"))
    wanted = Wanted(
        data=tmp_path, ephemeral=False, nats_port=0, port=0, agent=(), fleet=Fleet("none"),
        samples=False, advice=(), exit_after_samples=False, began_s=0.0,
    )  # fmt: skip
    asyncio.run(Up(wanted, ForkServer(())).tell_unpriced())
    assert capsys.readouterr().out == ""


def test_help_says_what_is_simulated_by_default() -> None:
    """The help of `up` states how many nodes the default fleet has, and their GPU models."""
    fleet = read_fleet(FLEET)
    said = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    assert f" {len(fleet)} nodes" in said
    for model in ("H100", "A100", "V100", "T4", "L40S", "Ascend310P"):
        assert model in said
    models = {device.model for node in fleet for device in node.devices}
    assert len(models) == 6


def test_ports_that_are_taken_are_told_at_once() -> None:
    """If several ports are in use, a single error names all of them, each with its option."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        first, second = (each.getsockname()[1] for each in (one, two))
        with pytest.raises(UpFailed) as both:
            check_ports(f"127.0.0.1:{first}", second)
        with pytest.raises(UpFailed) as alone:
            check_ports("127.0.0.1:0", second)
    for part in (f":{first} (", f":{second} (", "--port", "--nats-port"):
        assert part in str(both.value)
    assert "--nats-port" in str(alone.value)
    assert "--port" not in str(alone.value)
    check_ports("127.0.0.1:0", 0)
