"""`apportion user add | list | revoke`: who may connect to the server of this machine's `up`.

Invariant: the server obeys by the time that the verb ends, where it runs here; whoever was revoked
is cut off.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from apportion.cli.connection import DATA_ENV, JSON, default_data
from apportion.cli.exits import NotFound
from apportion.cli.output import console, plain, print_json


class Known(msgspec.Struct, frozen=True):
    """What `--json` prints of one user; `key` is the file with the seed, empty for a password."""

    role: str
    name: str
    nodes: tuple[str, ...]
    key: str
    obeyed: bool


_DATA = click.option("--data", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
                     help=f"Folder of the `apportion up`.  [{DATA_ENV}]")  # fmt: skip


@click.group(epilog="Example:  apportion user add agent gpu-7 --node gpu-7")
def command() -> None:
    """Who may connect to the ledger's server, without a cluster: each by a key of his own."""


@command.command(epilog="Example:  apportion user add operator anna")
@click.argument("role")
@click.argument("name", default="")
@click.option("--node", "nodes", multiple=True, metavar="NODE", help="Of an agent, once for each.")
@_DATA
@JSON
def add(*, role: str, name: str, nodes: tuple[str, ...], data: Path | None, as_json: bool) -> None:
    """Make a key, and let who has it connect as NAME; without one, the role's own name.

    Exit codes: 0 done; 1 there is such a name, or no such role.
    """
    _done(data, as_json, "may connect", "add", role, name or role, nodes)


@command.command(epilog="Example:  apportion user revoke anna")
@click.argument("name")
@_DATA
@JSON
def revoke(*, name: str, data: Path | None, as_json: bool) -> None:
    """Let NAME connect no more, and cut him off now.

    Exit codes: 0 done; 1 there is no such name.
    """
    _done(data, as_json, "may connect no more", "revoke", name)


@command.command("list", epilog="Example:  apportion user list")
@_DATA
@JSON
def list_users(*, data: Path | None, as_json: bool) -> None:
    """Those who may connect. Exit code 0."""
    from apportion.runtime.jetstream.users import Users, UsersFailed

    users = Users(data or default_data())
    try:
        members = users.read().members
    except UsersFailed as failure:
        raise NotFound(str(failure)) from None
    if as_json:
        print_json([msgspec.to_builtins(member) for member in members])
        return
    for member in members:
        by = str(users.key_of(member.name)) if member.nkey else "a password"
        of = f" of {' '.join(member.nodes)}" if member.nodes else ""
        text = f"{member.role} {member.name}{of}, by {by}"
        console().print(plain(text), soft_wrap=True)


def _done(data: Path | None, as_json: bool, what: str, verb: str, *given: Any) -> None:  # noqa: FBT001 - as click hands it over
    from apportion.core.identity.identity import InvalidIdentity
    from apportion.runtime.jetstream.users import Users, UsersFailed

    users = Users(data or default_data())
    try:
        member = getattr(users, verb)(*given)
        obeyed = users.reload()
    except (UsersFailed, InvalidIdentity) as failure:
        raise NotFound(str(failure)) from None
    key = str(users.key_of(member.name)) if verb == "add" else ""
    if as_json:
        print_json(Known(member.role, member.name, member.nodes, key, obeyed))
        return
    text = f"{member.role} {member.name} {what}{f', by the key in {key}' if key else ''}"
    console().print(plain(text), soft_wrap=True)
    if not obeyed:
        console().print(plain("no server runs here; it obeys from its next start"), soft_wrap=True)
