"""Finds the kubeconfig, the context and its namespace, as kubectl does.

This module needs no Kubernetes client, whose import is slow. Invariant: of several files in
KUBECONFIG, the first one that sets a value wins, and missing files are skipped."""

import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from apportion.runtime.files.safe_yaml import TEXT_BYTES_MAX, parse
from apportion.runtime.process.config import ConfigError

KUBECONFIG_ENV = "KUBECONFIG"
DEFAULT_FILE = "~/.kube/config"
DEFAULT_NAMESPACE = "default"
# mounted in every pod that has a service account
POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
CONTEXTS_SHOWN = 10
# keys of a user in a kubeconfig, which the client library ignores
IMPERSONATION = ("as", "as-uid", "as-groups", "as-user-extra")
NO_IMPERSONATION = (
    "impersonation is not supported; use a context whose user has credentials of its own"
)


class Chosen(Struct, frozen=True):
    """The chosen cluster. A pod with a service account and no kubeconfig has no files."""

    files: tuple[Path, ...]
    context: str
    namespace: str

    @property
    def path(self) -> Path | None:
        """Return the files as one path for the Kubernetes client, or None without files."""
        return Path(os.pathsep.join(map(str, self.files))) if self.files else None


class _Context(Struct, frozen=True):
    namespace: str | None = None
    user: str | None = None


class _Named(Struct, frozen=True):
    name: str
    context: _Context | None = None


class _NamedUser(Struct, frozen=True):
    name: str
    user: dict[str, Any] | None = None


class _File(Struct, frozen=True, rename="kebab"):
    current_context: str | None = None
    contexts: list[_Named] | None = None
    users: list[_NamedUser] | None = None


def choose(context: str | None = None) -> Chosen:
    """Return the cluster of this context, or else of the current one. Raises ConfigError."""
    files = _files()
    if not files:
        if context is None and os.environ.get("KUBERNETES_SERVICE_HOST") and POD_NAMESPACE.exists():
            return Chosen((), "", POD_NAMESPACE.read_text().strip() or DEFAULT_NAMESPACE)
        given = os.environ.get(KUBECONFIG_ENV) or DEFAULT_FILE
        fix = f"there is no such file; set --kubeconfig FILE or {KUBECONFIG_ENV}=FILE"
        raise ConfigError("kubeconfig", given, fix)
    found = [_read(file) for file in files]
    name = context or _current(found)
    shown = os.pathsep.join(map(str, files))
    if not name:
        fix = f"{shown} selects no context; pass --context NAME or run `kubectl config use-context`"
        raise ConfigError("current-context", "", fix)
    contexts = {each.name: each.context for file in reversed(found) for each in file.contexts or ()}
    if name not in contexts:
        known = ", ".join(sorted(contexts)[:CONTEXTS_SHOWN]) or "none"
        fix = f"{shown} has no such context; it has: {known}"
        raise ConfigError("--context" if context else "current-context", name, fix)
    of = contexts[name]
    return Chosen(files, name, (of and of.namespace) or DEFAULT_NAMESPACE)


def check_user(given: Path | None, context: str | None) -> None:
    """Raise ConfigError if the context's user impersonates another user.

    `given` is one file, or several joined as in KUBECONFIG. Without `given`, the files are found as
    in `choose`."""
    found = (
        [_read(Path(each)) for each in str(given).split(os.pathsep)]
        if given
        else [_read(file) for file in _files()]
    )
    name = context or _current(found)
    contexts = {each.name: each.context for file in reversed(found) for each in file.contexts or ()}
    users = {each.name: each.user for file in reversed(found) for each in file.users or ()}
    of = contexts.get(name or "")
    user = (users.get(of.user or "") if of else None) or {}
    for key in IMPERSONATION:
        if user.get(key):
            raise ConfigError(f"users[].user.{key}", str(user[key]), NO_IMPERSONATION)


def _current(found: list[_File]) -> str | None:
    return next((each.current_context for each in found if each.current_context), None)


def _files() -> tuple[Path, ...]:
    given = os.environ.get(KUBECONFIG_ENV) or DEFAULT_FILE
    paths = [Path(each).expanduser() for each in given.split(os.pathsep) if each]
    return tuple(path for path in paths if path.exists())


def _read(path: Path) -> _File:
    try:
        with path.open("rb") as file:
            data = file.read(TEXT_BYTES_MAX + 1)
        if len(data) > TEXT_BYTES_MAX:
            raise ValueError(f"the file has more than {TEXT_BYTES_MAX:,} bytes")
        document = next(parse(data.decode()), None)
        if document is None:
            return _File()
        if document.error is not None:
            raise document.error
        return msgspec.convert(document.content, _File)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise ConfigError("kubeconfig", str(path), f"cannot read this file: {error}") from None
