"""Compiles the modules of the hot path ahead of time, where there is a C compiler.

    python hatch_build.py        in this checkout, beside their sources (`make compile`)

Cython translates them as they stand: the Python is the source and says what happens, and where
nothing was compiled it is what runs (docs/adr/0011). The wheel carries both.

Invariant: a compiled module answers as its source does. One that is older than its source is run by
no service and no test (`apportion.runtime.compilation`).
"""

import ast
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
SOURCES = ROOT / "services"
SCRATCH = ROOT / "build" / "compiled"
MODULES: dict[str, tuple[str, ...]] = {
    "apportion.core.devices.demand": (),
    "apportion.core.devices.shares": (),
    "apportion.core.ledger.fold": (),
    "apportion.core.ledger.seating": (),
    "apportion.core.ledger.state": (),
    "apportion.core.placement.ask_columns": ("AskColumns",),
    "apportion.core.placement.assign": ("_Room", "_Search"),
    "apportion.core.placement.classes": ("PlacementClass",),
    "apportion.core.placement.columns": ("Columns", "RowLog"),
    "apportion.core.placement.engine": ("Engine",),
    "apportion.core.placement.filters": (),
    "apportion.core.placement.filters.amounts": (),
    "apportion.core.placement.holdings": (),
    "apportion.core.placement.namespaces": (),
    "apportion.core.placement.neighbours": ("Neighbours",),
    "apportion.core.placement.packed": (),
    "apportion.core.placement.pricing.census": ("Census",),
    "apportion.core.placement.queue": ("Line", "PendingQueue"),
    "apportion.core.placement.queues": (),
    "apportion.core.placement.scoreboard": ("Scoreboard",),
    "apportion.core.placement.scores.devices": (),
    "apportion.core.placement.scores.nodes": (),
    "apportion.core.placement.waiting": ("Waiting",),
}
"""What is compiled, each with those of its classes whose attributes stand in fixed places: they may
not be given others, and their methods not be replaced.
"""
NO_COMPILER = """\
nothing was compiled: there is {lack}. Apportion runs all the same, and decides a third slower.
On Debian and Ubuntu: apt install gcc python3-dev"""


def source_of(module: str) -> Path:
    """Where a module of ours is, below the folder of sources."""
    path = Path(*module.split("."))
    return path / "__init__.py" if (SOURCES / path).is_dir() else path.with_suffix(".py")


def lack() -> str:
    """What is missing to compile, or nothing."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"no C compiler ({compiler})"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "no Python.h"
    return ""


def compile_all() -> dict[Path, Path]:
    """The compiled modules in the scratch folder, by where they belong below that of sources.

    Only what changed since the last time is compiled again.
    """
    from Cython.Build import cythonize  # noqa: PLC0415
    from setuptools import Distribution, Extension  # noqa: PLC0415

    here = Path.cwd()
    SCRATCH.mkdir(parents=True, exist_ok=True)
    for module, types in MODULES.items():
        _copy(source_of(module), types)
    os.chdir(SCRATCH)
    try:
        extensions = [
            Extension(
                _full_name(module),
                [str(source_of(module))],
                extra_compile_args=["-O2", "-g0", "-w"],
            )
            for module in MODULES
        ]
        jobs = os.cpu_count() or 1
        directives = {"language_level": 3, "annotation_typing": False}
        made = cythonize(extensions, compiler_directives=directives, nthreads=jobs, quiet=True)
        command: Any = Distribution({"ext_modules": made}).get_command_obj("build_ext")
        command.build_lib, command.build_temp, command.parallel = "lib", "objects", jobs
        command.ensure_finalized()
        command.run()
        outputs = [SCRATCH / output for output in command.get_outputs()]
    finally:
        os.chdir(here)
    return {output.relative_to(SCRATCH / "lib"): output for output in outputs}


def _full_name(module: str) -> str:
    return ".".join(source_of(module).with_suffix("").parts)


def _copy(source: Path, types: Iterable[str]) -> None:
    """The source in the scratch folder, with the declarations of its extension types."""
    target = SCRATCH / source
    target.parent.mkdir(parents=True, exist_ok=True)
    for folder in target.relative_to(SCRATCH).parents[:-1]:
        (SCRATCH / folder / "__init__.py").touch()
    shutil.copy2(SOURCES / source, target)
    text = "\n".join(declared(target.read_text(), types))
    declarations = target.with_suffix(".pxd")
    if not declarations.exists() or declarations.read_text() != text:
        declarations.write_text(text)


def declared(source: str, types: Iterable[str]) -> Iterable[str]:
    """Each of the classes with every attribute that its methods give themselves."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name in types:
            yield f"cdef class {node.name}:"
            found = (each for each in ast.walk(node) if isinstance(each, ast.Attribute))
            stored = (
                each.attr for each in found if isinstance(each.ctx, ast.Store) and _is_self(each)
            )
            yield from (f"    cdef public object {name}" for name in sorted(set(stored)))
            yield ""


def _is_self(attribute: ast.Attribute) -> bool:
    return isinstance(attribute.value, ast.Name) and attribute.value.id == "self"


class Compile(BuildHookInterface[Any]):
    """The wheel gets the compiled modules, and is then one for this platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it gathers the files of a wheel."""
        if version == "editable":
            return
        if missing := lack():
            self.app.display_warning(NO_COMPILER.format(lack=missing))
            return
        for place, compiled in compile_all().items():
            build_data["force_include"][str(compiled)] = str(place)
        build_data["pure_python"], build_data["infer_tag"] = False, True


def main() -> None:
    """Compile in place; without a compiler, take away what an earlier one made."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for module in MODULES:
        (SOURCES / source_of(module)).with_suffix(suffix).unlink(missing_ok=True)
    if missing := lack():
        print(NO_COMPILER.format(lack=missing), file=sys.stderr)
        return
    for place, compiled in compile_all().items():
        shutil.copy2(compiled, SOURCES / place)


if __name__ == "__main__":
    main()
