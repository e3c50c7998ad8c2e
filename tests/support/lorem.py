"""Replace every sentence of the product with a dummy text, to show that no program parses it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import wraps
from inspect import isfunction
from typing import Any, Final, get_type_hints

from apportion.core.explain.text import answer_text, event_text, words
from tests.tidy.prose import FIELDS

LOREM: Final = "lorem ipsum; dolor sit: amet (9), and"
NAMES: Final = frozenset(("device_words",))
"""Functions that return a name of devices rather than a sentence."""
TEXTS: Final = (answer_text, event_text, words)
WORDERS: Final = ("_words", "_sentence")
"""Name endings of functions that render sentences, in other modules of the product."""
SENTENCES: Final = FIELDS | {"parts", "reason_parts"}
"""Fields of answers that hold a sentence, or the parts of one."""


def lorem(function: Callable[..., str]) -> Callable[..., str]:
    """Return a function that returns a dummy text wherever `function` returns a non-empty text."""

    @wraps(function)
    def said(*args: Any, **kwargs: Any) -> str:
        return LOREM if function(*args, **kwargs) else ""

    return said


def replaced(replace: Callable[[Any, str, Any], None]) -> int:
    """Replace all functions that render sentences, in every module that uses them.

    `replace` is called with a module, a name in the module, and the new value. Return how many
    names were replaced."""
    product = [each for key, each in sorted(sys.modules.items()) if key.startswith("apportion.")]
    bound: dict[Any, list[tuple[Any, str]]] = {}
    for user in product:
        for name, value in vars(user).items():
            if isfunction(value):
                bound.setdefault(value, []).append((user, name))
    others: dict[Any, Any] = {}
    places = 0
    for module in product:
        for name, function in list(vars(module).items()):
            own = isfunction(function) and function.__module__ == module.__name__
            if not own or name in NAMES or not (module in TEXTS or name.endswith(WORDERS)):
                continue
            if get_type_hints(function).get("return") is str:
                other = others[function] = lorem(function)
                for user, bound_as in bound[function]:
                    replace(user, bound_as, other)
                    places += 1
    for module in TEXTS:
        for name, table in list(vars(module).items()):
            if isinstance(table, dict) and any(isfunction(each) for each in table.values()):
                replace(module, name, {key: others.get(each, each) for key, each in table.items()})
    return places


def reworded(value: Any, *, is_sentence: bool = False) -> Any:
    """Return a copy of an answer's decoded JSON, with a dummy text in place of every sentence."""
    if isinstance(value, str):
        return LOREM if is_sentence and value else value
    if isinstance(value, list):
        return [reworded(each, is_sentence=is_sentence) for each in value]
    if isinstance(value, dict):
        return {key: reworded(each, is_sentence=key in SENTENCES) for key, each in value.items()}
    return value


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all differences between two JSON answers, apart from sentences."""
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        for key in before:
            yield from differences(before[key], after[key], f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{path}[{number}]")
    elif before != after and not (isinstance(after, str) and "lorem" in after):
        yield path
