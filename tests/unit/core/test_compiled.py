"""What numba is given of a module that was compiled ahead of time: its source."""

from pathlib import Path
from types import ModuleType

from apportion.core.placement.compiled import interpreted


def test_a_compiled_module_is_read_from_the_source_beside_it(tmp_path: Path) -> None:
    """Wherever that is: the folders of Python itself have a dot in their names."""
    folder = tmp_path / "python3.11"
    folder.mkdir()
    (folder / "packed.py").write_text("def half(x):\n    return x // 2\n")
    module = ModuleType("packed")
    module.__file__ = str(folder / "packed.cpython-311-x86_64-linux-gnu.so")
    assert interpreted(module).half(8) == 4
