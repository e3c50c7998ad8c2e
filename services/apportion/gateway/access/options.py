"""The options that say who may ask: by tokens of a cluster, by those of a file, or everybody.

Invariant: a gateway that others reach than those on its own machine has a login, or somebody has
said `--open`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec
from aiohttp import hdrs, web

from apportion.gateway.access.cursors import Cursors
from apportion.gateway.access.gate import Gate
from apportion.gateway.access.people import Remembered
from apportion.gateway.access.public_url import KEY as PUBLIC_URL
from apportion.gateway.access.public_url import PublicUrl, parse_public_url
from apportion.gateway.access.token_file import TokenFile, read_rows
from apportion.runtime.process.config import Address, ConfigError
from apportion.runtime.service.http import Handle, refused
from apportion.runtime.service.kube_options import KubeChoice

AUDIENCE = "apportion"
LOGINS = "--kubernetes or --tokens FILE"
Command = Callable[..., Any]


class LoginChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Where people are known, if anywhere, and where their browsers come.

    `public`: somebody said `--open`.
    """

    kube: KubeChoice
    public: bool = False
    audiences: tuple[str, ...] = (AUDIENCE,)
    tokens: Path | None = None
    url: PublicUrl | None = None

    @property
    def wanted(self) -> bool:
        """Whether who asks has to be known."""
        return self.tokens is not None or self.kube.wanted

    @asynccontextmanager
    async def opened(self, cursors: Cursors) -> AsyncIterator[Gate | None]:
        """The gate, until the block ends; None where everybody is let in. Raises ConfigError."""
        if self.tokens is not None:
            yield Gate(Remembered(TokenFile(self.tokens)), cursors, self.url)
        elif self.kube.wanted:
            from apportion.gateway.access.kube_login import KubeLogin  # noqa: PLC0415 - kube_options

            async with self.kube.open() as api:
                yield Gate(Remembered(KubeLogin(api, self.audiences)), cursors, self.url)
        else:
            yield None


def login_options(command: Command) -> Command:
    """Add `--tokens`, `--audience`, `--public-url` and `--open`; see `login_choice`."""
    for option in (
        click.option(
            "--open", "opened", is_flag=True, envvar="APPORTION_OPEN", show_envvar=True,
            help="Everybody who reaches it may read everything, also from elsewhere.",
        ),
        click.option(
            "--public-url", envvar="APPORTION_PUBLIC_URL", show_envvar=True, metavar="URL",
            help="Where browsers reach it, as behind a proxy that ends TLS; needs a login.",
        ),
        click.option(
            "--audience", "audiences", multiple=True, envvar="APPORTION_AUDIENCE",
            show_envvar=True, default=(AUDIENCE,), show_default=True, metavar="NAME",
            help="What tokens of the cluster must be meant for.",
        ),
        click.option(
            "--tokens", type=click.Path(dir_okay=False, path_type=Path),
            envvar="APPORTION_TOKENS", show_envvar=True, metavar="FILE",
            help="Who may ask, by token (TOML; `apportion token` makes it).",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def login_choice(
    listen: Address, *, kube: KubeChoice, audiences: tuple[str, ...], tokens: Path | None,
    public_url: str | None, opened: bool,
) -> LoginChoice:  # fmt: skip
    """The options together. Raises ConfigError."""
    url = None if public_url is None else parse_public_url(public_url)
    known = tokens is not None or kube.wanted
    if tokens is not None and kube.wanted:
        raise ConfigError("--tokens", str(tokens), "give that or --kubernetes, not both")
    if opened and known:
        raise ConfigError("--open", "with a login", "give --open or a login, not both")
    if url is not None and not known:
        raise ConfigError(PUBLIC_URL, public_url, f"it is for a login: give one ({LOGINS}), too")
    if tokens is not None:
        read_rows(tokens)  # better told before anything begins
    if not known and not opened and not _own_machine(listen.host):
        raise ConfigError(
            "--listen", str(listen),
            f"others reach this: give a login ({LOGINS}), listen on 127.0.0.1, "
            "or say --open if something else keeps them out",
        )  # fmt: skip
    return LoginChoice(kube=kube, public=opened, audiences=audiences, tokens=tokens, url=url)


def _own_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def from_own_machine(request: web.Request, handle: Handle) -> web.StreamResponse:
    """The answer of a gateway without a login, unless a page of another site asks.

    Its server may say that its name is this machine's address (DNS rebinding): then the browser
    lets it read all, but names the site as the host.
    """
    named = request.headers.get(hdrs.HOST, "")
    try:
        host = urlsplit(f"//{named}").hostname or ""
    except ValueError:
        host = named
    if host == "localhost" or host.endswith(".localhost") or not named or _is_address(host):
        return await handle(request)
    return refused(
        403, f"the host is {host[:253]}, and this gateway answers its own machine alone",
        "ask 127.0.0.1 or localhost; behind a proxy give it a login, or --open",
        field="Host",
    )  # fmt: skip


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
