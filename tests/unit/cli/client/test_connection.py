"""Tests of how the CLI finds the ledger and the gateway. Explicit options come first, then the
connection file of a running `apportion up`."""

import json
import os
import socket
import stat
from pathlib import Path

import pytest

from apportion.cli.client.connection import (
    DATA_ENV,
    Connection,
    Where,
    default_data,
    elsewhere,
    read_connection,
    write_connection,
)
from apportion.cli.exits import UNREACHABLE, Unreachable


def test_told_wins(tmp_path: Path) -> None:
    """If an option or environment variable gives the address, the CLI uses it unchanged and does
    not read the data folder."""
    where = Where(data=tmp_path / "none", nats="nats://u:p@h:1", gateway="http://h:2/")
    assert where.reach().url == "nats://u:p@h:1"
    assert where.gateway_url() == "http://h:2"


def test_the_server_of_up_is_met_without_the_certificates_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """APPORTION_NATS_CA is for a cluster's server. The CLI ignores it for a local `apportion
    up`."""
    monkeypatch.setenv("APPORTION_NATS_CA", "ca.crt")
    Where(data=tmp_path, nats="tls://h:1").reach()
    assert os.environ["APPORTION_NATS_CA"] == "ca.crt"
    with pytest.raises(Unreachable):
        Where(data=tmp_path).reach()
    assert "APPORTION_NATS_CA" not in os.environ


def test_found(tmp_path: Path) -> None:
    """The CLI reads the connection file of a running `apportion up`. The file has mode 0600."""
    write_connection(tmp_path, Connection(gateway="http://127.0.0.1:8470", processes={"agent": 7}))
    assert Where(data=tmp_path).gateway_url() == "http://127.0.0.1:8470"
    assert read_connection(tmp_path).processes == {"agent": 7}
    mode = (tmp_path / "connection.json").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_nothing_there(tmp_path: Path) -> None:
    """If `apportion up` is not running, the error names the data folder and variables to set."""
    where = Where(data=tmp_path)
    with pytest.raises(Unreachable, match="APPORTION_GATEWAY") as refused:
        where.gateway_url()
    assert str(tmp_path) in refused.value.message
    assert refused.value.exit_code == UNREACHABLE
    with pytest.raises(Unreachable, match="APPORTION_NATS_URL"):
        where.reach()


def test_an_up_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    """If `apportion up` has ended, connecting fails at once. While it runs, the CLI tolerates an
    unreachable server."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound, but not listening
        known = {
            "host": "127.0.0.1",
            "port": bound.getsockname()[1],
            "passwords": {"operator": "p"},
        }
        (tmp_path / "credentials.json").write_text(json.dumps(known))
        with pytest.raises(Unreachable, match=r"`apportion up`.*--nats"):
            Where(data=tmp_path).reach()
        write_connection(tmp_path, Connection(gateway="http://127.0.0.1:1"))
        assert Where(data=tmp_path).reach().url.startswith("nats://operator:p@")


@pytest.mark.parametrize("text", ["", "{", '{"gateway": 7}', "[]"])
def test_broken_file(tmp_path: Path, text: str) -> None:
    """If the connection file is broken, the error names the file."""
    (tmp_path / "connection.json").write_text(text)
    with pytest.raises(Unreachable, match=r"connection\.json"):
        read_connection(tmp_path)


def test_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The data folder is APPORTION_DATA if set. Otherwise it is in XDG_STATE_HOME, or in XDG's
    default folder."""
    monkeypatch.delenv(DATA_ENV, raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_data() == tmp_path / ".local/state/apportion"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert default_data() == tmp_path / "state/apportion"
    monkeypatch.setenv(DATA_ENV, str(tmp_path / "mine"))
    assert default_data() == tmp_path / "mine"


def test_what_another_terminal_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`up` prints the variable APPORTION_DATA for use in another terminal only if its data folder
    is not the default one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    mine = tmp_path / "data of mine"
    monkeypatch.setenv(DATA_ENV, str(mine))
    assert not elsewhere(tmp_path / "apportion")
    assert elsewhere(mine) == f"APPORTION_DATA='{mine}' "
