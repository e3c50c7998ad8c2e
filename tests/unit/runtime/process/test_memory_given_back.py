"""Tests that a process returns unused memory to the system."""

import json
import subprocess
import sys

CODE = """
import asyncio, ctypes, hashlib, json, mmap, ssl, sys
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.memory import give_back, share_one_heap

def kib(name):
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines[name].split()[0])

def patched():
    "The address of code that was written to, as a library with text relocations has it."
    library = ctypes.CDLL(None)
    library.mmap.restype = ctypes.c_void_p
    with open(sys.executable, "rb") as file:
        writable = mmap.PROT_READ | mmap.PROT_WRITE
        at = library.mmap(None, mmap.PAGESIZE, writable, mmap.MAP_PRIVATE, file.fileno(), 0)
    ctypes.memset(at, 7, 4)
    library.mprotect(ctypes.c_void_p(at), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC)
    return at

async def main():
    at = patched()
    rows = [bytes(600) for _ in range(100_000)]
    kept, rows = rows[-1], rows[:-1]
    del rows
    before = kib("RssAnon"), kib("RssFile")
    task = asyncio.create_task(give_back(SystemClock()))
    await asyncio.sleep(0)
    after = kib("RssAnon"), kib("RssFile")
    task.cancel()
    works = hashlib.sha256(kept).hexdigest(), ssl.create_default_context().check_hostname
    print(json.dumps([before, after, works, list(ctypes.string_at(at, 4))]))

share_one_heap()
asyncio.run(main())
"""


def test_freed_memory_and_code_of_the_start_are_given_back() -> None:
    """After its start, a process returns memory to the system: freed memory, and the memory of code
    that only the start needed."""
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=60
    )
    (anonymous, files), (anonymous_after, files_after), works, code = json.loads(done.stdout)
    assert anonymous - anonymous_after > 40_000
    assert files - files_after > 1_000
    assert works[1]
    assert code == [7] * 4, "code that was written to is not in its file"
