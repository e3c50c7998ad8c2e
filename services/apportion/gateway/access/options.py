"""The options that choose the login: by a cluster's tokens, by a file of tokens, or none.

Invariant: a gateway that other machines can reach requires a login, except with `--open`."""

import functools
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from apportion.gateway.access.gate import PUBLIC_URL, Cursors, Gate, PublicUrl, parse_public_url
from apportion.gateway.access.people import Remembered, TokenFile, read_rows
from apportion.gateway.api.endpoint import Endpoint
from apportion.runtime.process.config import Address, ConfigError
from apportion.runtime.service.options import (
    Command,
    KubeChoice,
    kube_choice,
    kubernetes_options,
    with_options,
)
from apportion.runtime.service.own_machine import is_own_machine

AUDIENCE = "apportion"
LOGINS = "--kubernetes or --tokens FILE"
# the options that choose the login
GIVEN = ("tokens", "audiences", "public_url", "opened", "kubernetes", "kubeconfig", "context")


class LoginChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The login that the options choose, if any."""

    kube: KubeChoice
    public: bool  # True with `--open`
    audiences: tuple[str, ...]
    tokens: Path | None
    url: PublicUrl | None  # of the console

    @property
    def wanted(self) -> bool:
        """Return True if users must be authenticated."""
        return self.tokens is not None or self.kube.wanted

    @asynccontextmanager
    async def opened(
        self, cursors: Cursors, endpoints: Iterable[Endpoint]
    ) -> AsyncIterator[Gate | None]:
        """Yield the gate for these endpoints, or None without a login. Raises ConfigError."""
        if self.tokens is not None:
            yield Gate(Remembered(TokenFile(self.tokens)), cursors, endpoints, self.url)
            return
        if not self.kube.wanted:
            yield None
            return
        from apportion.gateway.access.kube_login import KubeLogin  # noqa: PLC0415 - kube_options

        async with self.kube.open() as api:
            yield Gate(Remembered(KubeLogin(api, self.audiences)), cursors, endpoints, self.url)


_OPTIONS = (
    click.option(
        "--tokens", type=click.Path(dir_okay=False, path_type=Path), envvar="APPORTION_TOKENS",
        show_envvar=True, metavar="FILE",
        help="Require a login with a token of this file (TOML; see `apportion token`).",
    ),
    click.option(
        "--audience", "audiences", multiple=True, envvar="APPORTION_AUDIENCE",
        show_envvar=True, default=(AUDIENCE,), show_default=True, metavar="NAME",
        help="Audience that the cluster's tokens must have; repeatable.",
    ),
    click.option(
        "--public-url", envvar="APPORTION_PUBLIC_URL", show_envvar=True, metavar="URL",
        help="URL for browsers, if a proxy terminates TLS; needs a login.",
    ),
    click.option(
        "--open", "opened", is_flag=True, envvar="APPORTION_OPEN", show_envvar=True,
        help="Let any client read everything without a login, also from other machines.",
    ),
    kubernetes_options,
)  # fmt: skip


def login_options(command: Command) -> Command:
    """Add the login options to a command, and pass their values to it as `login`."""

    def run(**given: Any) -> None:
        command(login={name: given.pop(name) for name in GIVEN}, **given)

    return with_options(functools.update_wrapper(run, command), *_OPTIONS)


def login_choice(
    listen: Address, *, tokens: Path | None, audiences: tuple[str, ...], public_url: str | None,
    opened: bool, **kube: Any,
) -> LoginChoice:  # fmt: skip
    """Return the login that the options of `login_options` choose. Raises ConfigError."""
    url = None if public_url is None else parse_public_url(public_url)
    choice = LoginChoice(
        kube=kube_choice(**kube), public=opened, audiences=audiences, tokens=tokens, url=url
    )
    if choice.tokens is not None and choice.kube.wanted:
        raise ConfigError("--tokens", str(choice.tokens), "use --tokens or --kubernetes, not both")
    if choice.public and choice.wanted:
        raise ConfigError("--open", "with a login", "use --open or a login, not both")
    if choice.url is not None and not choice.wanted:
        fix = f"a public URL needs a login; add {LOGINS}"
        raise ConfigError(PUBLIC_URL, str(public_url), fix)
    if choice.tokens is not None:
        read_rows(choice.tokens)  # report errors before the start
    if not choice.wanted and not choice.public and not is_own_machine(listen.host):
        fix = f"other machines can reach this address; add a login ({LOGINS}), use 127.0.0.1, or "
        fix += "if a firewall or proxy already restricts access, use --open"
        raise ConfigError("--listen", str(listen), fix)
    return choice
