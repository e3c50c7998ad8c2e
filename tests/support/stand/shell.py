"""A shell in the test cluster that runs command blocks of the documentation, as a person would.

Invariant: the whole page shares one shell, so variables, functions and background jobs of an
earlier block exist in later blocks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
from types import TracebackType
from typing import Any, Final, Self

from tests.support.documented import blocks, calls, commands, text_of
from tests.support.polling import until
from tests.support.stand.stand import Stand

END: Final = "end-of-block"
GUARD: Final = "set -E -o pipefail; failed=0; trap 'failed=$?' ERR"
BLOCK_S: Final = 420


class Shell:
    """A bash process. `async with` starts and ends it, with its background jobs."""

    def __init__(self, stand: Stand, names: dict[str, str]) -> None:
        """Configure the shell. `names` replaces placeholders of the pages, such as NODE."""
        self._stand = stand
        self._names = re.compile("|".join(map(re.escape, names)))
        self._meant = names
        self.said: list[str] = []

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            "/bin/bash",
            env=os.environ | self._stand.environment, cwd=self._stand.home, start_new_session=True,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    async def follow(
        self,
        page: str,
        heading: str,
        *,
        at: slice = slice(None),
        change: tuple[str, str] = ("", ""),
    ) -> None:
        """Run the `sh` blocks of a section of a page. Every command must succeed.

        `change` is an (old, new) pair of texts that a person changes in the commands."""
        _, found, section = text_of(page).partition(f"\n{heading}\n")
        assert found, f"{page} has no heading {heading}"
        level = heading.partition(" ")[0]
        section = re.split(rf"^#{{1,{len(level)}}} ", section, maxsplit=1, flags=re.MULTILINE)[0]
        for block in list(blocks(section, "sh"))[at]:
            meant = self._names.sub(lambda match: self._meant[match[0]], block)
            await self.run(meant.replace(*change) if change[0] else meant)

    async def run(self, script: str) -> str:
        """Run a script, of which every command must succeed, and return its output.

        A script of only `apportion` commands is repeated until it succeeds, as a person would
        do."""
        asks = all(name == "apportion" for each in commands(f"```sh\n{script}\n```")
                   for name, *_ in calls(each))  # fmt: skip
        output, code = "", 1

        async def done() -> bool:
            nonlocal output, code
            output, code = await self._ran(script)
            return code == 0 or not asks

        with contextlib.suppress(AssertionError):
            await until(done, script, interval_s=2)
        self.said.append(f"$ {script}\n{output}")
        assert code == 0, "\n".join(self.said[-3:])
        return output

    async def ask(self, command: str) -> Any:
        """Return the JSON answer of a command of Apportion."""
        said = await self.run(f"{command} --json 2>/dev/null")
        return json.loads(said[said.index("{") : said.rindex("}") + 1])  # and words of bash

    async def _ran(self, script: str) -> tuple[str, int]:
        block = self._stand.home / ".block.sh"
        block.write_text(f"{script}\n")
        assert self._process.stdin is not None
        self._process.stdin.write(f"{GUARD}\nsource {block}\necho {END} $failed\n".encode())
        await self._process.stdin.drain()
        return await asyncio.wait_for(self._read(), BLOCK_S)

    async def _read(self) -> tuple[str, int]:
        assert self._process.stdout is not None
        output = ""
        async for line in self._process.stdout:
            text = line.decode()
            if END in text:
                before, _, code = text.partition(END)
                return output + before, int(code)
            output += text
        raise AssertionError(f"the shell ended:\n{output}")
