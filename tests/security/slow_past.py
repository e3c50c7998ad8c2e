"""The gateway's process for the past, on a ledger whose reading takes a while; or without a guard.

    python -m tests.security.slow_past SOCKET FOLDER [ARCHIVES [PRICES]]

A read of some events is over in milliseconds, and its consumer with it; of millions it is not. So
that a consumer can be counted from outside, each lives a moment longer. The variable WITHOUT names
the guard that is taken out. Invariant: both runs of a test are slow alike."""

import contextlib
import os
import sys
from unittest import mock

from apportion.gateway import past_process
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.following import Follower
from tests.security.weakened import GUARDS

WITHOUT = "APPORTION_TEST_WITHOUT"
QUESTIONS = 20
"""That many the server has answered before a consumer goes."""


def begun_by(guard: str) -> str:
    """Code that has a gateway begin this process, without the guard if it is named."""
    return (
        "import os\nfrom apportion.gateway.api import past_client\n"
        f"past_client.MODULE = {__name__!r}\nos.environ[{WITHOUT!r}] = {guard!r}\n"
    )


def main() -> int:
    """See `past_process.main`."""
    guard = os.environ.get(WITHOUT, "")
    stop = Follower.stop

    async def later(follower: Follower) -> None:
        for _ in range(QUESTIONS):
            await stream.read_info(follower._wire)
        await stop(follower)

    with (
        mock.patch.object(Follower, "stop", later),
        GUARDS[guard]() if guard else contextlib.nullcontext(),
    ):
        return past_process.main()


if __name__ == "__main__":
    sys.exit(main())
