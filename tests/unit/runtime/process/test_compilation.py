"""Tests of the hot path, the modules that are compiled with Cython. Either all of these modules are
compiled or none is. A compiled module is never older than its source."""

import gc
import importlib.util
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from msgspec import Struct

import hatch_build
from apportion.core.placement.index import packed
from apportion.runtime.process.compilation import SUFFIX, compiled, outdated
from tests.support.golden import Golden
from tests.tidy.tree import ROOT

REQUIRED = "APPORTION_REQUIRE_COMPILED"


def test_all_of_the_hot_path_is_compiled_or_none() -> None:
    """Either all modules of the hot path are compiled or none is. If compilation is required, all
    are."""
    places = [hatch_build.SOURCES / hatch_build.source_of(each) for each in hatch_build.MODULES]
    wanted = sorted(place.with_suffix(SUFFIX) for place in places)
    assert compiled() == wanted or (not compiled() and REQUIRED not in os.environ)


@pytest.mark.parametrize("module", hatch_build.MODULES)
def test_what_is_to_be_compiled_is_there(module: str) -> None:
    """Each module that is listed for compilation exists, and so do its listed classes."""
    types = hatch_build.MODULES[module]
    source = (hatch_build.SOURCES / hatch_build.source_of(module)).read_text()
    declared = "\n".join(hatch_build.declared(source, types)).splitlines()
    assert sorted(line for line in declared if line.startswith("cdef class")) == [
        f"cdef class {name}:" for name in sorted(types)
    ]


@pytest.mark.skipif(bool(hatch_build.missing()), reason="nothing can be compiled here")
@pytest.mark.timeout(300)
def test_a_checkout_uses_modules_that_another_one_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another checkout has compiled modules from the same source with the same options, a
    checkout reuses these modules."""
    small = "apportion.core.devices.shares"
    monkeypatch.setattr(hatch_build, "MODULES", {small: ()})
    monkeypatch.setattr(hatch_build, "KEPT", str(tmp_path / "kept"))
    made = []
    for checkout, optimization in (("first", "-O0"), ("second", "-O0"), ("second", "-O1")):
        monkeypatch.setattr(hatch_build, "SCRATCH", tmp_path / checkout)
        monkeypatch.setattr(hatch_build, "OPTIMIZATION", optimization)
        [file] = hatch_build.compile_all().values()
        made.append(file)
    assert [file.relative_to(tmp_path).parts[0] for file in made] == ["first", "kept", "second"]
    assert made[0].read_bytes() == made[1].read_bytes()
    assert [b" -O1 " in file.read_bytes() for file in made] == [False, False, True]


class _Box(Struct):
    size: int

    def grown(self, by: int) -> int:
        return self.size + by


class _Slots:
    __slots__ = ("size",)


class _Free:
    def __init__(self) -> None:
        self.size = 7

    def grown(self, by: int) -> int:
        return -by


class _Pair(NamedTuple):
    first: int
    size: int


class _Fixed:
    __slots__ = ()
    size = 4


class _Computed(Struct, frozen=True):
    half: int

    @property
    def size(self) -> int:
        return 2 * self.half


_BOXES = """
def size(box):
    return box.size

def resize(box, size):
    box.size = size

def grown(box, by):
    return box.grown(by)

class Row:
    def __init__(self, size: list):
        self.size: list = size
"""


@pytest.fixture
def boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A compiled module of `_BOXES`."""
    if hatch_build.missing():
        pytest.skip("nothing can be compiled here")
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "boxes.py").write_text(_BOXES)
    for name, value in (("SOURCES", "sources"), ("SCRATCH", "scratch")):
        monkeypatch.setattr(hatch_build, name, tmp_path / value)
    modules = {"boxes": ("Row",)}
    for name, other in (("MODULES", modules), ("KEPT", ""), ("OPTIMIZATION", "-O1")):
        monkeypatch.setattr(hatch_build, name, other)
    [file] = hatch_build.compile_all().values()
    spec = importlib.util.spec_from_file_location("boxes", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.timeout(300)
def test_a_compiled_module_finds_attributes_of_every_kind(
    boxes: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiled module gets and sets the same attributes as its source, wherever they are: in a
    slot, in a named tuple, in a compiled class, computed by a property, or in the class."""
    row = boxes.Row([1])
    kinds: list[tuple[Any, Any]] = [
        (_Box(2), 2), (_Pair(1, 3), 3), (_Fixed(), 4), (_Computed(5), 10), (row, [1]),
    ]  # fmt: skip
    for each, expected in kinds:
        assert [boxes.size(each) for _ in range(3)] == [expected] * 3
    assert [boxes.size(each) for each, _ in kinds] == [expected for _, expected in kinds]
    monkeypatch.setattr(_Fixed, "size", 6)
    monkeypatch.setattr(_Computed, "size", property(lambda self: self.half))
    assert [boxes.size(kinds[at][0]) for at in (2, 2, 3, 3)] == [6, 6, 5, 5]

    box, free, held = _Box(2), _Free(), [7]
    for each in (box, box, free, row, row):
        boxes.resize(each, held)
        assert each.size is held
    assert gc.is_tracked(box)
    for each in (_Computed(5), _Pair(1, 3), _Fixed()):
        with pytest.raises(AttributeError):
            boxes.resize(each, 1)


@pytest.mark.timeout(300)
def test_a_compiled_module_notices_changes_of_a_class(
    boxes: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiled module finds the same attributes and methods as its source, also at a place where
    it found others before: of another class, or of a class that has changed since."""

    class Wide(_Box):
        def grown(self, by: int) -> int:
            return self.size * by

    box, free = _Box(2), _Free()
    for _ in range(3):
        assert [boxes.size(each) for each in (box, box, Wide(3), free)] == [2, 2, 3, 7]
        assert [boxes.grown(each, 4) for each in (box, box, Wide(3), free)] == [6, 6, 12, -4]
    free.grown = lambda by: by  # type: ignore[method-assign]
    monkeypatch.setattr(_Box, "grown", lambda self, by: by - self.size)
    assert [boxes.grown(each, 4) for each in (free, box, box, Wide(3))] == [4, 2, 2, 12]
    boxes.resize(box, 2)
    monkeypatch.setattr(_Box, "size", property(lambda _: 9))
    assert [boxes.size(each) for each in (box, Wide(3), box)] == [9, 9, 9]
    with pytest.raises(AttributeError):
        boxes.resize(box, 1)
    slots = _Slots()
    slots.size = 5  # type: ignore[attr-defined]
    assert [boxes.size(slots), boxes.size(slots)] == [5, 5]
    del slots.size  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="size"):
        boxes.size(slots)


def test_an_image_is_optimised_unless_a_test_builds_it() -> None:
    """Neither the Dockerfile nor the Makefile sets an optimization level, since that could make
    releases slower."""
    for text in ("deploy/docker/Dockerfile", "Makefile"):
        set_there = re.findall(r"APPORTION_OPTIMIZATION\s*\S?=", (ROOT / text).read_text())
        assert set_there == [], text


def test_an_expression_is_copied_to_whoever_calls_it(golden: Golden) -> None:
    """The compiler copies a small function into its callers, so that C can inline it. Line numbers
    stay the same."""
    source = """
from apportion.core.placement.index.packed import (
    lacking,
    mean_load,
)


def fits(free, need):
    return not lacking(free, need)
"""
    copied = hatch_build.translatable(source)
    assert copied.splitlines()[7:9] == source.splitlines()[7:9]
    assert "import mean_load" in copied
    space: dict[str, Any] = {"Int64": int}
    exec(copied, space)  # noqa: S102 - our own text
    assert space["fits"](packed.GUARDS | 5, 5)
    assert not space["fits"](packed.GUARDS | 5, 6)
    golden({"declared": "\n".join(hatch_build.declared(source, ()))})


def test_every_attribute_and_method_of_a_fixed_class_is_declared(golden: Golden) -> None:
    """If a class becomes a C type, the compiler declares all its methods and attributes."""
    source = """
class Row:
    kind = 1

    def __init__(self, first: Row | None):
        self.names, self.count = [], 0
        self.first = first
        self.left: dict[str, int] = {}
        other.left = 2

    def add(self, row: Row, often=1):
        self.count += 1
        self.left[row] = row
        self.last: int | None = self.names[0]

    def every(self):
        yield self.names

    @property
    def size(self): ...

    def among(self, *, rows): ...
"""
    golden({"declared": "\n".join(hatch_build.declared(source, ("Row",)))})


def test_functions_of_listed_modules_are_called_directly(golden: Golden) -> None:
    """Compiled code calls functions of the listed modules as C functions. A function that is also
    passed as a value is an exception."""
    source = """
from apportion.core.ledger.host_usage import charge_host
from apportion.core.placement.index import packed
from apportion.core.placement.index.columns import Columns, Rows
from apportion.core.placement.feasibility import amounts

CHECKS = (amounts.health,)

def take(columns: Columns, rows: Rows):
    charge_host(packed.amounts(1, 2, 3), columns, rows)
"""
    golden({"declared": "\n".join(hatch_build.declared(source, ()))})


def test_what_is_called_a_number_is_one(golden: Golden) -> None:
    """Compiled code uses C integers for values annotated as Int64, and memory views for Int64s
    arrays."""
    source = """
class Row:
    def __init__(self, width: Int64):
        self.width = width
        self.cells: Int64s = self.made.data

    def at(self, place: Int64, name: int) -> Int64:
        begin: Int64 = self.width * place
        return begin
"""
    golden({"declared": "\n".join(hatch_build.declared(source, ("Row",)))})


def test_loops_are_called_directly_with_their_arrays_as_values(golden: Golden) -> None:
    """Compiled code calls the functions of loop modules (named `*_loops`) as C functions, and
    passes them arrays as C values."""
    source = """
from apportion.core.placement.index.board_loops import write
from apportion.core.placement.index.score_input import ScoreInput

def fill(rows: Int64s, marks: UInt8s, columns) -> Int64:
    look: ScoreInput = ScoreInput(columns)
    return len(rows)
"""
    golden({"declared": "\n".join(hatch_build.declared(source, ()))})


def test_only_modules_of_loops_do_not_look_where_their_arrays_end() -> None:
    """Only loop modules (named `*_loops`) are compiled without checks of array bounds."""
    unchecked = {
        module
        for module in hatch_build.MODULES
        if "boundscheck" in (hatch_build.SOURCES / hatch_build.source_of(module)).read_text()
    }
    assert unchecked == {each for each in hatch_build.MODULES if each.endswith("_loops")}


def test_constants_that_are_called_numbers_are_written_out() -> None:
    """The compiler replaces constants that are declared as numbers by their values, also in other
    modules. Line numbers stay the same."""
    source = """
from apportion.core.placement.index import packed
from apportion.core.placement.index.packed import MEMORY_BITS as BITS, Int64

HERE: Final[Int64] = 1 << BITS
ROWS_MAX: Final = 5

def sized(rows: Int64):
    if rows > ROWS_MAX:
        raise ValueError(f"{rows} are more than {HERE}")
    return rows + HERE - packed.SLOTS_BITS
"""
    written = hatch_build.with_constants(source).splitlines()
    changed = [line for line in written if line not in source.splitlines()]
    assert changed == ["    return rows + (67108864) - (8)"]
    assert len(written) == len(source.splitlines())


def test_what_was_compiled_before_is_not_outdated_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a source file has a newer time but the same content, a build marks its compiled module as
    up to date."""
    scratch, sources = tmp_path / "scratch", tmp_path / "sources"
    scratch.mkdir()
    sources.mkdir()
    made = scratch / f"fold{SUFFIX}"
    made.touch()
    os.utime(made, (1000, 1000))
    (sources / "fold.py").touch()
    monkeypatch.setattr(hatch_build, "SOURCES", sources)
    monkeypatch.setattr(hatch_build, "MODULES", {"fold": ()})
    monkeypatch.setattr(hatch_build, "missing", lambda: "")
    monkeypatch.setattr(hatch_build, "compile_all", lambda: {Path(made.name): made})
    hatch_build.main()
    assert (compiled(sources), outdated(sources)) == ([sources / made.name], [])


def test_an_outdated_module_is_found(tmp_path: Path) -> None:
    """A compiled module is outdated if its source is newer than the module or is gone."""
    source, made = tmp_path / "fold.py", tmp_path / f"fold{SUFFIX}"
    source.touch()
    made.touch()
    os.utime(source, (1000, 1000))
    os.utime(made, (2000, 2000))
    assert (compiled(tmp_path), outdated(tmp_path)) == ([made], [])
    os.utime(source, (3000, 3000))
    assert outdated(tmp_path) == [made]
    source.unlink()
    assert outdated(tmp_path) == [made]


def test_what_a_wheel_brought_is_not_outdated(tmp_path: Path) -> None:
    """A compiled module from a wheel is never outdated, whatever the times of its files."""
    package = tmp_path / "apportion"
    (tmp_path / "apportion-0.1.0.dist-info").mkdir()
    package.mkdir()
    made, source = package / f"fold{SUFFIX}", package / "fold.py"
    for at, file in enumerate((made, source)):
        file.touch()
        os.utime(file, (1000 + at, 1000 + at))
    assert (compiled(package), outdated(package)) == ([made], [])
