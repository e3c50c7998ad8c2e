"""Memory that a small process gives back, in a process of its own."""

import json
import subprocess
import sys

CODE = """
import asyncio, hashlib, json, ssl
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.small import give_back, share_one_heap

def kib(name):
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines[name].split()[0])

async def main():
    rows = [bytes(600) for _ in range(100_000)]
    kept, rows = rows[-1], rows[:-1]
    del rows
    before = kib("RssAnon"), kib("RssFile")
    task = asyncio.create_task(give_back(SystemClock()))
    await asyncio.sleep(0)
    after = kib("RssAnon"), kib("RssFile")
    task.cancel()
    works = hashlib.sha256(kept).hexdigest(), ssl.create_default_context().check_hostname
    print(json.dumps([before, after, works]))

share_one_heap()
asyncio.run(main())
"""


def test_freed_memory_and_code_of_the_start_are_given_back() -> None:
    """The process goes on with what it needs."""
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=60
    )
    (anonymous, files), (anonymous_after, files_after), works = json.loads(done.stdout)
    assert anonymous - anonymous_after > 40_000
    assert files - files_after > 1_000
    assert works[1]
