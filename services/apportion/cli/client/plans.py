"""Request a plan from the gateway, for `plan` and `drain`."""

import msgspec
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from apportion.cli.client.gateway_client import Gateway, refused
from apportion.cli.client.moments import pinned
from apportion.cli.exits import Unreachable
from apportion.cli.render.output import console
from apportion.core.answers.plans import PlanAnswer, PlanLine, PlanRequest

TIMEOUT_S = 135.0  # longer than a plan may queue and compute there


def ask(url: str, request: PlanRequest, at: str | None = None) -> PlanAnswer:
    """Return the gateway's plan. On a terminal, standard error shows the progress."""
    out = console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    gateway = Gateway(url, timeout_s=TIMEOUT_S)
    query = pinned(gateway, {"at": at})
    with Progress(*columns, console=out, disable=not out.is_terminal, transient=True) as progress:
        task = progress.add_task("planning")
        for data in gateway.post_for_lines("plan", body=request, query=query):
            try:
                line = msgspec.json.decode(data, type=PlanLine)
            except msgspec.DecodeError as error:
                raise Unreachable(f"cannot decode the answer of {url}: {error}") from None
            if line.error is not None:
                raise refused(line.error, line.status)
            if line.answer is not None:
                return line.answer
            if line.progress is not None:
                said = f"{line.progress.step}: {line.progress.done:,} of {line.progress.of:,}"
                progress.update(task, description=said)
    raise Unreachable(f"{url} closed the connection before the plan was done; run it again")
