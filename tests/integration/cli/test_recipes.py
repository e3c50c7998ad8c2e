"""The recipes in CONTRIBUTING.md for an API read, a metric and a CLI verb work as written."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import pytest
import yaml

from apportion.cli.main import VERBS
from apportion.core.answers.reads import RevisionAnswer
from apportion.core.answers.visibility import OTHERS
from apportion.gateway.api.endpoint import PREFIX
from apportion.gateway.api.measures import Measures
from apportion.gateway.api.reads import Read
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.nats import Bus
from tests.support.processes import ServiceProcess
from tests.support.scratch import Scratch, place_of
from tests.support.tokens import people

STRUCT = '''

class DummiesAnswer(Answer, frozen=True):
    """How many dummies there are, whose the first is, and what it is called."""

    revision: Everyone[int]
    dummies: Everyone[int]
    namespace: Namespace
    name: str
    time: Everyone[str] = ""
'''
ROW = """\
    Read(
        path="dummies/{node}", name="dummies", answer=DummiesAnswer, audience=TENANTS,
        make=lambda view, _query, names: DummiesAnswer(
            revision=view.state.revision, dummies=len(names["node"]), namespace="ops",
            name="secret",
        ),
        summary="How many dummies a node has",
    ),
"""
VERB = '''\
"""`apportion dummy`: how many dummies there are."""

import click


@click.command(epilog="Example:  apportion dummy")
def command() -> None:
    """Count the dummies. Exit codes: 0."""
    click.echo("no dummies")
'''


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    """Provide a copy of this repository in which a test can change files."""
    return Scratch(tmp_path / "scratch")


def add_read(scratch: Scratch) -> None:
    """Add a read endpoint and the struct of its response, by following the recipe."""
    structs, reads = place_of(RevisionAnswer), place_of(Read)
    with scratch.recipe("an API read", most=2):
        scratch.append(structs, STRUCT)
        module = RevisionAnswer.__module__
        scratch.insert(reads, "\nTENANTS: Final", f"\nfrom {module} import DummiesAnswer\n")
        scratch.insert(reads, "    WHY,\n)", ROW)


def add_metric(scratch: Scratch) -> None:
    """Add a gauge to the gateway, by following the recipe."""
    with scratch.recipe("a metric", most=1):
        scratch.append(
            place_of(Measures),
            '        metrics.gauge("apportion_gateway_dummies", "Dummies at the moment.").set(3)\n',
        )


async def test_a_read_and_a_metric_are_found_on_every_surface(
    scratch: Scratch, bus: Bus, tmp_path: Path
) -> None:
    """CONTRIBUTING's recipes for an API read and for a metric work.

    The read answers for now and for the past, hides fields from tenants, and is in the OpenAPI
    document. The metric is on /metrics."""
    add_read(scratch)
    add_metric(scratch)
    scratch.run("-m", "tools.openapi")
    document = yaml.safe_load((scratch.folder / "docs/reference/openapi.yaml").read_text())
    described = document["paths"][f"{PREFIX}/dummies/{{node}}"]["get"]
    assert [each["name"] for each in described["parameters"]] == [
        "node",
        "at_least",
        "wait_s",
        "at",
    ]
    assert set(document["components"]["schemas"]["DummiesAnswer"]["properties"]) == {
        "revision", "dummies", "namespace", "name", "time"
    }  # fmt: skip
    page = (scratch.folder / "docs/reference/api.md").read_text()
    assert [line for line in page.splitlines() if line.startswith("| `GET dummies/NODE` | ")]
    facts = Facts(bus)
    await facts.open()
    await facts.write(rack("n1", 2))
    options = ("--listen", "127.0.0.1:0", "--tokens", str(people(tmp_path)))
    async with ServiceProcess(
        "gateway", bus.server.url_for("gateway"), *options, build=Path(scratch.path)
    ) as process:
        await process.ready()
        base = str((await process.logged("answering"))["url"])
        async with aiohttp.ClientSession() as session:

            async def asked(who: str, path: str) -> tuple[int, str]:
                sent = {"Authorization": f"Bearer {who}"}
                async with session.get(f"{base}{path}", headers=sent) as answer:
                    return answer.status, await answer.text()

            found = json.loads((await asked("olga", "dummies/n1"))[1])
            assert found == {"revision": facts.revision, "dummies": 2, "namespace": "ops",
                             "name": "secret", "time": ""}  # fmt: skip
            at = json.loads((await asked("olga", "dummies/n1?at=1"))[1])
            assert (at["revision"], at["dummies"], bool(at["time"])) == (1, 2, True)
            status, text = await asked("mei", "dummies/n1")
            assert (status, json.loads(text)["dummies"]) == (200, 2)
            assert json.loads(text)["namespace"] == OTHERS
            assert "secret" not in text, "a field without a mark is hidden"
            assert (await asked("", "dummies/n1"))[0] == 401
            assert "dummies/NODE" in json.loads((await asked("olga", "none"))[1])["fix"]
            metrics = (await asked("prometheus", "../../metrics"))[1]
    assert "apportion_gateway_dummies 3.0" in metrics
    assert 'apportion_gateway_requests_total{status="200",what="dummies"}' in metrics


def test_a_verb_is_found_on_every_surface(scratch: Scratch) -> None:
    """A verb added by the recipe runs, and appears in the help, the manual and Tab completion."""
    module = VERBS["version"].module.rpartition(".")[0] + ".dummy"
    with scratch.recipe("a CLI verb", most=2):
        scratch.add(f"services/apportion/{module.replace('.', '/')}.py", VERB)
        scratch.insert(
            "services/apportion/cli/main.py",
            '    "version": Verb(',
            f'    "dummy": Verb("{module}", "Count the dummies."),\n',
        )
    entry = ("-c", "from apportion.cli.main import main; main()")
    assert scratch.run(*entry, "dummy") == "no dummies\n"
    assert "Count the dummies." in scratch.run(*entry, "--help")
    assert "apportion dummy" in scratch.run(*entry, "dummy", "--help")
    scratch.run(*entry, "man", "pages")
    assert (scratch.folder / "pages/apportion-dummy.1").exists()
    asked = {"_APPORTION_COMPLETE": "bash_complete", "COMP_WORDS": "apportion dum"}
    assert "dummy" in scratch.run(*entry, COMP_CWORD="1", **asked)


def test_a_recipe_that_is_not_true_is_found(scratch: Scratch) -> None:
    """The recipes' check fails if an API read needs changes in a third file. It also fails if a
    metric needs a change in a file that the recipe does not name."""

    def follow(title: str, most: int, *paths: str) -> None:
        with scratch.recipe(title, most=most):
            for path in paths:
                scratch.append(path, "\n")

    with pytest.raises(AssertionError, match="takes"):
        follow("an API read", 2, *map(place_of, (RevisionAnswer, Read, Measures)))
    with pytest.raises(AssertionError, match="forgets"):
        follow("a metric", 1, "services/apportion/lab/__init__.py")
