"""Tests of how the gateway reads the setting of its public URL."""

import pytest

from apportion.gateway.access.gate import PublicUrl, parse_public_url
from apportion.runtime.process.config import ConfigError


@pytest.mark.parametrize(
    ("found", "origin"),
    [
        ("https://apportion.example.com", "https://apportion.example.com"),
        ("HTTPS://Apportion.Example.com:443/", "https://apportion.example.com"),
        ("https://apportion.example.com:8443", "https://apportion.example.com:8443"),
        ("http://gateway:80", "http://gateway"),
        ("https://[2001:DB8::1]:8443", "https://[2001:db8::1]:8443"),
    ],
)
def test_an_origin_is_as_a_browser_writes_it(found: str, origin: str) -> None:
    """The gateway normalizes its public URL as browsers do: lower case, without the scheme's
    default port."""
    public = parse_public_url(found)
    assert public == PublicUrl(origin)
    assert public.secure == origin.startswith("https")


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ("", "write a scheme"),
        ("apportion.example.com", "write a scheme"),
        ("ftp://apportion.example.com", "write a scheme"),
        ("https://", "write a scheme"),
        ("https://a b", "write a scheme"),
        ("https://apportion.exämple.com", "write a scheme"),
        ("https://apportion.example.com:0", "write a scheme"),
        ("https://apportion.example.com:70000", "out of range"),
        ("https://[2001", "Invalid IPv6"),
        ("https://example.com/apportion", "the console must be at the root"),
        ("https://example.com?x=1", "the console must be at the root"),
        ("https://mei@example.com", "the console must be at the root"),
    ],
)
def test_what_is_no_such_url_is_refused_by_name(found: str, why: str) -> None:
    """If the public URL is invalid, the error has its value, the reason and an example."""
    with pytest.raises(ConfigError) as error:
        parse_public_url(found)
    assert error.value.key == "--public-url"
    assert (repr(found) if found else "not set") in str(error.value)
    assert why in str(error.value)
    assert "https://apportion.example.com" in error.value.fix
