"""Answers as a tenant sees them: which can be shown to him at all, and through which lens.

The one place where that is decided: answers of now and of the past come through it as JSON, events
as they are streamed. Invariant: what is not in the table is not shown.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from typing import Any, Final

import msgspec

from apportion.core.explain.lens import (
    OF_OTHERS,
    OTHERS,
    UNKNOWN,
    Sees,
    fleet_namespaces,
    fleet_seen,
    namespaces_in,
    seen,
)
from apportion.core.reports.report import DIGITS
from apportion.core.reports.rows import NOBODY

BY_SHOWN: Final = frozenset({"namespace", "node"})
"""Rows of reports that a tenant is shown; by queue, user or label they would be those of others."""

Look = Callable[[Any, Sees], Any]
Ask = Callable[[str], Awaitable[bool]]
Seal = Callable[[str], str]


def _report(answer: Any, sees: Sees) -> Any:
    """A report by node, which everybody knows, or by namespace: those of others are one row."""
    if answer["by"] == "namespace":
        for name in ("rows", "steps"):
            if name in answer:
                answer[name] = list(_together(answer[name], sees))
    return seen(answer, sees)


def _together(rows: Iterable[dict[str, Any]], sees: Sees) -> Iterator[dict[str, Any]]:
    """Rows of which those of namespaces that he does not see are one, of each step one: they come
    to the total still, and of no other namespace he learns what it had.
    """
    others: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["key"] == NOBODY or sees(row["key"]):
            yield row
        else:
            others.setdefault(row.get("from", ""), []).append(row)
    for alike in others.values():
        yield {name: _sum([row.get(name) for row in alike]) for name in alike[0]} | {"key": OTHERS}


def _sum(values: list[Any]) -> Any:
    """Of figures their sum; of what is the same in all rows that."""
    figures = [value for value in values if value is not None]
    if not figures or isinstance(figures[0], str):
        return figures[0] if figures else None
    return round(sum(figures), DIGITS)


def _entry(answer: Any, sees: Sees) -> Any:
    """One event, if it is about no other namespace; names of others in its texts are blanked."""
    event, about = answer.pop("event"), answer["row"].get("namespaces", [UNKNOWN])
    shown = seen(answer, sees)
    if not all(map(sees, about)):
        event = None
    elif isinstance(event, dict) and "data" in event:
        event["data"] = seen(event["data"], sees)
    return {**shown, "event": event}


def _differences(answer: Any, sees: Sees) -> Any:
    """Without configuration and limits, which may name anybody, nor words about pods of others."""
    shown = seen(answer, sees)
    for kind in ("placements", "waiting", "nodes", "devices"):
        for row in _about_others(shown[kind], answer[kind]):
            row.update(sentence=OF_OTHERS, by="", cause="")
    for kind in ("placements", "waiting"):
        shown[kind] = _hidden_last(shown[kind], lambda row: row["sentence"] == OF_OTHERS)
    return {**shown, "configuration": [], "limits": []}


def _gangs(answer: Any, sees: Sees) -> Any:
    shown = seen(answer, sees)
    hidden = _hidden_last(shown["items"], lambda row: row["namespace"] == OTHERS)
    return {**shown, "items": hidden}


def _hidden_last(rows: list[Any], is_hidden: Callable[[Any], bool]) -> list[Any]:
    """Put rows of others behind: in the order of names their place would hint at theirs."""
    hidden = sorted(filter(is_hidden, rows), key=msgspec.json.encode)
    return [row for row in rows if not is_hidden(row)] + hidden


def _timeline(answer: Any, sees: Sees) -> Any:
    shown = seen(answer, sees)
    for mark in _about_others(shown["marks"], answer["marks"]):
        mark["sentence"] = OF_OTHERS
    return shown


def _about_others(shown: list[Any], whole: list[Any]) -> Iterator[Any]:
    """Rows that lost a name: the words around it may have it again, as reasons of others do."""
    for row, before in zip(shown, whole, strict=True):
        if any(row[part] != before.get(part) for part in ("name", "sentence") if part in row):
            yield row


def _lines(answer: Any, sees: Sees) -> Any:
    """Each line with the answer of a pod that he sees: the first may wait for a limit of others."""
    shown = seen(answer, sees)
    for line in shown["lines"]:
        if not sees(line["whose"]):
            own = (pod["sentence"] for pod in line["first"] if pod["namespace"] != OTHERS)
            sentence = line["sentence"] and next(filter(None, own), OF_OTHERS)
            line.update(
                whose=OTHERS, queue="", gang=None, sentence=sentence, nodes=0, causes=[], nearest=[]
            )
    return shown


def _queues(answer: Any, sees: Sees) -> Any:
    """What queues allow, for they are the cluster's; not what pods of anybody hold and want there.

    Their limits have the names of resources and cards as keys, which stay whatever they look like.
    """
    del sees
    left_out = dict.fromkeys(("used", "devices", "pods", "waiting"))
    return {**answer, "items": [each | left_out for each in answer["items"]]}


def _fleet(answer: Any, sees: Sees) -> Any:
    return fleet_seen(answer, sees)


def _names(answer: Any, sees: Sees) -> Any:
    """Without the namespaces that he does not see: that is all there is to an item."""
    return {**answer, "items": [each for each in answer["items"] if sees(each["namespace"])]}


TABLE: Final[tuple[tuple[str, Look], ...]] = (
    (r"revision|moment|summary", seen),
    (r"pods|placements|nodes|devices|namespaces", seen),
    (r"gangs", _gangs),
    (r"lines", _lines),
    (r"queues", _queues),
    (r"quotas", _names),
    (r"pods/[^/]+/[^/]+|pods/[^/]+/[^/]+/why|nodes/[^/]+", seen),
    (r"who|log|history/(?:pods/[^/]+|nodes|devices)/[^/]+", seen),
    (r"history/pods/[^/]+", _names),
    (r"log/\d+", _entry),
    (r"diff", _differences),
    (r"timeline", _timeline),
    (r"report/(?:usage|cost|idle)", _report),
    (r"fleet", _fleet),
    (r"plan", seen),
)
"""Paths below the API's prefix, and what a tenant sees of their answers."""
_LOOKS: Final = tuple((re.compile(f"^(?:{pattern})$"), look) for pattern, look in TABLE)
_OF_POD: Final = re.compile(r"^(?:history/)?pods/([^/]+)/[^/]+(?:/why)?$")


def look_at(path: str) -> Look | None:
    """How an answer at this path is seen; None where a tenant does not see it."""
    return next((look for pattern, look in _LOOKS if pattern.match(path)), None)


def is_shown(path: str, query: Mapping[str, str]) -> bool:
    """Whether what is asked for in this form can be seen by a tenant: JSON, and rows that can."""
    by = query.get("by", "namespace") if path.startswith("report/") else "namespace"
    return query.get("format", "json") == "json" and by in BY_SHOWN


def namespace_at(path: str) -> str:
    """The namespace whose pod a path is about; empty where it is about none."""
    found = _OF_POD.match(path)
    return found[1] if found else ""


def planned_namespaces(body: bytes) -> list[str]:
    """Where the pods of a plan's manifests would be: only who sees that may ask about them.

    A plan says of each whether it is live already, and so whether somebody has a pod of its name.
    """
    return sorted({pod["namespace"] for pod in msgspec.json.decode(body)["pods"]})


async def shown(body: bytes, look: Look, may_see: Ask, seal: Seal, aside: Executor) -> bytes:
    """Mask the JSON of an answer for a client that may see the namespaces of `may_see`.

    The cursor of a list is sealed: it may name what the client does not see. The work is done by
    `aside`: an answer of a thousand rows takes a tenth of a second.
    """

    def decoded() -> tuple[Any, set[str]]:
        answer = msgspec.json.decode(body)
        if isinstance(answer, dict) and "continue" in answer:
            answer["continue"] = seal(answer["continue"])
        names = fleet_namespaces(answer) if look is _fleet else namespaces_in(answer)
        if look is _report and isinstance(answer, dict) and answer.get("by") == "namespace":
            names |= {row["key"] for name in ("rows", "steps") for row in answer.get(name, ())}
        return answer, names

    loop = asyncio.get_running_loop()
    answer, names = await loop.run_in_executor(aside, decoded)
    sees = await sight(names, may_see)
    return await loop.run_in_executor(aside, lambda: msgspec.json.encode(look(answer, sees)))


async def sight(namespaces: Iterable[str], may_see: Ask) -> Sees:
    """Which of these are seen; all others are not."""
    allowed = {name for name in namespaces if name != UNKNOWN and await may_see(name)}
    return allowed.__contains__
