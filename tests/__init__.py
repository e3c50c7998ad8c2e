"""All tests, with one folder for each kind of test.

Invariant: no test and no benchmark uses a compiled module that is older than its source. Importing
this package raises ImportError otherwise."""

from apportion.runtime.process.compilation import outdated

if _late := outdated():
    raise ImportError(f"{_late[0].name} is older than its source: make compile")
