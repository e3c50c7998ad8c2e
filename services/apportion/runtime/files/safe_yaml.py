"""Parses untrusted YAML and JSON within limits, one document at a time.

Only this module uses PyYAML. Depth and aliases are limited before anything is built, so an alias
bomb costs no more than reading the text. Dates stay text, as in Kubernetes. Invariant: the result
is a tree of JSON-like values with unique text keys, or a `Malformed`."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

import yaml

from apportion.core.explain.text.printable import escaped

TEXT_BYTES_MAX = 8 << 20
DEPTH_MAX = 100
ALIASES_MAX = 100
NODES_MAX = 1_000_000  # values of one document with all aliases expanded
DOCUMENTS_MAX = 50_000
# Values of all documents of a text: more than 8 MB of manifests have, and 10 s of work on a slow
# processor.
TEXT_NODES_MAX = 2_000_000

_SEPARATOR = re.compile(r"^---(?=\s|$)", re.MULTILINE)
_PATH = re.compile(r'\["([^"]*)"\]|\[(\d+)\]|([^.\[\]]+)')
_DATE = "tag:yaml.org,2002:timestamp"
# What PyYAML's constructors raise for `!!bool x`, `!!timestamp x` or a number of 5,000 digits.
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_KEY_TAGS = {"tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"}


class Malformed(ValueError):
    """Error: the text cannot be parsed."""

    def __init__(self, line: int, problem: str, fix: str, *, of_syntax: bool = False) -> None:
        super().__init__(line, problem, fix)
        self.line = line
        self.problem = problem
        self.fix = fix
        self.of_syntax = of_syntax

    def __str__(self) -> str:
        return f"line {self.line}: {self.problem}; {self.fix}"


@dataclass(frozen=True, slots=True)
class Parsed:
    """One document of a text: its number and first line (both from 1), and its content."""

    number: int
    line: int
    text: str = field(repr=False)
    content: object = None
    error: Malformed | None = None

    def line_of(self, path: str) -> int:
        """Return the line of the field at `path`, or of the deepest field on that path."""
        node = _composed(self.text)
        offset = node.start_mark.line if node else 0
        for key, index, name in _PATH.findall(path):
            if isinstance(node, yaml.SequenceNode) and index and int(index) < len(node.value):
                node = node.value[int(index)]
                offset = node.start_mark.line
            elif isinstance(node, yaml.MappingNode):
                found = _fields(node).get(key or name)
                if found is None:
                    break
                offset, node = found[0].start_mark.line, found[1]
            else:
                break
        return self.line + int(offset)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    yaml_implicit_resolvers = {  # without dates
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _DATE]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def parse(text: str, *, is_json: bool = False) -> Iterator[Parsed]:
    """Yield the non-empty documents of a text. With `is_json`, refuse YAML that is not JSON."""
    if is_json or text.lstrip()[:1] == "{":
        try:
            yield Parsed(1, 1, text, content=_json(text))
            return
        except Malformed as error:
            if is_json or not error.of_syntax:
                yield Parsed(1, 1, text, error=error)
                return
    if too_many := _too_many(text):
        yield Parsed(1, too_many.line, "", error=too_many)
        return
    starts = [match.start() for match in _SEPARATOR.finditer(text)]
    number, next_line = 0, 1
    used: Counter[str] = Counter()  # of the limits of the whole text
    for start, end in pairwise([0, *starts, len(text)]):
        chunk, line = text[start:end], next_line
        next_line += chunk.count("\n")
        if not chunk:
            continue
        try:
            _measure(chunk, line, used)
            content = _content(chunk, line)
        except (Malformed, yaml.YAMLError) as error:
            number += 1
            if not isinstance(error, Malformed):
                mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
                problem = getattr(error, "problem", None) or str(error).splitlines()[0]
                last = chunk.rstrip().count("\n")  # the parser may point past the end
                offset = min(mark.line, last) if mark else 0
                error = Malformed(line + offset, str(problem)[:200], "fix the syntax")
            yield Parsed(number, line, chunk, error=error)
            continue
        if content is not None:
            number += 1
            yield Parsed(number, line, chunk, content=content)


def _too_many(text: str) -> Malformed | None:
    """Return an error if the text has too many documents, counted before parsing."""
    for count, match in enumerate(_SEPARATOR.finditer(text), 1):
        if count > DOCUMENTS_MAX:
            line = text.count("\n", 0, match.start()) + 1
            return Malformed(line, f"more than {DOCUMENTS_MAX} documents", "split the file")
    return None


def _measure(text: str, line: int, used: Counter[str]) -> None:
    """Refuse a document that is nested too deeply or has too many values or aliases."""
    known: dict[str, tuple[int, int]] = {}  # anchor: number of values and depth
    open_: list[tuple[str | None, list[int]]] = [(None, [0, 0])]
    for event in yaml.parse(text, Loader=_Loader):
        used["nodes"] += isinstance(event, yaml.NodeEvent)
        if used["nodes"] > TEXT_NODES_MAX:
            raise _at(event, line, f"more than {TEXT_NODES_MAX} values in total", "split the file")
        if isinstance(event, yaml.AliasEvent):
            used["aliases"] += 1
            if used["aliases"] > ALIASES_MAX:
                raise _at(event, line, f"more than {ALIASES_MAX} aliases", "write the values out")
            if event.anchor not in known:
                raise _at(
                    event, line, f"alias {event.anchor!r} is recursive or undefined", "fix it"
                )
            _count(open_[-1][1], *known[event.anchor])
        elif isinstance(event, yaml.ScalarEvent):
            _count(open_[-1][1], 1, 0)
            known |= {event.anchor: (1, 0)} if event.anchor else {}
        elif isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor, [1, 0]))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, (values, depth) = open_.pop()
            known |= {anchor: (values, depth + 1)} if anchor else {}
            _count(open_[-1][1], values, depth + 1)
        if len(open_) + open_[-1][1][1] > DEPTH_MAX + 1:
            raise _at(event, line, f"nested deeper than {DEPTH_MAX} levels", "flatten it")
        if open_[-1][1][0] > NODES_MAX:
            raise _at(event, line, f"more than {NODES_MAX} values, aliases included", "split it")


def _count(tally: list[int], values: int, depth: int) -> None:
    tally[0] += values
    tally[1] = max(tally[1], depth)


def _content(text: str, line: int) -> object:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check_keys(node, line)
        return loader.construct_document(node)
    except _UNREADABLE as error:
        if isinstance(error, Malformed):
            raise
        raise Malformed(line, "a value does not match its tag or is too long", "quote it") from None
    finally:
        loader.dispose()


def _check_keys(root: yaml.Node, line: int) -> None:
    """Refuse keys that are not text or occur twice. A key may override one that `<<` merges."""
    left, seen = [root], {id(root)}
    while left:
        node = left.pop()
        children = list(node.value) if isinstance(node, yaml.SequenceNode) else []
        if isinstance(node, yaml.MappingNode):
            keys: set[str] = set()
            for key, value in node.value:
                if key.tag not in _KEY_TAGS:
                    raise _at(key, line, "a key is not a string", "quote it")
                if key.value in keys:
                    raise _at(key, line, f"duplicate key {key.value!r}", "keep one of them")
                keys.add(key.value)
                children.append(value)
        left += [child for child in children if id(child) not in seen]
        seen |= {id(child) for child in children}


def _json(text: str) -> object:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            twice = next(key for key, count in counts.items() if count > 1)
            raise Malformed(1, f"duplicate key {twice!r}", "keep one of them")
        return found

    def no_number(name: str) -> object:
        raise Malformed(1, f"{name} is not a JSON number", "write a number")

    try:
        content = json.loads(text, object_pairs_hook=unique, parse_constant=no_number)
    except json.JSONDecodeError as error:
        problem = f"not JSON ({error.msg})"
        raise Malformed(error.lineno, problem, "fix the syntax", of_syntax=True) from None
    except RecursionError:
        raise Malformed(1, f"nested deeper than {DEPTH_MAX} levels", "flatten it") from None
    except Malformed:
        raise
    except ValueError as error:
        raise Malformed(1, f"cannot read a value ({error})", "quote it") from None
    level = [content]
    for _ in range(DEPTH_MAX + 1):
        level = [
            child
            for value in level
            if isinstance(value, dict | list)
            for child in (value.values() if isinstance(value, dict) else value)
        ]
    if level:
        raise Malformed(1, f"nested deeper than {DEPTH_MAX} levels", "flatten it")
    return content


def _at(event: Any, line: int, problem: str, fix: str) -> Malformed:
    return Malformed(line + event.start_mark.line, problem, fix)


@lru_cache(maxsize=1)
def _composed(text: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError:
        return None


@lru_cache(maxsize=DEPTH_MAX)
def _fields(node: yaml.MappingNode) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """Return a mapping's fields by key. Cached, because callers look up many fields."""
    return {key.value: (key, value) for key, value in node.value if isinstance(key.value, str)}


def written(value: object) -> str:
    """Format a value as YAML and keep the order of keys; control characters are escaped."""
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    if escaped(text, keep="\n") != text:
        text = yaml.safe_dump(value, sort_keys=False, allow_unicode=False)
    return text
