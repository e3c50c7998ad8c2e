"""Apportion without one of its guards: what an attack must succeed against, or it proves nothing.

An attack that fails may fail because it is badly made. So each test of this folder makes the same
attack twice: against the guard, and without it. `GUARDS` names every guard that code is; those that
permissions or manifests are, a test takes out by generating them from a wider table.

In a process of its own: `python -m tests.security.weakened GUARD -- agent --node n1 ...`.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

GUARDS: dict[str, Callable[[], AbstractContextManager[None]]] = {}
"""The name of a guard, and what takes it out for the length of a `with`."""


def main() -> None:
    """Run a verb of the command line without the guard that the arguments name."""
    guard, separator, *arguments = sys.argv[1:]
    if separator != "--" or guard not in GUARDS:
        sys.exit(f"usage: python -m tests.security.weakened {{{','.join(GUARDS)}}} -- VERB ...")
    from apportion.cli.main import root  # noqa: PLC0415 - a guard may stand where it is imported

    with GUARDS[guard]():
        root.main(arguments, prog_name="apportion")


if __name__ == "__main__":
    main()
