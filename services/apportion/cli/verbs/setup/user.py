"""`apportion user add | list | revoke | begin`: manage the ledger's users without a cluster.

Invariant: when the verb ends, a server that `up` runs on this machine has applied the change."""

import shlex
from pathlib import Path
from typing import Any

import click
import msgspec

from apportion.cli.client.connection import DATA_ENV, JSON, default_data
from apportion.cli.exits import NotFound
from apportion.cli.render.output import plain, print_answer, print_json, say, show
from apportion.cli.render.rows import Rows
from apportion.cli.usage import VerbGroup
from apportion.runtime.jetstream.server.users import ADDABLE, Users, UsersFailed
from apportion.runtime.ledger.port import ALL_SUBJECTS


class Known(msgspec.Struct, frozen=True):
    """A user as `--json` prints it; `key` is the file with the secret key, or empty."""

    role: str
    name: str
    nodes: tuple[str, ...]
    key: str
    obeyed: bool


_DATA = click.option("--data", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
                     help=f"Data folder of `apportion up`.  [{DATA_ENV}]")  # fmt: skip


def _agents(
    _context: click.Context, _option: click.Parameter, given: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for text in given:
        name, _, nodes = text.partition("=")
        if not name or not all(nodes.split(",")):
            raise click.BadParameter(f"{text!r}: write NAME=NODE,NODE, for example agent-7=gpu-7")
        found[name] = tuple(nodes.split(","))
    return found


_WIDTH = max(len(role.name) for role in ADDABLE)
_ROLES = "\n".join(f"  {role.name:{_WIDTH}}  {role.does}" for role in ADDABLE)
ADD = f"""Add a user with a new key.

Without NAME, the user is named like the role.

\b
Roles:
{_ROLES}

Exit codes: 0 added; 1 the name exists, or no such role."""


@click.group(cls=VerbGroup, epilog="Example:  apportion user add agent gpu-7 --node gpu-7")
def command() -> None:
    """Add, list or revoke users of the ledger, for installations without a cluster.

    Each user connects with their own key."""


@command.command(help=ADD, epilog="Example:  apportion user add operator anna")
@click.argument("role")
@click.argument("name", default="")
@click.option(
    "--node", "nodes", multiple=True, metavar="NODE", help="Node of an agent; repeat for more."
)
@_DATA
@JSON
def add(*, role: str, name: str, nodes: tuple[str, ...], data: Path | None, as_json: bool) -> None:
    """Add a user of the ledger. The help text is `ADD`, which lists the roles."""
    _done(data, as_json, "added", "add", role, name or role, nodes)


@command.command(epilog="Example:  apportion user revoke anna")
@click.argument("name")
@_DATA
@JSON
def revoke(*, name: str, data: Path | None, as_json: bool) -> None:
    """Revoke the key of the user NAME, and disconnect the user.

    Exit codes: 0 revoked; 1 no such user."""
    _done(data, as_json, "revoked", "revoke", name)


@command.command("list", epilog="Example:  apportion user list")
@_DATA
@JSON
def list_users(*, data: Path | None, as_json: bool) -> None:
    """List users, and where their keys are.

    Exit codes: 0 listed; 1 the users cannot be read."""
    users = Users(data or default_data())
    try:
        members = users.read().members
    except UsersFailed as failure:
        raise NotFound(str(failure)) from None
    if as_json:
        print_json([msgspec.to_builtins(member) for member in members])
        return
    made = Rows("ROLE", "NAME", "NODES", "CREDENTIAL", wraps=("NODES",))
    for member in members:
        by = users.key_of(member.name) if member.nkey else "password"
        made.add_row(member.role, member.name, plain(", ".join(member.nodes)), plain(by))
    show(made)


@command.command(epilog="Example:  apportion user begin --agent agent-7=gpu-7 --hand-out /keys")
@click.option("--agent", "agents", multiple=True, metavar="NAME=NODE,...", callback=_agents,
              help="Agent and its nodes; repeatable.  [default: one for all nodes]")  # fmt: skip
@click.option("--hand-out", type=click.Path(exists=True, file_okay=False, path_type=Path),
              metavar="DIR", help="Copy each user's key into its existing subfolder DIR/USER, "
              "and nats.conf into DIR/nats-server.")  # fmt: skip
@_DATA
@JSON
def begin(
    *, agents: dict[str, tuple[str, ...]], hand_out: Path | None, data: Path | None, as_json: bool
) -> None:
    """Create a key for each role.

    Use it for a ledger server that `apportion up` does not start. Existing users keep their keys.
    Agents get the nodes that you give.

    Exit codes: 0 done; 1 an invalid name or folder."""
    from apportion.core.identity.identity import InvalidIdentity

    folder = data or default_data()
    users = Users(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        members = users.begin(agents, all_keys=True).members
        if hand_out is not None:
            users.hand_out(hand_out)
    except (UsersFailed, InvalidIdentity, OSError) as failure:
        raise NotFound(str(failure)) from None
    where = f", copied to {hand_out}" if hand_out else ""
    text = f"{len(members)} users have keys in {folder}{where}"
    print_answer([msgspec.to_builtins(member) for member in members], text, as_json=as_json)


def _done(data: Path | None, as_json: bool, what: str, verb: str, *given: Any) -> None:  # noqa: FBT001 - as click hands it over
    from apportion.core.identity.identity import InvalidIdentity

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
    say(f"{member.role} {member.name} {what}{f', key in {key}' if key else ''}")
    if key:
        # Only these lines need them, and importing them takes longer than the rest.
        from apportion.core.identity.permissions import role_of
        from apportion.runtime.jetstream.server.embedded import ServerFailed, load_credentials

        try:
            known = load_credentials(users.folder)
            place = f"{known.host}:{known.port}"
        except ServerFailed:  # the server is not that of `up`
            place = "HOST:PORT"
        options = ["--nats-key", key]
        if role_of(member.user.identity).appends:
            options += ["--ledger-key", str(users.ledger_key)]
        url = f"APPORTION_NATS_URL=nats://{member.name}@{place}"
        say(f"to connect: {url} and {shlex.join(options)}")
        if member.role == "auditor":
            say(
                f"with any NATS client: nats sub -s nats://{member.name}@{place} --nkey "
                f"{shlex.quote(key)} '{ALL_SUBJECTS}'; for nats-py: pip install 'nats-py[nkeys]'"
            )
    if not obeyed:
        say("no server is running; the change applies at its next start")
