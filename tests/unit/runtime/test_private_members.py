"""Tests that Apportion uses no private members of libraries except those that this file lists. If
you upgrade a library, check its private members again."""

import ast
import inspect
import re
from importlib import import_module
from importlib.metadata import version
from types import ModuleType

import pytest

from tests.tidy.tree import ROOT

SEEN_IN = {"nats": ("nats-py", "2.16.0"), "kubernetes_asyncio": ("kubernetes-asyncio", "36.1.0")}
IN_PROCESS = "a record is handed over as it is read, not by a queue and a task: a third of the time"
PRIVATE = {
    "nats": {
        "_process_msg": IN_PROCESS,
        "_process_headers": IN_PROCESS,
        "_id": IN_PROCESS,
        "_ps": "the parser that makes one step of a message that has arrived whole",
        "_send_command": "publish takes four times as long",
        "_flush_queue": "publish takes four times as long",
        "_flush_pending": "publish takes four times as long",
        "_process_pong": "who gave up waiting for a pong ends the client's reading",
        "_pongs": "who gave up waiting for a pong ends the client's reading",
        "_process_op_err": "it waits for a server that it has given up",
        "_process_connect_init": "what fails here leaves its connection open",
        "_status": "whom the server pings before its pong would be connecting for ever",
        "_transport": "nothing public aborts a connection",
        "_io_writer": "nothing public aborts a connection",
        "_process_info": "what a server names before TLS would be believed",
        "_connect_command": "who we are would be said to a server without TLS",
        "_reconnection_task": "the library's close can let a reconnection continue",
        "_over_ssl": "asyncio warns at the end of a connection that the library encrypted late",
        "_process_err": "who was let in for a time would be closed for good when it is over",
        "_public_nkey": "who signs a challenge with a key that may change says whose it is",
        "_current_server": "nothing public names the server that a password is asked for",
    },
    "kubernetes_asyncio": {},
}


def named(module: ModuleType, package: str) -> set[str]:
    """Return the library's private members that a module uses, by calling or overriding them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue  # its own, or found below
            case (
                ast.Attribute(attr=name)
                | ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *_])
            ):
                found |= words(name)
    for class_ in vars(module).values():
        if isinstance(class_, type) and class_.__module__ == module.__name__:
            for base in class_.__bases__:
                if base.__module__.split(".")[0] == package:
                    found |= words(inspect.getsource(class_)) & words(inspect.getsource(base))
    return found


def words(text: str) -> set[str]:
    """Return all names in the text that begin with an underscore."""
    return set(re.findall(r"\b_[a-z]\w*", text))


def users(package: str) -> list[ModuleType]:
    """Return Apportion's modules that import this package."""
    imports = re.compile(rf"^(?:from|import) {package}\b", re.MULTILINE)
    services = ROOT / "services"
    return [
        import_module(".".join(path.relative_to(services).with_suffix("").parts))
        for path in services.rglob("*.py")
        if imports.search(path.read_text())
    ]


@pytest.mark.parametrize("package", SEEN_IN)
def test_private_members_are_used_for_a_reason(package: str) -> None:
    """The modules of Apportion use only the libraries' private members that are listed here."""
    modules = users(package)
    assert modules
    assert set().union(*(named(each, package) for each in modules)) == set(PRIVATE[package])


@pytest.mark.parametrize("package", SEEN_IN)
def test_the_version_is_the_one_that_was_looked_at(package: str) -> None:
    """The installed version of each library is the one whose private members were checked."""
    project, seen = SEEN_IN[package]
    assert version(project) == seen
