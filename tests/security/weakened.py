"""Apportion without one of its guards: what an attack must succeed against, or it proves nothing.

An attack that fails may fail because it is badly made. So each test of this folder makes the same
attack twice: against the guard, and without it. `GUARDS` names every guard that code is; those that
permissions or manifests are, a test takes out by generating them from a wider table.

In a process of its own: `python -m tests.security.weakened GUARD -- agent --node n1 ...`.
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from unittest import mock


@contextlib.contextmanager
def looks_at_the_ledger() -> Iterator[None]:
    """Settings are looked at when a service begins, and never again."""
    from apportion.runtime.service.soundness import Soundness  # noqa: PLC0415

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    with mock.patch.object(Soundness, "watch", never):
        yield


GUARDS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "looks at the ledger": looks_at_the_ledger,
}
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
