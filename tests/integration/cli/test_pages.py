"""The commands of README and the documentation run, and print what the pages show.

Before outputs are compared, times, ids and other values that differ between runs are replaced."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import click
import pytest

from apportion.cli.main import root
from tests.support.documented import blocks, calls, commands, pages, text_of, with_output
from tests.support.polling import wait_until
from tests.support.standalone import Standalone
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.slow
PAGES = ("README.md", "docs/get-started/laptop.md")
COLUMNS = "100"
MADE = {"so", "jsonl", "pub", "key", "json"}  # suffixes of files that other commands make
MAKE = {("ledger", "archive"), ("receipt", "key")}  # these write a file that must be new
CONFIGURATIONS = {"device-config.yaml", "cluster.yaml", "apportion.yaml", "values.yaml"}
SAMPLE = ROOT / "examples/pods/hami.yaml"
REFUSED = {
    "apportion submit -f examples/too-large.yaml --wait",
    "apportion plan --lose ascend-1",
    "apportion drain ascend-1 --dry-run",
    'apportion defrag large --apply --reason "large job"',
    "apportion defrag --free-nodes 2",
    'apportion defrag --free-nodes 2 --apply --reason "room for a large job"',
    "apportion ledger trim ledger-1.jsonl --dry-run",
    "apportion ledger trim ledger-1.jsonl",
    "apportion ledger set-aside 4711 --reason 'written by 2.1, which was withdrawn'",
}
"""Commands that report a problem, so their exit code is not 0."""
UNSTABLE = (
    (re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d(\.\d+)?Z)?"), "DATE"),
    (re.compile(r"\b\d\d:\d\d:\d\d(\.\d+)?Z?"), "TIME"),
    (re.compile(r"\b(GPU|NPU)-[0-9a-f]{8}[0-9a-f-]*(\+(GPU|NPU)-[0-9a-f]{8})*"), "DEVICE"),
    (re.compile(r"\b(revisions?) [\d,]+( to [\d,]+)?"), r"\1 N"),
    (re.compile(r"\b(a100|a100-mig|h100|l40s-mps|t4|v100)-\d\b"), "NODE"),
    (re.compile(r"(moved to|restarted on) NODE"), "moved to NODE"),  # which pods of the gang
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"(?<=data in )\S+|(?<=placed )[\d.]+(?= s after)|(?<=ready after )[\d.]+"), "X"),
    (re.compile(r"(?<=[(@])\w+@[\w.-]+"), "USER"),
    (re.compile(r"\b[\d.]+(?=/\d)"), "USED"),  # of a node's capacity
    (re.compile(r"\b[\d,]+(?= of [\d,]+ (GiB|devices in use))"), "USED"),
    (re.compile(r"[\d.]+ KiB"), "SIZE"),
    (re.compile(r"\b[\d,]+\.\d+"), "AMOUNT"),  # scores and GPU-hours
    (re.compile(r"\+?AMOUNTs"), "SECONDS"),
    (re.compile(r"\b\d+%"), "PERCENT"),
    (re.compile(r"\b\d+(?= (Node|Pod|Shares)[A-Z]?\w+ )"), "N"),  # the revision of an event
    (re.compile(r"(?<=TIME )\d+$", re.MULTILINE), "N"),  # the revision of a decision
    (re.compile(r"\b\d+(?= +TIME\b)"), "N"),  # the revision of a change
)
CLI = "docs/reference/cli.md"  # examples of `--help`, in no order
RUN_HERE = {"apportion", "head", "curl"}
SERVICES = {"gateway", "agent", "admission", "up", "run"}
ELSEWHERE = {"--kubernetes", "--kubeconfig", "--gateway", "--nats"}
"""Options of commands that need Kubernetes or another machine."""
FOLLOWING = {"tail", "--follow", "-N"}
"""Words of commands that print until they are interrupted."""
FOLLOWED_S = 5
ALIASES = {
    "NAMESPACE/POD": "hami-pod", "training/worker-0": "test-vgpu", "worker-0": "hami-pod",
    "trainer-0": "hami-pod",
    "first": "hami-pod", "POD": "hami-pod", "NODE": "h100-1", "h100-3": "v100-1",
    "team/": "examples/pods", "pods/": "examples/pods", "60000 --cores 60": "4000 --cores 50",
    "too-large": "hami-pod", "GPU-1a2b": "GPU-1de1db92", "gpu-1": "h100-1",
    "1200": "100", "125": "110", "14:20": "-1s", "-10m": "-1s", "-2m": "-1s",
    "08:00": "-1h", "18:00": "-1s",
    "2026-10-01T00:00": "-1h", "2026-11-01T00:00": "-1s",
}  # fmt: skip
"""Names and times on pages that the fleet of `up` does not have, and what is used instead.

Pages resize the first worker of `training`. So it stands for a pod on two H100 with room for all
other samples: they can fill the GPU of `hami-pod`, depending on the order of decisions."""
AS_OF = re.compile(r"as of revision (\d+)")
NAMES = re.compile(rf"(?<![\w/.-])({'|'.join(map(re.escape, ALIASES))})(?![\w.-])")
PLACED = re.compile(r"\b(allocated) +\S.*")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Provide a new working directory for a page's commands, with links to the repository's
    examples and manifests."""
    monkeypatch.chdir(tmp_path)
    for name in ("examples", "deploy"):
        (tmp_path / name).symlink_to(ROOT / name)
    before = dict(os.environ)  # parsing a connection option sets its variable
    yield tmp_path
    os.environ.clear()
    os.environ.update(before)


def stable(output: str) -> str:
    """Replace values that differ between runs, such as times and ids, and collapse blanks."""
    for pattern, name in UNSTABLE:
        output = pattern.sub(name, output)
    return " ".join(output.split())


def printed(up: Standalone, command: str, folder: Path = ROOT, limit_s: float = 60) -> str:
    """Run a documentation page's command with bash, and return what a terminal would show."""
    apportion = f'apportion() {{ {shlex.quote(sys.executable)} -m apportion.cli.main "$@"; }}'
    done = subprocess.run(
        ["/bin/bash", "-c", f"{apportion}\n{command}"],
        env={**os.environ, "APPORTION_DATA": str(up.data), "COLUMNS": COLUMNS},
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s,
        check=False,
    )  # fmt: skip
    assert (done.returncode == 0) != (command in REFUSED), f"{command}\n{done.stdout}"
    return done.stdout


def used(up: Standalone, command: str) -> str:
    """Run a `report` command. Return its output, or "" if the output has no utilization column."""
    report = printed(up, command)
    return report if "UTILIZED" in report else ""


def started(output: str) -> set[str]:
    """Return the lines that `make up` prints, without the pods' nodes, because those differ from
    run to run."""
    return {stable(PLACED.sub(r"\1", line)) for line in output.splitlines()}


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page(page: str) -> None:
    """Every command of a documentation page runs, in the page's order, and prints what the page
    shows."""
    shown, later = list(with_output(text_of(page))), 0
    assert len(shown) >= 3
    with tempfile.TemporaryDirectory() as folder, Standalone(Path(folder) / "data") as up:
        up.up()
        for written, output in shown:
            command, at = written, re.search(r"(?<=--from )\d+$", written)
            if at is not None:  # the samples may take more events than in the page's run
                command = f"{written[: at.start()]}{int(at[0]) + later}"
            if command == "make up":
                assert started(output) <= started(up.output), up.output
            else:
                said = printed(up, command)
                if command.startswith("apportion report"):  # agents record use after a while
                    said = wait_until(partial(used, up, command), "use to be recorded")
                assert stable(said) == stable(output), f"{page}: `{command}` prints:\n{said}"
                if (here := AS_OF.search(said)) and (there := AS_OF.search(output)):
                    later = int(here[1]) - int(there[1])


def parse(words: list[str]) -> None:
    """Parse the arguments of `apportion` without running the verb.

    Raises click.ClickException for an unknown verb or option, or for a value that is refused."""
    command: click.Command = root
    context, rest = click.Context(root, info_name="apportion"), words
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=name)
    with command.make_context(context.info_name, [*rest], parent=context.parent):
        pass


@pytest.mark.parametrize("page", pages())
def test_commands_are_in_blocks_of_commands(page: str) -> None:
    """Commands are only in `console` and `sh` blocks: no plain or `text` block begins with a
    command."""
    for block in blocks(text_of(page), "", "text"):
        first = block.lstrip("$ ").split("\n")[0]
        shows = first.split()[0] in {*RUN_HERE, "kubectl", "helm"}
        assert not shows or "[OPTIONS]" in first, block  # a usage line of `--help`


@pytest.mark.parametrize("page", pages())
def test_every_call_of_apportion_parses(page: str, folder: Path) -> None:
    """Every verb, option and value that a page shows exists."""
    for command in commands(text_of(page)):
        for program, *words in calls(command):
            if program.endswith("apportion"):
                prepare(folder, page, words)
                try:
                    parse([word if word[0] != "/" else str(folder / word[1:]) for word in words])
                except click.ClickException as error:
                    pytest.fail(f"{page}: `{command}`: {error.format_message()}")


def run_here(page: str) -> list[str]:
    """Return the commands of a documentation page that need only a running `apportion up`."""
    return [
        command
        for command in commands(text_of(page))
        if (every := list(calls(command)))
        and all(call[0] in RUN_HERE and not SERVICES & {*call[1:2]} for call in every)
        and all(ELSEWHERE.isdisjoint(call) for call in every)
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("page", [p for p in pages() if p not in (*PAGES, CLI) and run_here(p)])
def test_every_call_of_apportion_runs(page: str, folder: Path) -> None:
    """While `apportion up` runs, every command of a documentation page succeeds, in the page's
    order."""
    with Standalone(folder / "data") as up:
        up.up()
        gateway = re.search(r"Console: http://([\d.:]+)", up.output)
        assert gateway is not None
        wait_until(lambda: not up.run("get", "pods", "--at", "-1s").returncode, "a second to pass")
        for command in run_here(page):
            words = [word for call in calls(command) for word in call[1:]]
            prepare(folder, page, words, made=False)
            for option, word in pairwise(words):
                if option in {"--archive", "--before"} and not (folder / word).exists():
                    printed(up, f"apportion ledger archive {word}", folder)
            here = NAMES.sub(lambda name: ALIASES[name[0]], command)
            here = here.replace("127.0.0.1:8470", gateway[1])
            if FOLLOWING.isdisjoint(words):
                printed(up, here, folder)
            else:
                with pytest.raises(subprocess.TimeoutExpired):
                    printed(up, here, folder, FOLLOWED_S)


def prepare(folder: Path, page: str, words: list[str], *, made: bool = True) -> None:
    """Write the files that a command names. Their content is the page's first YAML or TOML block,
    if it has one."""
    for word in words:
        path, kind = folder / word.lstrip("/"), Path(word).suffix[1:]
        if kind in {"yaml", "toml"} and not path.exists():
            sample = "policy: {}" if word in CONFIGURATIONS else SAMPLE.read_text()
            path.write_text(next(blocks(text_of(page), kind), sample))
        elif kind == "csv" and not path.exists():
            path.write_text((ROOT / "examples/lab/nodes.csv").read_text())
        elif made and (kind in MADE or word in {"/keys", "receipts"}):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch() if kind else path.mkdir(exist_ok=True)
        elif tuple(words[:2]) in MAKE and kind:  # also a file of an earlier section of the page
            for made_before in folder.glob(f"{word}*"):
                made_before.unlink()


def test_a_wrong_output_is_found() -> None:
    """The comparison ignores times, ids, revisions and blanks, and finds any other difference
    between page and run."""
    shown = "NODE #\nh100-1 0 GPU-06c9b42d  at revision 118 (2026-11-28T19:04:53.481398Z)\n"
    assert stable(shown) == stable(
        "NODE  #\nh100-2 0 GPU-c754f0a4 at\nrevision 7 (2027-01-02T03:04:05Z)"
    )
    assert stable(shown) != stable(shown.replace("#", "DEVICE"))
    assert stable("90,000 MiB") != stable("80,000 MiB")
    page = "```console\n$ x 1\nout\n$ y\n```\n```sh\n$ z\n```"
    assert list(with_output(page)) == [("x 1", "out\n"), ("y", "")]
    assert list(commands(page)) == ["x 1", "y", "z"]
