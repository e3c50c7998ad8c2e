"""The tests, one folder per intent.

Invariant: no test and no benchmark runs a compiled module that is older than its source."""

from apportion.runtime.process.compilation import outdated

if _late := outdated():
    raise ImportError(f"{_late[0].name} is older than its source: make compile")
