"""A folder of manifests as a source: a pod is requested as long as its file exists.

Invariants: a file is read only after it was unchanged for a while, so a partly written file is not
taken for complete. If a file or document cannot be read, its previous content stays in force until
the file is fixed or removed. An unreadable file does not affect other files."""

import asyncio
import errno
import hashlib
import logging
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from apportion.core.configuration import manifest_config
from apportion.core.workloads.kinds.drafts import OF_FOLDER, Manifest, PodDraft, of_folder
from apportion.core.workloads.reading import (
    is_other,
    others_in,
    passed_over_words,
    read_documents,
    with_named,
)
from apportion.runtime.files.manifests import (
    ALL_BYTES_MAX,
    FILES_MAX,
    SUFFIXES,
    Document,
    Problem,
    read_manifests_of,
)
from apportion.runtime.process.clock import Clock
from apportion.watcher.local.reconcile import DEFAULT, Observation, Source
from apportion_schemas import Configuration, PodGroupObserved

_log = logging.getLogger(__name__)
_Signature = tuple[int, int, int]  # inode, size, modification time in nanoseconds
UNREAD: _Signature = (0, 0, 0)
# it was just removed, or is a dangling link
NO_FILE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


@dataclass(slots=True, eq=False)
class _File:
    """A manifest file as last read."""

    signature: _Signature
    pods: dict[str, PodDraft] = field(default_factory=dict)
    groups: dict[str, PodGroupObserved] = field(default_factory=dict)
    problems: int = 0
    doubtful: bool = True  # True if a document was never readable


class ManifestFolder(Source):
    """A `Source` that reads the manifests of one folder.

    Watchers of the same files need the same `name`; otherwise, their names must differ."""

    def __init__(self, folder: Path, *, name: str, interval_s: float, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._name = name
        self._interval_s = interval_s
        self._files: dict[str, _File] = {}
        self._glimpsed: dict[str, tuple[_Signature, float]] = {}
        self._seen: set[str] = set()
        self._listed = False
        self._folder_problem = ""
        self._conflicts: frozenset[str] = frozenset()
        self._configuration = DEFAULT
        self._observation = Observation(whole=False)

    @property
    def problems(self) -> int:
        """Return the number of current problems with files, documents and pod names."""
        in_files = sum(file.problems for file in self._files.values())
        return in_files + len(self._conflicts) + bool(self._folder_problem)

    def uid(self, key: str, incarnation: int) -> str:
        """Return the uid of the pod's n-th incarnation (submission), counted from 1."""
        digest = hashlib.sha256(f"{self._name}\0{key}".encode()).hexdigest()
        return f"{OF_FOLDER}{digest[:24]}-{incarnation}"

    def incarnation(self, key: str, uid: str) -> int:
        """Return which submission of the pod has this uid, or 0 for a pod of another source."""
        number = uid.rpartition("-")[2]
        if not of_folder(uid) or not number.isdecimal():
            return 0
        return int(number) if self.uid(key, int(number)) == uid else 0

    async def observe(self, configuration: Configuration = DEFAULT) -> Observation:
        """Return the pods and gangs that the folder's files request now."""
        if not await asyncio.to_thread(self._look, configuration):
            return self._observation
        pods: dict[str, PodDraft] = {}
        groups: dict[str, PodGroupObserved] = {}
        owner: dict[str, str] = {}
        conflicts: set[str] = set()
        for path, file in sorted(self._files.items()):
            for key, draft in file.pods.items():
                if key in pods:
                    conflicts.add(f"{path}: pod {key} is already in {owner[key]}; rename one")
                else:
                    pods[key], owner[key] = draft, path
            for name, group in file.groups.items():
                if groups.setdefault(name, group) != group:
                    conflicts.add(f"{path}: gang {name} is declared twice, differently; keep one")
        for conflict in sorted(conflicts - self._conflicts):
            _log.error("%s", conflict)
        self._conflicts = frozenset(conflicts)
        self._seen |= pods.keys()
        read = self._glimpsed.keys() <= self._files.keys()
        whole = read and not any(file.doubtful for file in self._files.values())
        self._observation = Observation(pods=pods, groups=groups, seen=self._seen, whole=whole)
        return self._observation

    async def changed(self) -> None:
        """Wait for one interval, after which the files are checked again."""
        await asyncio.sleep(self._interval_s)

    def _look(self, configuration: Configuration) -> bool:
        if configuration != self._configuration:
            self._configuration = configuration
            for file in self._files.values():
                file.signature = UNREAD
        now = self._glimpse()
        if now is None:
            return False
        self._glimpsed = now
        gone = self._files.keys() - now.keys()
        for path in gone:
            del self._files[path]
        moved = bool(gone) or not self._listed
        self._listed = True
        now_s, wall_s = self._clock.monotonic(), self._clock.now().timestamp()
        for path, (signature, since_s) in now.items():
            known = self._files.get(path)
            if known is not None and known.signature == signature:
                continue
            moved = True
            if max(now_s - since_s, wall_s - signature[2] / 1e9) >= self._interval_s:
                self._files[path] = _read(path, signature, known, configuration)
        return moved

    def _glimpse(self) -> dict[str, tuple[_Signature, float]] | None:
        found: dict[str, tuple[_Signature, float]] = {}
        problem = ""
        now_s = self._clock.monotonic()
        try:
            for entry in sorted(self._folder.iterdir()):
                if entry.suffix not in SUFFIXES or entry.name.startswith("."):
                    continue
                signature = _signature(entry)
                if signature is not None:
                    before, since_s = self._glimpsed.get(str(entry), (None, now_s))
                    found[str(entry)] = (signature, since_s if signature == before else now_s)
        except OSError as error:
            problem = f"{self._folder}: cannot read it ({error.strerror}); check its permissions"
        size_bytes = sum(signature[1] for signature, _ in found.values())
        if size_bytes > ALL_BYTES_MAX:
            problem = (
                f"{self._folder}: {size_bytes >> 20} MiB exceed {ALL_BYTES_MAX >> 20} MiB; split it"
            )
        if len(found) > FILES_MAX:
            problem = f"{self._folder}: {len(found)} manifests; split it, the limit is {FILES_MAX}"
        if problem and problem != self._folder_problem:
            _log.error("%s. Using its previous manifests", problem)
        self._folder_problem = problem
        return None if problem else found


def _signature(path: Path) -> _Signature | None:
    try:
        found = path.stat()
    except OSError as error:
        if error.errno in NO_FILE:
            return None
        raise
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _read(
    path: str, signature: _Signature, before: _File | None, configuration: Configuration
) -> _File:
    file = _File(signature)
    for found in _manifests(path, configuration):
        if isinstance(found, Problem):
            file.problems += 1
            _log.error("%s", found)
            continue
        file.groups |= {group.group: group for group in found.groups}
        for draft in found.pods:
            if file.pods.setdefault(f"{draft.namespace}/{draft.name}", draft) is not draft:
                file.problems += 1
                _log.error("%s: duplicate pod %s/%s", path, draft.namespace, draft.name)
    if not file.problems:
        file.doubtful = False
    elif before is not None:
        file.doubtful = before.doubtful
        file.pods = before.pods | file.pods
        file.groups = before.groups | file.groups
    return file


def _manifests(path: str, configuration: Configuration) -> Iterator[Manifest | Problem]:
    found = list(read_manifests_of(Path(path).parent, Path(path)))
    contents = [each.content for each in found if isinstance(each, Document)]
    passed_over = [name for content in contents for name in others_in(content)]
    if passed_over:
        _log.info("%s: %s", path, passed_over_words(passed_over))
    config = with_named(manifest_config(configuration), contents)
    for document in found:
        if not isinstance(document, Document):
            yield document
            continue
        for outcome in read_documents([document.content], config, leaves=is_other):
            if outcome.manifest is not None:
                yield outcome.manifest
            if outcome.error is not None:
                yield document.problem(outcome.error)
