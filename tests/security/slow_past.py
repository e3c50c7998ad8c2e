"""A slow variant of the process in which the gateway reads old events, with or without a guard.

    python -m tests.security.slow_past SOCKET FOLDER [ARCHIVES [PRICES]]

Each consumer is deleted a little later than usual, so that a test has time to count the consumers.
The variable WITHOUT names the guard to remove. Invariant: both variants are equally slow."""

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
"""The number of requests to the server by which the deletion of a consumer is delayed."""


def begun_by(guard: str) -> str:
    """Return Python code that makes a gateway read old events through this module.

    The named guard is removed in the process that this module runs in."""
    return (
        "import os\nfrom apportion.gateway.api import past_client\n"
        f"past_client.MODULE = {__name__!r}\nos.environ[{WITHOUT!r}] = {guard!r}\n"
    )


def main() -> int:
    """Run `past_process.main` with slow reads, and without the guard named in the environment."""
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
