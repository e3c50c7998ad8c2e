"""What every benchmark does with its figures: a line of JSON for programs, or a line each."""

import json
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping
from typing import Any


def parser_of(text: str | None) -> ArgumentParser:
    """The options of a benchmark whose module says `text` of itself, with `--json`."""
    parser = ArgumentParser(description=text, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line, for programs")
    return parser


def tell(parser: ArgumentParser, measure: Callable[[Namespace], Mapping[str, Any]]) -> None:
    """Measure as the command line says, and print the figures."""
    given = parser.parse_args()
    figures = measure(given)
    if given.json:
        print(json.dumps(figures))
        return
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:>{width}}: {value}")
