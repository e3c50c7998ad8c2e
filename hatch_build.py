"""Compile the modules on the scheduler's hot path ahead of time, if there is a C compiler.

    python hatch_build.py        compile in this checkout, next to the sources (`make compile`)

`APPORTION_COMPILED` names a folder that caches compiled modules for other checkouts.
`APPORTION_OPTIMIZATION` replaces `-O2`: tests build their image with `-O0`. A release sets neither
variable.

Cython translates the Python sources. Where nothing was compiled, Python runs the sources themselves
(docs/contribute/adr/0011). The wheel contains sources and compiled modules.

Invariant: a compiled module returns the same results as its source. Services and tests refuse to
run a compiled module that is older than its source (`apportion.runtime.process.compilation`).
"""

import ast
import hashlib
import operator
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable
from functools import cache
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
    "apportion.core.ledger.rationale": (),
    "apportion.core.ledger.host_usage": (),
    "apportion.core.ledger.state": (),
    "apportion.core.placement.index.asks": ("AskColumns",),
    "apportion.core.placement.index.ask_loops": (),
    "apportion.core.placement.assign.devices": ("_Room", "_Search"),
    "apportion.core.placement.index.board_loops": (),
    "apportion.core.placement.classes": ("PlacementClass", "ClassCache"),
    "apportion.core.placement.index.device_kinds": ("DeviceKinds",),
    "apportion.core.placement.index.facts": ("FactColumns",),
    "apportion.core.placement.index.labels": (),
    "apportion.core.placement.engine": ("Engine",),
    "apportion.core.placement.feasibility.amounts": (),
    "apportion.core.placement.feasibility.evaluator": (),
    "apportion.core.placement.feasibility.nodes": (),
    "apportion.core.placement.finder": ("PlaceFinder",),
    "apportion.core.placement.gang_turn": ("GangTurn",),
    "apportion.core.placement.limits.limits": (),
    "apportion.core.placement.limits.holdings": (),
    "apportion.core.placement.limits.queues": (),
    "apportion.core.placement.affinity.neighbours": ("Neighbours",),
    "apportion.core.placement.index.packed": (),
    "apportion.core.placement.pricing.shape_histogram": ("ShapeHistogram",),
    "apportion.core.placement.pricing.loss_loops": (),
    "apportion.core.placement.pricing.price_table": ("PriceTable",),
    "apportion.core.placement.pricing.sizes": (),
    "apportion.core.placement.pricing.readings": ("Readings", "Tables", "Taken"),
    "apportion.core.placement.queueing.keys": (),
    "apportion.core.placement.refusals": ("Refusing",),
    "apportion.core.placement.queueing.queue": ("PendingQueue",),
    "apportion.core.placement.queueing.shape_queue": ("ShapeQueue",),
    "apportion.core.placement.queueing.hints": (),
    "apportion.core.placement.reservations": ("Reservations",),
    "apportion.core.placement.index.row_log": ("RowLog",),
    "apportion.core.placement.index.columns": ("RowOrder", "Columns"),
    "apportion.core.placement.index.row_loops": (),
    "apportion.core.placement.index.score_input": ("ScoreInput", "Scoreboard"),
    "apportion.core.placement.scores.devices": (),
    "apportion.core.placement.scores.nodes": (),
    "apportion.core.placement.scores.by_shape": ("Price",),
    "apportion.core.placement.queueing.waiting": ("Waiting",),
    "apportion.core.placement.waking": ("Unschedulable", "Waking"),
}
"""The compiled modules, each with its classes that become C structures. Such a class cannot get new
attributes, and its methods cannot be replaced.
"""
KEPT = os.environ.get("APPORTION_COMPILED", "")
"""The cache folder of compiled modules. A file's name is a digest of everything it depends on."""
KEPT_S = 30 * 24 * 3600
OPTIMIZATION = os.environ.get("APPORTION_OPTIMIZATION") or "-O2"
"""An option of the C compiler. `-O0` takes a fifth of the time of `-O2`."""
CACHES = ROOT / "attribute_caches.h"
SECTION = "/* #### Code section: {} ### */\n"
"""A line of Cython's C text at which a section begins."""
FLAGS = ("-g0", "-w", "-fno-plt", "-frecord-gcc-switches")  # the last lets a test read the others
DIMENSIONS_BELOW = 2  # of arrays that modules hand to one another, by value: all are flat
NO_COMPILER = """\
nothing is compiled: there is {missing}. Apportion still runs, but decides several times slower.
On Debian and Ubuntu: apt install gcc python3-dev"""


def source_of(module: str) -> Path:
    """Return the source file of one of our modules, relative to `services`."""
    path = Path(*module.split("."))
    return path / "__init__.py" if (SOURCES / path).is_dir() else path.with_suffix(".py")


def missing() -> str:
    """Return the name of the missing build tool, or "" if modules can be compiled."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"no C compiler ({compiler})"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "no Python.h"
    return ""


def compile_all() -> dict[Path, Path]:
    """Compile the modules. Return each compiled file by its target path relative to `services`.

    Only changed modules are compiled again. If a declaration changed, all modules are compiled,
    because Cython does not track all uses of another module's attributes."""
    from Cython.Build import cythonize  # noqa: PLC0415
    from Cython.Compiler import Options  # noqa: PLC0415
    from setuptools import Distribution, Extension  # noqa: PLC0415

    Options.buffer_max_dims = DIMENSIONS_BELOW
    here = Path.cwd()
    SCRATCH.mkdir(parents=True, exist_ok=True)
    _write(SCRATCH / CACHES.name, CACHES.read_text())
    declared_anew = [_copy(source_of(module), types) for module, types in MODULES.items()]
    os.chdir(SCRATCH)
    try:
        kept = _kept() if KEPT else {}
        extensions = [
            Extension(
                _full_name(module),
                [str(source_of(module))],
                depends=[CACHES.name],
                extra_compile_args=[OPTIMIZATION, *FLAGS, "-I."],
            )
            for module in MODULES
            if module not in kept or not kept[module].exists()
        ]
        jobs = os.cpu_count() or 1
        directives = {"language_level": 3, "annotation_typing": False, "nonecheck": True}
        made = cythonize(
            extensions,
            compiler_directives=directives,
            force=any(declared_anew),
            nthreads=jobs,
            quiet=True,
        )
        for extension in made:
            _include_caches(Path(extension.sources[0]))
        command: Any = Distribution({"ext_modules": made}).get_command_obj("build_ext")
        # setuptools looks at times only, so each optimization has folders of its own.
        command.build_lib, command.build_temp = f"lib{OPTIMIZATION}", f"objects{OPTIMIZATION}"
        command.parallel = jobs
        command.ensure_finalized()
        command.run()
        outputs = [SCRATCH / output for output in command.get_outputs()]
    finally:
        os.chdir(here)
    made_here = {output.relative_to(SCRATCH / f"lib{OPTIMIZATION}"): output for output in outputs}
    return made_here | _exchange(kept, made_here)


def _include_caches(file: Path) -> None:
    """Include `attribute_caches.h` before and after the module's own code, if it is not yet there.

    Raise RuntimeError if Cython has changed the form of its text."""
    text, include = file.read_text(), f'#include "{CACHES.name}"\n'
    if include in text:
        return
    for name in ("module_code", "utility_code_pragmas"):
        begin, found, rest = text.partition(SECTION.format(name))
        if not found:
            raise RuntimeError(f"{file} has no section {name}; adapt hatch_build.py to this Cython")
        text = f"{begin}{found}{include}{rest}"
    file.write_text(text)


def _kept() -> dict[str, Path]:
    """Return each module's file in the cache. The file's name is a digest of sources and tools."""
    from Cython import __version__ as cython  # noqa: PLC0415

    compiler = (sysconfig.get_config_var("CC") or "cc").split()
    version = subprocess.run([*compiler, "--version"], check=True, capture_output=True).stdout
    flags = sysconfig.get_config_vars("CC", "CFLAGS", "CCSHARED", "LDSHARED", "EXT_SUFFIX")
    tools = [cython, sys.version, str(flags), os.environ.get("CFLAGS", ""), OPTIMIZATION]
    texts = [
        Path(__file__).read_text(),
        CACHES.read_text(),
        *tools,
        version.decode(errors="replace"),
    ]
    sources = {module: SCRATCH / source_of(module) for module in MODULES}
    texts += [source.with_suffix(".pxd").read_text() for source in sources.values()]
    shared = hashlib.sha256("\0".join(texts).encode())
    keys = {}
    for module, source in sources.items():
        key = shared.copy()
        key.update(f"{module}\0{source.read_text()}".encode())
        keys[module] = Path(KEPT, key.hexdigest())
    return keys


def _exchange(kept: dict[str, Path], made: dict[Path, Path]) -> dict[Path, Path]:
    """Copy new modules (`made`) into the cache. Return the cached files of all other modules.

    Files that no build used for a month are deleted from the cache."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    found = {}
    for module, file in kept.items():
        place = source_of(module).with_suffix(suffix)
        if place in made:
            file.parent.mkdir(parents=True, exist_ok=True)
            draft = file.with_name(f"{file.name}.{os.getpid()}")
            shutil.copyfile(made[place], draft)
            draft.replace(file)  # two checkouts may compile at once
        else:
            os.utime(file)  # used today, so not dropped below
            found[place] = file
    for file in Path(KEPT).iterdir() if kept else ():
        if file.stat().st_mtime < time.time() - KEPT_S:
            file.unlink(missing_ok=True)
    return found


def _full_name(module: str) -> str:
    return ".".join(source_of(module).with_suffix("").parts)


def _copy(source: Path, types: Iterable[str]) -> bool:
    """Copy a source and its declarations to the scratch folder. Return True if declarations
    changed."""
    target = SCRATCH / source
    target.parent.mkdir(parents=True, exist_ok=True)
    for folder in target.relative_to(SCRATCH).parents[:-1]:
        (SCRATCH / folder / "__init__.py").touch()
    text = (SOURCES / source).read_text()
    _write(target, translatable(text))
    head = f"# arrays of fewer than {DIMENSIONS_BELOW} dimensions\ncimport cython"
    return _write(target.with_suffix(".pxd"), "\n".join([head, *declared(text, types)]))


def _write(file: Path, text: str) -> bool:
    """Write the file only if its text changes, so that unchanged modules are not compiled again."""
    changed = not file.exists() or file.read_text() != text
    if changed:
        file.write_text(text)
    return changed


CONTAINERS = {name: name for name in ("dict", "list", "set")}
NUMBERS = {
    "Int64": "long long",
    "Int64s": "long long[::1]",
    "Int32s": "int[::1]",
    "Int8s": "signed char[::1]",
    "UInt32s": "unsigned int[::1]",
    "UInt16s": "unsigned short[::1]",
    "UInt8s": "unsigned char[::1]",
}
"""Aliases of `int` and `memoryview` in `placement.index.packed`, with their C types."""
DEFERRED = (ast.Yield, ast.YieldFrom, ast.Await, ast.GeneratorExp, ast.Lambda, ast.FunctionDef)
"""Nodes that a function must not contain if C is to call it directly."""


def declared(source: str, types: Iterable[str]) -> Iterable[str]:
    """Yield Cython declarations for a module's functions, and for its classes and their attributes.

    All types come from annotations. An annotation counts if it names a class in `types`. The
    annotation of an attribute may also name a container type, such as dict."""
    tree = ast.parse(source)
    known = NUMBERS | {name: name for name in types}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            yield from _cimported(tree, node, known)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield from _signature(node, known)
        elif isinstance(node, ast.ClassDef) and node.name in types:
            yield f"cdef class {node.name}:"
            for name, kind in sorted(_attributes(node, known).items()):
                yield f"    cdef public {kind} {name}"
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and not method.name.startswith("__"):
                    yield from (f"    {line}" for line in _signature(method, known))
            yield "    pass"


def _cimported(tree: ast.Module, node: ast.ImportFrom, known: dict[str, str]) -> Iterable[str]:
    """Yield `cimport` lines for imported names that C can call or copy. Add imported types to
    `known`."""
    module = node.module or ""
    for name in (alias.name for alias in node.names):
        if name in MODULES.get(module, ()):
            known[name] = f"_{name}"
            yield f"from {module} cimport {name} as _{name}"
        elif name in _expressions(module):
            signature = _signature(_expressions(module)[name], NUMBERS)
            yield from (line.replace("cpdef ", "cdef ") for line in signature)
        elif name in _functions(module) or _only_calls(tree, name, _functions(f"{module}.{name}")):
            yield f"from {module} cimport {name}"


@cache
def _functions(module: str) -> frozenset[str]:
    """Return the functions of a module that other compiled modules can call directly from C."""
    if module not in MODULES:
        return frozenset()
    body = ast.parse((SOURCES / source_of(module)).read_text()).body
    functions = (node for node in body if isinstance(node, ast.FunctionDef))
    return frozenset(each.name for each in functions if any(_signature(each, {})))


@cache
def _expressions(module: str) -> dict[str, ast.FunctionDef]:
    """Return the functions of a module that compute numbers without loops or calls.

    Each module that imports such a function gets its own copy, which the C compiler can inline. A
    call into another extension would take three times as long as the function."""
    if module not in MODULES:
        return {}
    tree = ast.parse(with_constants((SOURCES / source_of(module)).read_text()))
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    deep = (ast.Call, ast.For, ast.While)
    return {
        each.name: each
        for each in functions
        if _of_numbers(each) and not any(isinstance(node, deep) for node in ast.walk(each))
    }


def _with_copies(source: str) -> str:
    """Append copies of imported expressions to the source, and return the result.

    The original lines keep their line numbers."""
    lines, copies = source.splitlines(keepends=True), ""
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ImportFrom):
            continue
        found = _expressions(node.module or "")
        copied = [each for each in node.names if each.name in found]
        if copied:
            copies += "".join(f"\n\n{ast.unparse(found[each.name])}\n" for each in copied)
            node.names = [each for each in node.names if each not in copied]
            end = node.end_lineno or node.lineno
            text = ast.unparse(node) if node.names else ""
            lines[node.lineno - 1 : end] = [text + "\n" * (end - node.lineno + 1)]
    return "".join(lines) + copies


def _of_numbers(function: ast.FunctionDef) -> bool:
    """Return True if all arguments and the result are C numbers."""
    kinds = [each.annotation for each in function.args.args] + [function.returns]
    return all(isinstance(kind, ast.Name) and kind.id in NUMBERS for kind in kinds)


def _only_calls(tree: ast.Module, module: str, functions: Iterable[str]) -> bool:
    """Return True if this code uses these functions of `module` only by calling them."""
    called = [id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    uses = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == module
        and node.attr in functions
    ]
    return bool(uses) and all(id(use) in called for use in uses)


def _signature(function: ast.FunctionDef, known: dict[str, str]) -> Iterable[str]:
    """Yield the lines that declare the function for C, or nothing if only Python can call it."""
    given = function.args
    inside = (each for each in ast.walk(function) if each is not function)
    if (
        function.decorator_list
        or given.kwonlyargs
        or given.vararg
        or given.kwarg
        or any(isinstance(each, DEFERRED) for each in inside)
    ):
        return
    plain = len(given.args) - len(given.defaults)
    arguments = [
        f"{_type(each.annotation, known)} {each.arg}".removeprefix("object ")
        + ("=*" if at >= plain else "")
        for at, each in enumerate(given.args)
    ]
    typed = [
        f'{each.target.id}="{_type(each.annotation, known)}"'
        for each in ast.walk(function)
        if isinstance(each, ast.AnnAssign)
        and isinstance(each.target, ast.Name)
        and _type(each.annotation, known) != "object"
    ]
    if typed:
        yield f"@cython.locals({', '.join(typed)})"
    answer = _type(function.returns, NUMBERS)
    failed = "" if answer == "object" else " except? -1"
    yield f"cpdef {answer} {function.name}({', '.join(arguments)}){failed}"


def translatable(source: str) -> str:
    """Return the source prepared for Cython: with constants and short arithmetic inlined."""
    return _with_copies(with_constants(source))


def with_constants(source: str) -> str:
    """Replace each `Final[Int64]` or `Final[int]` constant in a function by its value.

    Return the new source. Compiled code then uses the number, instead of looking up the name."""
    tree = ast.parse(source)
    constants = {**_imported(tree), **_constants(source)}
    lines = source.encode().splitlines(keepends=True)
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr))
    nowhere = {id(node) for text in texts for node in ast.walk(text)}  # of these ast knows no place
    found = {
        (node.lineno, node.col_offset, node.end_col_offset): constants[name]
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
        if (name := ast.unparse(node)) in constants
        and id(node) not in nowhere
        and node.lineno == node.end_lineno
    }
    for (line, begin, end), value in sorted(found.items(), reverse=True):
        text = lines[line - 1]
        lines[line - 1] = text[:begin] + f"({value})".encode() + text[end:]
    return b"".join(lines).decode()


def _imported(tree: ast.Module) -> dict[str, int]:
    """Return the constants that the module imports from our other modules, by their local names."""
    found: dict[str, int] = {}
    for node in tree.body:
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("apportion."):
            continue
        for alias in node.names:
            name, module = alias.asname or alias.name, f"{node.module}.{alias.name}"
            if (SOURCES / source_of(module)).exists():
                inside = _constants((SOURCES / source_of(module)).read_text())
                found |= {f"{name}.{each}": value for each, value in inside.items()}
            else:
                values = _constants((SOURCES / source_of(str(node.module))).read_text())
                found |= {name: values[alias.name]} if alias.name in values else {}
    return found


@cache
def _constants(source: str) -> dict[str, int]:
    """Return the `Final[Int64]` and `Final[int]` constants of a module, by name."""
    tree = ast.parse(source)
    found = _imported(tree)
    own: dict[str, int] = {}
    for node in tree.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)) if _is_constant(node):
                value = _whole_number(node.value, found | own)
                if value is not None:
                    own[name] = value
    return own


def _is_constant(node: ast.AnnAssign) -> bool:
    return ast.unparse(node.annotation) in {"Final[Int64]", "Final[int]"}


def _whole_number(expression: ast.expr | None, known: dict[str, int]) -> int | None:
    """Return the value of an expression of whole numbers and known constants, else None."""
    match expression:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return value
        case ast.Name() | ast.Attribute():
            return known.get(ast.unparse(expression))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = _whole_number(operand, known)
            return None if number is None else -number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            one, other = _whole_number(left, known), _whole_number(right, known)
            return None if one is None or other is None else OPERATORS[type(op)](one, other)
    return None


OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.LShift: operator.lshift,
    ast.BitOr: operator.or_,
}


def _attributes(class_: ast.ClassDef, known: dict[str, str]) -> dict[str, str]:
    """Return every attribute that a class's methods assign on `self`, with its Cython type."""
    found: dict[str, set[str]] = {}
    for method in class_.body:
        if isinstance(method, ast.FunctionDef):
            given = (*method.args.args, *method.args.kwonlyargs)
            arguments = {each.arg: each.annotation for each in given}
            for target, kind in _stores(method, arguments, known):
                for name in _own_names(target):
                    found.setdefault(name, set()).add(kind)
    kinds = {name: kinds - {"object"} for name, kinds in found.items()}
    return {name: one.pop() if len(one) == 1 else "object" for name, one in kinds.items()}


def _stores(
    method: ast.FunctionDef, arguments: dict[str, ast.expr | None], known: dict[str, str]
) -> Iterable[tuple[ast.expr, str]]:
    """Yield each target that the method assigns to, with its value's Cython type or `object`."""
    for node in ast.walk(method):
        match node:
            case ast.AnnAssign(target=target, annotation=annotation):
                yield target, _type(annotation, known | CONTAINERS)
            case ast.AugAssign(target=target):
                yield target, "object"
            case ast.Assign(targets=targets, value=ast.Call(func=ast.Name() as class_)):
                yield from ((target, _type(class_, known)) for target in targets)
            case ast.Assign(targets=targets, value=ast.Name(id=name)):
                kind = _type(arguments.get(name), known)
                yield from ((target, kind) for target in targets)
            case ast.Assign(targets=targets):
                yield from ((target, "object") for target in targets)


def _type(annotation: ast.expr | None, known: dict[str, str]) -> str:
    """Return Cython's name for the annotated type, or `object` if Cython has none."""
    match annotation:
        case ast.Name(id=name):
            return known.get(name, "object")
        case ast.Subscript(value=ast.Name() as container):
            return _type(container, known)
        case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(value=None)):
            return _type(left, known)
    return "object"


def _own_names(target: ast.expr) -> Iterable[str]:
    """Yield the names of the attributes of `self` that an assignment sets."""
    for node in ast.walk(target):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


class Compile(BuildHookInterface[Any]):
    """The build hook that adds compiled modules to the wheel and marks it as platform-specific."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the modules and add them to the wheel. hatchling calls this before it collects
        files."""
        if version == "editable":
            return
        if tool := missing():
            self.app.display_warning(NO_COMPILER.format(missing=tool))
            return
        for place, compiled in compile_all().items():
            build_data["force_include"][str(compiled)] = str(place)
        build_data["pure_python"], build_data["infer_tag"] = False, True


def main() -> None:
    """Compile in this checkout. Without a compiler, only delete previously compiled modules."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for earlier in SOURCES.rglob(f"*{suffix}"):  # of modules that have moved, too
        earlier.unlink()
    if tool := missing():
        print(NO_COMPILER.format(missing=tool), file=sys.stderr)
        return
    for place, compiled in compile_all().items():
        shutil.copy(compiled, SOURCES / place)  # made now, whenever its text was compiled


if __name__ == "__main__":
    main()
