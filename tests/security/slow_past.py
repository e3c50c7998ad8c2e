"""The gateway's process that reads the past, slowed down, and on request with a guard removed.

    python -m tests.security.slow_past SOCKET FOLDER [ARCHIVES [PRICES]]

Reading a few events takes milliseconds, too short for a test to see the consumer that reads them.
Reading millions takes longer. Here each consumer is deleted a little later, so that a test can
count consumers from outside. The variable WITHOUT names the guard to remove. Invariant: both runs
of a test are equally slow."""

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
    """Return Python code that replaces a gateway's process for the past by this module, with the
    named guard removed."""
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
