"""Each function removes one of an agent's guards against containers that write false data."""

import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock


@contextlib.contextmanager
def clips_what_a_region_says() -> Iterator[None]:
    """Remove a guard, so that the agent believes any number in a container's region."""
    from apportion.agent.usage import account, uses  # noqa: PLC0415
    from apportion.core.grants import region  # noqa: PLC0415

    def first(value: int, _most: int) -> int:
        return value

    def unchecked(kind: type[Any], sums: Iterable[Any]) -> Iterator[Any]:
        for each in sums:
            fields = {name: getattr(each, name) for name in kind.__struct_fields__}
            yield kind(**{n: round(v) if isinstance(v, float) else v for n, v in fields.items()})

    with (
        mock.patch.object(region, "BYTES_MAX", 1 << 64),
        mock.patch.object(uses, "min", first, create=True),
        mock.patch.object(account, "_used", unchecked),
    ):
        yield


@contextlib.contextmanager
def removes_without_recursing() -> Iterator[None]:
    """Remove a guard, so that the agent removes a container's folder with `shutil.rmtree`, which
    recurses."""
    from apportion.agent.shares import regions  # noqa: PLC0415

    def recursing(folder: Path, _most: int) -> int:
        shutil.rmtree(folder)
        return 1

    with mock.patch.object(regions, "remove", recursing):
        yield


@contextlib.contextmanager
def reads_one_file_of_a_container() -> Iterator[None]:
    """Remove a guard, so that every `.cache` file in a container's folder counts as a region."""
    from apportion.agent.shares.regions import Regions, _pod  # noqa: PLC0415

    def every(self: Regions) -> Iterator[tuple[str, Path]]:
        for folder in sorted(self._folder.glob("*_*")):
            for path in folder.glob("*.cache"):
                yield _pod(folder), path

    with mock.patch.object(Regions, "each", every):
        yield


@contextlib.contextmanager
def takes_limits_from_the_ledger() -> Iterator[None]:
    """Let the agent keep the limits that a container has written into its own region."""
    from apportion.core.grants.region import Region  # noqa: PLC0415

    with mock.patch.object(Region, "hold", return_value=False):
        yield


@contextlib.contextmanager
def takes_rank_and_devices_from_the_ledger() -> Iterator[None]:
    """Let the agent trust the priority and devices that a container writes into its own region."""
    from apportion.agent.shares import regions  # noqa: PLC0415
    from apportion.core.grants.feedback import Contender  # noqa: PLC0415
    from apportion.core.grants.region import Region  # noqa: PLC0415

    def credulous(region: Region, namespace: str, *_: object) -> Contender:
        return Contender(region, namespace, region.devices, region.priority)

    with (
        mock.patch.object(Region, "hold", return_value=False),
        mock.patch.object(regions, "Contender", credulous),
    ):
        yield


AGENT_GUARDS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "clips what a region says": clips_what_a_region_says,
    "reads one file of a container": reads_one_file_of_a_container,
    "removes without recursing": removes_without_recursing,
    "takes limits from the ledger": takes_limits_from_the_ledger,
    "takes rank and devices from the ledger": takes_rank_and_devices_from_the_ledger,
}
"""Rows of `weakened.GUARDS`."""
