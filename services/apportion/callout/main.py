"""The `apportion callout` command, its process, and its signing key.

The signing key is the SHA-256 of a random text, because a Helm chart can generate random text but
not a NATS key. nats-server knows only the public half."""

import asyncio
import hashlib
import os
import sys
from pathlib import Path
from typing import Any, Final

import click
from msgspec import Struct

from apportion.core.identity.bearers import Accounts, accounts_of
from apportion.core.identity.identity import InvalidIdentity
from apportion.runtime.files.atomic import write_whole
from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.process.config import ConfigError, ServiceConfig
from apportion.runtime.process.reach import ACCOUNT, KeyPair
from apportion.runtime.service.lifecycle import Service, run_service
from apportion.runtime.service.options import (
    KubeChoice,
    kube_choice,
    kubernetes_options,
    service_options,
    stop_with,
)

AUDIENCE = "apportion-nats"
NAMESPACE = "apportion"
QUESTIONS = "$SYS.REQ.USER.AUTH"
LIFE_S = 3_600.0

ISSUER_VARIABLE: Final = "APPORTION_CALLOUT_ISSUER"
_LETTERS_MIN: Final = 32


def issuer(secret: str) -> KeyPair:
    """Return the signing key that is derived from `secret`. Raises ConfigError."""
    if len(secret) < _LETTERS_MIN:
        fix = f"set it to at least {_LETTERS_MIN} random letters and digits, equal in all replicas"
        raise ConfigError(ISSUER_VARIABLE, "too short" if secret else "", fix)
    return KeyPair(ACCOUNT, hashlib.sha256(b"apportion callout\n" + secret.encode()).digest())


class Choice(Struct, frozen=True, kw_only=True):
    """The command's settings: API server, audience, accounts, signing key and token lifetime."""

    kube: KubeChoice
    audience: str
    accounts: Accounts
    key: KeyPair
    life_s: float


def _write_issuer(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    try:
        key = issuer(os.environ.get(ISSUER_VARIABLE, ""))
        write_whole(path, f"issuer: {key.public}\n".encode())
    except ConfigError as error:
        stop_with(str(error))
    except OSError as error:
        stop_with(f"--write-issuer {path}: {error.strerror}; use a writable path")
    context.exit(0)


@click.command(
    name="callout",
    epilog="Example:  APPORTION_CALLOUT_ISSUER=... apportion callout --kubernetes "
    "--nats nats://callout:secret@localhost:4222",
)
@click.option("--audience", default=AUDIENCE, show_default=True, metavar="NAME",
              help="Audience that tokens must have.")  # fmt: skip
@click.option(
    "--namespace", default=NAMESPACE, envvar="APPORTION_NAMESPACE", show_default=True,
    show_envvar=True, metavar="NAME",
    help="Namespace of the services. Each ServiceAccount there gets the role with the same name.",
)  # fmt: skip
@click.option(
    "--account", "more", multiple=True, metavar="NAMESPACE/NAME=ROLE",
    help="Let this ServiceAccount log in with this role, as in monitoring/billing=auditor. "
    "Repeatable.",
)  # fmt: skip
@click.option("--life", "life_s", type=click.FloatRange(5, 86_400), default=LIFE_S,
              show_default=True, metavar="SECONDS",
              help="How long a login lasts. After that, the client must log in again "
              "with its token.")  # fmt: skip
@click.option(
    "--write-issuer", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    is_eager=True, expose_value=False, callback=_write_issuer,
    help="Write the issuer's public key, which nats-server's configuration needs, to FILE, and "
    "exit.",
)  # fmt: skip
@kubernetes_options
@service_options
def command(*, config: ServiceConfig, **given: Any) -> None:
    """Authenticate ServiceAccounts for nats-server, and return their permissions.

    You can run several replicas. They sign with a key derived from APPORTION_CALLOUT_ISSUER."""
    kube = kube_choice(
        **{name: given.pop(name) for name in ("kubernetes", "kubeconfig", "context")}
    )
    try:
        key = issuer(os.environ.get(ISSUER_VARIABLE, ""))
        if not kube.wanted:
            raise ConfigError(
                "--kubernetes",
                None,
                "add it, or --kubeconfig, so that the API server can review tokens",
            )
        choice = Choice(
            kube=kube,
            audience=given["audience"],
            accounts=accounts_of(given["namespace"], given["more"]),
            key=key,
            life_s=given["life_s"],
        )
    except (ConfigError, InvalidIdentity) as error:
        stop_with(str(error))
    sys.exit(run_service("callout", lambda service: body(service, choice), config))


async def body(service: Service, choice: Choice) -> None:
    """Run the callout until cancelled."""
    from apportion.callout.answering import Answering  # noqa: PLC0415 - see KubeChoice
    from apportion.callout.tokens import Tokens  # noqa: PLC0415 - the same

    ledger = await jetstream.connect(service.config.nats_url, name=service.name)
    try:
        service.ready_when(lambda: [] if ledger.connected else ["not connected to nats-server"])
        async with choice.kube.open() as api:
            answering = Answering(
                service,
                Tokens(api, choice.audience),
                ledger.wire,
                accounts=choice.accounts,
                key=choice.key,
                life_s=choice.life_s,
            )
            leave = await ledger.wire.subscribe(QUESTIONS, answering.receive)
            service.log.info("answering", audience=choice.audience, issuer=choice.key.public)
            try:
                await asyncio.Event().wait()
            finally:
                answering.close()
                await leave()
    finally:
        await ledger.close()
