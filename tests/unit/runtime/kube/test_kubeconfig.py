"""Tests of the choice of a kubeconfig, a context and a namespace, which follows kubectl."""

import os
from pathlib import Path

import pytest
import yaml

from apportion.runtime.kube.kubeconfig import check_user, choose
from apportion.runtime.process.config import ConfigError


def config(path: Path, current: str | None = None, **namespaces: str | None) -> Path:
    """Write a kubeconfig with these contexts and their namespaces, and return its path."""
    contexts = [
        {"name": name, "context": {"cluster": "c", "user": "u", "namespace": namespace}}
        for name, namespace in namespaces.items()
    ]
    document = {"apiVersion": "v1", "kind": "Config", "contexts": contexts}
    path.write_text(yaml.safe_dump(document | ({"current-context": current} if current else {})))
    return path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a home folder without a kubeconfig, outside of any pod."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return tmp_path


def test_the_default_is_the_file_in_the_home_folder(home: Path) -> None:
    """Without KUBECONFIG, the client uses `~/.kube/config` and the current context of that file."""
    (home / ".kube").mkdir()
    file = config(home / ".kube" / "config", "dev", dev="team-a", prod=None)
    chosen = choose()
    assert (chosen.path, chosen.context, chosen.namespace) == (file, "dev", "team-a")
    assert (choose("prod").context, choose("prod").namespace) == ("prod", "default")


def test_the_first_file_that_sets_a_value_wins(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KUBECONFIG may list several files. The client skips missing files. If several files set the
    same value, the first of them counts."""
    first = config(home / "first", None, dev="team-a")
    second = config(home / "second", "prod", dev="other", prod="team-b")
    third = config(home / "third", "dev")
    paths = ["", str(home / "missing"), str(first), str(second), str(third)]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(paths))
    chosen = choose()
    assert chosen.files == (first, second, third)
    assert (chosen.context, chosen.namespace) == ("prod", "team-b")
    assert choose("dev").namespace == "team-a"


@pytest.mark.parametrize(
    ("text", "context", "error_at"),
    [
        (None, None, ("kubeconfig", "missing")),
        ("", None, ("current-context", "")),
        ("contexts: [{name: dev}]\ncurrent-context: prod", None, ("current-context", "prod")),
        ("contexts: [{name: dev}]", "prod", ("--context", "prod")),
        ("contexts: 5", None, ("kubeconfig", "file")),
        ("contexts: [", None, ("kubeconfig", "file")),
    ],
)
def test_errors_name_field_and_value(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str | None,
    context: str | None,
    error_at: tuple[str, str],
) -> None:
    """If a kubeconfig is missing or invalid, or a context is unknown, the error names the field and
    the value."""
    path = home / ("missing" if text is None else "file")
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(ConfigError) as error:
        choose(context)
    assert (error.value.key, Path(str(error.value.found)).name) == error_at


@pytest.mark.parametrize(
    ("key", "value"), [("as", "ada"), ("as-uid", "7"), ("as-groups", ["a"]), ("token", "t")]
)
def test_impersonation_is_refused(home: Path, key: str, value: object) -> None:
    """The client refuses a context whose user impersonates another user. The client library ignores
    impersonation, so it would send requests as the context's own user."""
    file = config(home / "file", "dev", dev=None, prod=None)
    document = yaml.safe_load(file.read_text())
    document["users"] = [{"name": "u", "user": {key: value}}]
    file.write_text(yaml.safe_dump(document))
    if key == "token":
        check_user(file, "prod")
        return
    with pytest.raises(ConfigError) as error:
        check_user(file, None)
    assert (error.value.key, error.value.found) == (f"users[].user.{key}", str(value))
