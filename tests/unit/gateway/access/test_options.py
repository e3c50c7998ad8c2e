"""Tests of the combinations of login options that the gateway refuses at its start."""

from pathlib import Path
from typing import Any

import pytest

from apportion.gateway.access.options import AUDIENCE, LoginChoice, login_choice
from apportion.runtime.process.config import Address, ConfigError

ALL, OWN = Address("0.0.0.0", 0), Address("127.0.0.1", 0)
FILE = Path("tokens.toml")


@pytest.fixture(autouse=True)
def _file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide a token file in the current folder."""
    monkeypatch.chdir(tmp_path)
    FILE.write_text(f'[[token]]\nname = "anna"\nsha256 = "{"0" * 64}"\n')


def choose(listen: Address, given: dict[str, Any]) -> LoginChoice:
    """Return the login that these options choose."""
    none = {
        "tokens": None, "audiences": (AUDIENCE,), "public_url": None, "opened": False,
        "kubernetes": False, "kubeconfig": None, "context": None,
    }  # fmt: skip
    return login_choice(listen, **(none | given))


@pytest.mark.parametrize(
    ("listen", "given", "named"),
    [
        (ALL, {}, "--listen"),
        (OWN, {"tokens": FILE, "kubernetes": True}, "--tokens"),
        (OWN, {"tokens": FILE, "context": "prod"}, "--tokens"),
        (OWN, {"tokens": FILE, "opened": True}, "--open"),
        (OWN, {"kubernetes": True, "opened": True}, "--open"),
        (OWN, {"public_url": "https://apportion.example.com"}, "--public-url"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    listen: Address, given: dict[str, Any], named: str
) -> None:
    """The gateway refuses two logins, a login together with `--open`, and a public URL without a
    login. Without a login or `--open`, it also refuses an address that other machines reach. The
    error names the option to change."""
    with pytest.raises(ConfigError) as refused:
        choose(listen, given)
    assert refused.value.key == named


@pytest.mark.parametrize("given", [{"tokens": FILE}, {"kubernetes": True}, {"opened": True}])
def test_one_login_lets_other_machines_connect(given: dict[str, Any]) -> None:
    """With a login or `--open`, the gateway listens on an address that other machines reach."""
    assert choose(ALL, given).wanted is ("opened" not in given)
