"""MPS daemons of this node's cards: started before the first container of a card, ended after the
last one, and started again when one died.

One `nvidia-cuda-mps-control` for each card, in a folder of its own: `pipe`, which its containers
have, `shm`, which is `/dev/shm` for the daemon as for them, and `log`. Whether a daemon lives is
asked of the daemon, so an agent that was killed takes over what runs. Invariant: a card with a
daemon takes one process at a time, the daemon's, so nothing runs there beside it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from apportion.agent.backend import DeviceBackend, NotMade

CONTROL: Final = "nvidia-cuda-mps-control"
ANSWERS_WITHIN_S: Final = 10.0
_ASK: Final = "get_default_active_thread_percentage"
_PRIVATE_SHM: Final = 'mount --bind "$0" /dev/shm && exec "$@"'
"""In a mount namespace of its own: clients in containers do not see the node's `/dev/shm`."""
_ANSWER_BYTES_MAX: Final = 300

_log = logging.getLogger(__name__)


class Daemons:
    """The MPS daemons below one folder, one folder per card in it."""

    def __init__(self, folder: Path, backend: DeviceBackend, launcher: Sequence[str] = ()) -> None:
        """`launcher` are words before the command that starts one, as in `systemd-run --scope`."""
        self._folder = folder
        self._backend = backend
        self._launcher = tuple(launcher)
        self._alone = asyncio.Lock()

    async def ensure(self, card: str, memory_mib: int) -> None:
        """Have the card's daemon there; no client of it gets more memory than this.

        Raises:
            NotMade: it does not start; the message has what it said.
        """
        async with self._alone:
            if not await self._lives(card):
                await self._start(card)
            await self._limit(card, memory_mib)

    async def keep(self, needed: Mapping[str, int]) -> dict[str, bool]:
        """End the daemons that no pod needs, and restart those of `needed` that died.

        `needed` has by card the memory of its largest share, in MiB. Return the cards whose daemon
        had died, and whether it runs again.
        """
        died: dict[str, bool] = {}
        for card in sorted(path.name for path in self._folder.glob("*")):
            try:
                if card not in needed:
                    async with self._alone:
                        if await self._lives(card):
                            await self._asked(card, "quit")
                            _log.info("card %s: nobody needs its MPS daemon: ended", card)
                        with suppress(NotMade):  # a card that is gone needs nothing
                            await self._backend.set_exclusive(card, exclusive=False)
                        await asyncio.to_thread(
                            shutil.rmtree, self._folder / card, ignore_errors=True
                        )
                elif not await self._lives(card):
                    _log.error("the MPS daemon of card %s is gone, and its clients with it", card)
                    await self.ensure(card, needed[card])
                    died[card] = True
            except NotMade as problem:  # it hangs, or its program is being replaced
                _log.error("%s", problem)
                if card in needed:
                    died[card] = False
        return died

    async def _start(self, card: str) -> None:
        """Raises NotMade."""
        home = self._folder / card
        for name in ("pipe", "log", "shm"):
            (home / name).mkdir(parents=True, exist_ok=True)
        (home / "shm").chmod(0o1777)  # as /dev/shm: clients run as whom they like
        await self._backend.set_exclusive(card, exclusive=True)
        private = ("unshare", "--mount", "sh", "-c", _PRIVATE_SHM, str(home / "shm"), CONTROL, "-d")
        status, said = await self._run(card, [*self._launcher, *private])
        if status:
            raise NotMade(f"the MPS daemon of card {card} does not start: {said}")
        _log.info("card %s: MPS daemon started", card)

    async def _limit(self, card: str, memory_mib: int) -> None:
        """For clients that emptied their environment, where each has its own limit.

        Raises:
            NotMade: the daemon does not take it.
        """
        _, servers = await self._asked(card, "get_server_list")
        lines = [f"set_default_device_pinned_mem_limit 0 {memory_mib}M"]
        lines += [
            f"set_device_pinned_mem_limit {server} 0 {memory_mib}M"
            for server in servers.split()
            if server.isdecimal()
        ]
        status, said = await self._asked(card, *lines)
        if status:
            raise NotMade(f"the MPS daemon of card {card} takes no limit: {said}")

    async def _lives(self, card: str) -> bool:
        if not (self._folder / card / "pipe").is_dir():
            return False
        status, _ = await self._asked(card, _ASK)
        return status == 0

    async def _asked(self, card: str, *lines: str) -> tuple[int, str]:
        return await self._run(card, [CONTROL], "".join(f"{line}\n" for line in lines))

    async def _run(self, card: str, words: Sequence[str], said: str = "") -> tuple[int, str]:
        """The status of a command about the card's daemon, and what it answered.

        Raises:
            NotMade: there is no such program here, or it does not end.
        """
        home = self._folder / card
        environ = os.environ | {
            "CUDA_VISIBLE_DEVICES": card,
            "CUDA_MPS_PIPE_DIRECTORY": str(home / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(home / "log"),
        }
        try:
            return await asyncio.to_thread(_ran, words, environ, said)
        except OSError as error:
            raise NotMade(f"{words[0]} cannot be started here: {error}") from None
        except subprocess.TimeoutExpired:
            raise NotMade(f"{' '.join(words)} does not end within {ANSWERS_WITHIN_S:g} s") from None


def _ran(words: Sequence[str], environ: dict[str, str], said: str) -> tuple[int, str]:
    """Its status and its answer; a file takes it, for a daemon may keep a pipe open for ever."""
    with tempfile.TemporaryFile() as answer:
        done = subprocess.run(
            words,
            env=environ,
            input=said.encode(),
            stdout=answer,
            stderr=subprocess.STDOUT,
            timeout=ANSWERS_WITHIN_S,
            start_new_session=True,
            check=False,
        )
        answer.seek(0)
        return done.returncode, answer.read(_ANSWER_BYTES_MAX).decode(errors="replace").strip()
