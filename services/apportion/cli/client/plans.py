"""Request plans from the gateway, for `plan`, `drain` and `defrag`."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from apportion.cli.client.gateway_client import Gateway, refused
from apportion.cli.client.moments import pinned
from apportion.cli.exits import Unreachable
from apportion.cli.render.output import console
from apportion.core.answers.plans import (
    DefragAnswer,
    DefragLine,
    DefragRequest,
    PlanAnswer,
    PlanLine,
    PlanRequest,
)

TIMEOUT_S = 135.0  # longer than a plan may queue and compute there
L = TypeVar("L", PlanLine, DefragLine)


def ask(url: str, request: PlanRequest, at: str | None = None) -> PlanAnswer:
    """Return the gateway's plan. On a terminal, standard error shows the progress."""
    answer = _last(url, request, pinned(Gateway(url), {"at": at}), PlanLine).answer
    assert answer is not None  # noqa: S101 - the last line has it
    return answer


def ask_moves(url: str, request: DefragRequest, at_least: Mapping[str, int]) -> DefragAnswer:
    """Return the moves that the gateway proposes; progress as above.

    The query `at_least` is that of `by_now`, or empty."""
    answer = _last(url, request, at_least, DefragLine).answer
    assert answer is not None  # noqa: S101 - the last line has it
    return answer


def _last(
    url: str, request: PlanRequest | DefragRequest, query: Mapping[str, object], of: type[L]
) -> L:  # fmt: skip
    gateway = Gateway(url, timeout_s=TIMEOUT_S)
    path = "plan" if isinstance(request, PlanRequest) else "defrag"
    out = console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=out, disable=not out.is_terminal, transient=True) as progress:
        task = progress.add_task("planning")
        for data in gateway.post_for_lines(path, body=request, query=query):
            try:
                line = msgspec.json.decode(data, type=of)
            except msgspec.DecodeError as error:
                raise Unreachable(f"cannot decode the answer of {url}: {error}") from None
            if line.error is not None:
                raise refused(line.error, line.status)
            if line.answer is not None:
                return line
            if line.progress is not None:
                said = f"{line.progress.step}: {line.progress.done:,} of {line.progress.of:,}"
                progress.update(task, description=said)
    raise Unreachable(f"{url} closed the connection before the plan was done; run it again")
