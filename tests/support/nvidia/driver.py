"""Control a fake NVIDIA driver from a test.

    driver = FakeDriver(tmp_path, "2xA100-40GB:mig+1xT4")
    with driver.in_process():              # nvidia-ml-py in this process sees its GPUs
        driver.xid(0, 79)
    subprocess.run([driver.probe, "alloc:600"], env=os.environ | driver.environment)

Every process with `environment` sees the same GPUs. Invariant: a driver's state is one file in the
given folder, so several drivers can exist at once. GPUs are identified by their index from 0."""

from __future__ import annotations

import ctypes
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tests.support.nvidia.build import built
from tests.support.nvidia.loading import using
from tests.support.nvidia.models import MIG_NONE, Card, cards_of

STATE_VARIABLE = "APPORTION_FAKE_NVIDIA"
MIB = 1 << 20
DOUBLE_BIT_ECC = 2
"""`nvmlEventTypeDoubleBitEccError`."""
_LINKS, _PROFILES, _STARTS = 18, 8, 8
_UNSUPPORTED, _SUPPORTED, _PREDATED = 0, 1, 2
Kind = Literal["compute", "graphics", "mps"]
"""How a process uses a GPU. The driver has one list of processes for each kind."""
_KINDS: dict[Kind, int] = {"compute": 1, "graphics": 2, "mps": 4}
_LINK_NONE, _LINK_DOWN, _LINK_CARD = 0, 1, 3


class _Profile(ctypes.Structure):
    """The `struct profile` of state.h, for ctypes."""

    _fields_ = [
        ("name", ctypes.c_char * 32),
        ("kind", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("slices", ctypes.c_uint32),
        ("span", ctypes.c_uint32),
        ("memory_mib", ctypes.c_uint32),
        ("multiprocessors", ctypes.c_uint32),
        ("at_most", ctypes.c_uint32),
        ("start_count", ctypes.c_uint32),
        ("starts", ctypes.c_uint32 * _STARTS),
    ]


class _Spec(ctypes.Structure):
    """The `struct card_spec` of state.h, for ctypes."""

    _fields_ = [
        ("name", ctypes.c_char * 64),
        ("uuid", ctypes.c_char * 48),
        ("memory_mib", ctypes.c_uint64),
        ("bus", ctypes.c_uint32),
        ("numa", ctypes.c_uint32),
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("multiprocessors", ctypes.c_uint32),
        ("mig", ctypes.c_uint32),
        ("switch_links", ctypes.c_uint32),
        ("profile_count", ctypes.c_uint32),
        ("profiles", _Profile * _PROFILES),
    ]


@cache
def _library() -> Any:
    """Load libplant.so, and declare the argument types of its functions."""
    library = ctypes.CDLL(str(built() / "libplant.so"))
    state, number, wide = ctypes.c_void_p, ctypes.c_uint, ctypes.c_ulonglong
    library.fake_create.restype = state
    library.fake_create.argtypes = [ctypes.c_char_p]
    library.fake_add_card.argtypes = [state, ctypes.POINTER(_Spec)]
    library.fake_set.argtypes = [state, number, ctypes.c_char_p, wide]
    library.fake_link.argtypes = [state, number, number, number]
    library.fake_event.argtypes = [state, number, wide, wide, number, number]
    library.fake_xid.argtypes = [state, number, wide, number, number]
    library.fake_process.argtypes = [state, *[number] * 4, wide, number, number, ctypes.c_char_p]
    library.fake_costs.argtypes = [state, wide, wide]
    library.fake_limits_supported.argtypes = [state, number, ctypes.c_char_p]
    for name in ("fake_fall_off", "fake_come_back", "fake_end_process"):
        getattr(library, name).argtypes = [state, number]
    for name in ("fake_close", "fake_unload", "fake_load", "fake_event_sets", "fake_clients"):
        getattr(library, name).argtypes = [state]
    if library.fake_spec_size() != ctypes.sizeof(_Spec):
        raise AssertionError("driver.py and state.h differ on struct card_spec")
    return library


class FakeDriver:
    """One fake driver and its GPUs. The module's docstring has an example."""

    def __init__(self, folder: Path, cards: str = "1xA100-40GB", *, host: str = "n1") -> None:
        """Create the GPUs that `cards` lists, as in `2xA100-40GB:mig+1xT4`.

        Their ids are derived from `host` and their index."""
        self._library = _library()
        self._path = folder / f"nvidia-{uuid.uuid4().hex}.state"
        self._state = self._library.fake_create(str(self._path).encode())
        if not self._state:
            raise OSError(f"{self._path} could not be made")
        self.probe = built() / "probe"
        self.mps_control = built() / "nvidia-cuda-mps-control"
        self.ids: list[str] = []
        for index, card in enumerate(cards_of(cards)):
            self.ids.append(f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'{host}/{index}')}")
            self._do("add_card", ctypes.byref(_spec(card, index, self.ids[-1])))

    def close(self) -> None:
        """Delete the state file. Processes that already use it can continue."""
        self._library.fake_close(self._state)
        self._path.unlink()

    @property
    def path(self) -> Path:
        """Return the state file, through which processes share the driver."""
        return self._path

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that make a child process use this driver."""
        return {
            STATE_VARIABLE: str(self._path),
            "LD_LIBRARY_PATH": str(built()),
            "PATH": f"{built()}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        }

    def in_process(self) -> AbstractContextManager[None]:
        """Make nvidia-ml-py in this process use this driver, until the block ends."""
        return using(self._path)

    # -------------------------------------------------------------- faults

    def xid(self, card: int, number: int, *, instance: int = 0, compute: int = 0) -> None:
        """Report this XID error for the GPU, or for the MIG instance with these ids."""
        self._do("xid", card, number, instance, compute)

    def ecc(self, card: int, *, corrected: int = 0, uncorrected: int = 0) -> None:
        """Set the counts of memory errors; each argument is the new total."""
        self._set(card, ecc_corrected=corrected, ecc_uncorrected=uncorrected)
        if uncorrected:
            self._do("event", card, DOUBLE_BIT_ECC, uncorrected, 0, 0)

    def remap_rows(
        self, card: int, *, corrected: int = 0, uncorrected: int = 0,
        pending: bool = False, failed: bool = False,
    ) -> None:  # fmt: skip
        """Set the counts of remapped memory rows, and whether a remap is pending or has failed."""
        self._set(
            card,
            rows_corrected=corrected,
            rows_uncorrected=uncorrected,
            rows_pending=int(pending),
            rows_failed=int(failed),
        )

    def recovery_action(self, card: int, action: int) -> None:
        """Set the recovery action that NVML recommends for the GPU (NVML_GPU_RECOVERY_ACTION_*).

        0 means that no action is needed."""
        self._set(card, recovery_action=action)

    def fabric(self, card: int, state: int, status: int = 0) -> None:
        """Set the state and the error of the GPU's registration with the NVLink fabric
        (NVML_GPU_FABRIC_STATE_*)."""
        self._set(card, fabric_state=state, fabric_status=status)

    def fall_off(self, card: int) -> None:
        """Disconnect the GPU from the bus: every call about it returns GPU_IS_LOST."""
        self._do("fall_off", card)

    def hang(self, card: int) -> None:
        """Block all calls about the GPU, including lookups by UUID, until `let_go`."""
        self._set(card, hung=1)

    def let_go(self, card: int) -> None:
        """Undo `hang`: calls about the GPU return again, including pending calls."""
        self._set(card, hung=0)

    def come_back(self, card: int) -> None:
        """Reconnect the GPU to the bus, without its previous processes and instances."""
        self._do("come_back", card)

    def stop(self) -> None:
        """Unload the driver: calls return DRIVER_NOT_LOADED, and processes and instances end."""
        self._library.fake_unload(self._state)

    def start(self) -> None:
        """Load the driver again: calls return UNINITIALIZED until NVML is initialised again.

        GPUs that have fallen off the bus are no longer listed."""
        self._library.fake_load(self._state)

    def restart(self) -> None:
        """Unload and load the driver, faster than any poll could notice."""
        self.stop()
        self.start()

    # -------------------------------------------------------------- what the GPUs are

    def mig(self, card: int, *, on: bool, pending: bool | None = None) -> None:
        """Set the GPU's MIG mode; `pending` is the mode after its next reset."""
        self._set(card, mig=int(on), mig_pending=int(on if pending is None else pending))

    def unprivileged(self, card: int) -> None:
        """Make NVML treat its clients as if they had no CAP_SYS_ADMIN.

        For MIG, such clients can read only the GPU's profiles."""
        self._set(card, unprivileged=1)

    def lacks(
        self,
        card: int,
        what: Literal["ecc", "events", "fabric", "rows"],
        *,
        driver_too: bool = False,
    ) -> None:
        """Make NVML return NOT_SUPPORTED for this feature of the GPU.

        With `driver_too`, NVML returns FUNCTION_NOT_FOUND instead, as an old driver does."""
        self._set(card, **{f"{what}_supported": _PREDATED if driver_too else _UNSUPPORTED})

    def link(self, card: int, *peers: int | None) -> None:
        """Connect the GPU's NVLinks, in order, to the GPUs `peers`; None is a link that is down.

        Call this method for both ends of a link."""
        for number in range(_LINKS):
            leads_to = _LINK_NONE
            if number < len(peers):
                peer = peers[number]
                leads_to = _LINK_DOWN if peer is None else _LINK_CARD + peer
            self._do("link", card, number, leads_to)

    def compute_mode(self, card: int, mode: int) -> None:
        """Set the GPU's compute mode (NVML_COMPUTEMODE_*).

        0 is shared, 2 is prohibited, and 3 allows one process."""
        self._set(card, compute_mode=mode)

    def memory_limits(self, cgroups: Path) -> None:
        """Support memory limits by cgroup from now on. `cgroups` is the mount point of the cgroup
        file system.

        Before this call, NVML returns NOT_SUPPORTED."""
        self._library.fake_limits_supported(self._state, _SUPPORTED, str(cgroups).encode())

    def no_memory_limits(self, *, driver_too: bool = False) -> None:
        """Make NVML return NOT_SUPPORTED for memory limits.

        With `driver_too`, NVML returns FUNCTION_NOT_FOUND instead, as an older driver does."""
        lacking = _PREDATED if driver_too else _UNSUPPORTED
        self._library.fake_limits_supported(self._state, lacking, b"")

    def costs(self, *, context_mib: int = 300, kernel_us: int = 100) -> None:
        """Set how much GPU memory a context uses, and how long a kernel runs."""
        self._library.fake_costs(self._state, context_mib * MIB, kernel_us)

    # -------------------------------------------------------------- processes on GPUs

    def process(
        self, card: int, pid: int, mib: int, sm_percent: int = 0, *,
        kinds: Sequence[Kind] = ("compute",), instance: int = 0, compute: int = 0, cgroup: str = "",
    ) -> None:  # fmt: skip
        """Add a process with this id to the GPU, or to the MIG instance with these ids.

        The driver lists the process under each of these `kinds`. No real process needs to exist."""
        self._do(
            "process",
            *(card, pid, instance, compute, mib * MIB, sm_percent),
            *(sum(_KINDS[kind] for kind in set(kinds)), cgroup.encode()),
        )

    def end_process(self, pid: int) -> None:
        """Remove from all GPUs a process that `process` added."""
        self._do("end_process", pid)

    def utilisation(self, card: int, sm_percent: int, memory_percent: int = 0) -> None:
        """Set the utilisation of the whole GPU, independent of its processes."""
        self._set(card, sm_percent=sm_percent, memory_percent=memory_percent)

    # -------------------------------------------------------------- what clients hold

    @property
    def event_sets(self) -> int:
        """Return the number of NVML event sets that were created and still exist."""
        return int(self._library.fake_event_sets(self._state))

    @property
    def clients(self) -> int:
        """Return the number of NVML initialisations that were not followed by a shutdown."""
        return int(self._library.fake_clients(self._state))

    # -------------------------------------------------------------- inside

    def _set(self, card: int, **numbers: int) -> None:
        for name, value in numbers.items():
            self._do("set", card, name.encode(), value)

    def _do(self, what: str, *arguments: Any) -> None:
        if getattr(self._library, f"fake_{what}")(self._state, *arguments):
            raise ValueError(f"the fake driver cannot: {what} {arguments}")


@contextmanager
def fake_driver(folder: Path, cards: str = "1xA100-40GB") -> Iterator[FakeDriver]:
    """Yield a driver that nvidia-ml-py in this process uses, and close it afterwards."""
    driver = FakeDriver(folder, cards)
    try:
        with driver.in_process():
            yield driver
    finally:
        driver.close()


def _spec(card: Card, index: int, name: str) -> _Spec:
    """Return the C structure of a GPU. GPUs are spread evenly over four NUMA nodes."""
    model = card.model
    if card.mig and not model.profiles:
        raise ValueError(f"{model.name} has no MIG")
    spec = _Spec(
        name=model.name.encode(),
        uuid=name.encode(),
        memory_mib=model.memory_mib,
        bus=0x10 + index,
        numa=index // 4,
        major=model.capability[0],
        minor=model.capability[1],
        multiprocessors=model.multiprocessors,
        mig=int(card.mig) if model.profiles else MIG_NONE,
        switch_links=model.switch_links,
        profile_count=len(model.profiles),
    )
    for place, profile in enumerate(model.profiles):
        *numbers, starts = profile[1:]
        padded = (ctypes.c_uint32 * _STARTS)(*starts)
        spec.profiles[place] = _Profile(profile.name.encode(), *numbers, len(starts), padded)
    return spec
