"""Tests of a service's settings: options, environment variables, defaults and errors."""

import pytest

from apportion.runtime.process.config import (
    ENVIRONMENT,
    Address,
    ConfigError,
    ServiceConfig,
    parse_address,
    read_config,
)

URL = "nats://agent:s3cret@127.0.0.1:4222"


def test_the_url_is_enough_and_the_rest_has_defaults() -> None:
    """Only the ledger's URL is required. All other settings have defaults."""
    config = read_config(environ={"APPORTION_NATS_URL": URL})
    assert config == ServiceConfig(URL, Address("127.0.0.1", 0), "info", "console", 20.0)


def test_an_option_wins_over_the_environment() -> None:
    """An option overrides its environment variable."""
    environ = {"APPORTION_NATS_URL": URL, "APPORTION_HEALTH": "0.0.0.0:1"}
    config = read_config(
        {"health": "[::1]:8080", "log_level": None, "log_format": "JSON", "stop_timeout_s": 3},
        environ=environ,
    )
    assert (config.health, str(config.health)) == (Address("::1", 8080), "[::1]:8080")
    assert (config.log_level, config.log_format, config.stop_timeout_s) == ("info", "json", 3.0)


@pytest.mark.parametrize(
    ("key", "value", "fix"),
    [
        ("APPORTION_NATS_URL", "", "nats://user:password@host:port"),
        ("APPORTION_NATS_URL", "http://x:1", "nats://user:password@host:port"),
        ("APPORTION_NATS_URL", "nats://:4222", "nats://user:password@host:port"),
        ("APPORTION_NATS_URL", "nats://h:port", "nats://user:password@host:port"),
        ("APPORTION_NATS_URL", f"{URL},nats://h:99999", "nats://user:password@host:port"),
        ("APPORTION_HEALTH", "8080", "write host:port"),
        ("APPORTION_HEALTH", "h:", "write host:port"),
        ("APPORTION_HEALTH", "h:65536", "write host:port"),
        ("APPORTION_HEALTH", "h:-1", "write host:port"),
        ("APPORTION_LOG_LEVEL", "loud", "use one of debug, info, warning, error"),
        ("APPORTION_LOG_FORMAT", "xml", "use one of console, json"),
        ("APPORTION_STOP_TIMEOUT_S", "soon", "seconds between 0 and 3600"),
        ("APPORTION_STOP_TIMEOUT_S", "-1", "seconds between 0 and 3600"),
        ("APPORTION_STOP_TIMEOUT_S", "nan", "seconds between 0 and 3600"),
        ("APPORTION_STOP_TIMEOUT_S", "inf", "seconds between 0 and 3600"),
    ],
)
def test_a_wrong_setting_is_named_with_value_and_fix(key: str, value: str, fix: str) -> None:
    """The error about an invalid setting has its name, its value and a fix."""
    with pytest.raises(ConfigError) as error:
        read_config(environ={"APPORTION_NATS_URL": URL, key: value})
    assert error.value.key == key
    assert fix in error.value.fix
    assert str(error.value).startswith(f"{key} is ")


def test_a_wrong_option_is_named_as_it_was_typed() -> None:
    """The error about an invalid option names it as the user typed it."""
    with pytest.raises(ConfigError, match="--log-level is 'x'"):
        read_config({"log_level": "x"}, environ={"APPORTION_NATS_URL": URL})


def test_the_password_is_never_in_the_error() -> None:
    """No error shows the password in a URL."""
    with pytest.raises(ConfigError) as error:
        read_config(environ={"APPORTION_NATS_URL": "nats://agent:s3cret@:4222"})
    assert "s3cret" not in str(error.value)


def test_every_setting_has_a_variable() -> None:
    """Every setting has an environment variable."""
    assert set(ENVIRONMENT) == set(ServiceConfig.__struct_fields__)


def test_any_address_is_read_back_as_written() -> None:
    """Parsing an address and printing it returns the original text."""
    for text in ("127.0.0.1:0", "[::1]:65535", "host.example:80"):
        assert str(parse_address("k", text)) == text
