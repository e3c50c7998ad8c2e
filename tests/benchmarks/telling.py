"""Print a benchmark's figures, either as one line of JSON or with one figure per line."""

import json
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any


def parser_of(text: str | None) -> ArgumentParser:
    """Return a command-line parser with the option `--json`; `text` describes the benchmark."""
    parser = ArgumentParser(description=text, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line, for programs")
    return parser


def tell(
    parser: ArgumentParser,
    measure: Callable[[Namespace], Mapping[str, Any]],
    limits: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Parse the command line, call `measure`, and print its figures with their limits.

    Raises SystemExit if a figure is not below its limit."""
    given = parser.parse_args()
    figures = measure(given)
    if given.json:
        print(json.dumps(figures))
    else:
        width = max(map(len, figures))
        for name, value in figures.items():
            limit = f" (limit: {limits[name]:g})" if name in limits else ""
            print(f"{name:>{width}}: {value}{limit}")
    missed = [
        f"{name}: {figures[name]}, limit {limit:g}"
        for name, limit in limits.items()
        if figures[name] >= limit
    ]
    if missed:
        raise SystemExit("\n".join(missed))
