"""Seeds that once found a bug and must pass now.

After other changes, a seed may no longer reach its bug. Where that matters, the entry names a
planted fault or a test for the bug."""

from __future__ import annotations

from typing import NamedTuple


class Regression(NamedTuple):
    """A seed, the bug that it found, and the test that would find the bug again."""

    seed: int
    found: str
    held_by: str
    cluster: bool = False  # Whether the run has a cluster.


REGRESSIONS = (
    Regression(
        37,
        "pods that fitted nowhere beside what a decision assumed were not asked after the ledger "
        "had refused that decision, and starved until something else was freed",
        "planted: unschedulable for what never came",
    ),
    Regression(
        0,
        "a binder recorded that its bind had failed after another binder had bound the pod",
        "planted: binds what is gone",
    ),
    Regression(
        89,
        "a refused gang that one more member completed waited for that member's turn, so pods "
        "submitted after its head were placed before it",
        "test_simulation: a gang that one more member completes goes before who came between",
    ),
    Regression(
        3255,
        "a pod of two containers was refused because the first took the only device that had room "
        "for both, in the order of that moment; when the order changed, nothing asked again",
        "test_assign: whether a pod fits does not depend on the order of devices",
    ),
    Regression(3056, "the same, with MIG cards in the cluster", "test_assign"),
    Regression(
        68,
        "a report of a device's health that was on its way when its agent died arrived after the "
        "next life had found the device as the ledger had it; the agent took it for another "
        "agent's, and pods were placed on a failed device and refused there for ever",
        "test_agent: a report of an earlier life is answered",
    ),
    Regression(
        0,
        "a watcher that began with a snapshot knew no revisions of what it fences, and the "
        "id of a node's first observation then passed for that of its next one, so that a node's "
        "change was never told",
        "planted: spent ids believed",
        cluster=True,
    ),
    Regression(
        9,
        "a watcher tried for ever, without a pause, to let go of a pod whose rejection a trimmed "
        "ledger had dropped",
        "test_simulation: a run that does not settle fails",
        cluster=True,
    ),
    Regression(
        54,
        "an answer about one pod that came after the watch had told of its end put it back into a "
        "watcher's view for good, so that two watchers contradicted one another for ever and what "
        "it had held stayed closed",
        "test_simulation: a run that does not settle fails",
        cluster=True,
    ),
    Regression(
        113,
        "a watcher compared pods as they were by then with the ledger as it had been when the "
        "change was taken, and adopted one whose placement it had not folded yet",
        "planted: compares what moved on",
        cluster=True,
    ),
    Regression(
        130,
        "a watcher that had not heard yet of a pod's end adopted it when another watcher had let "
        "go of it",
        "planted: taken back unasked",
        cluster=True,
    ),
    Regression(
        2174,
        "a scheduler tried for ever to void the place of a pod that had been let go of and taken "
        "back: the id was spent in the pod's earlier life",
        "test_sealing and test_adoption: ids and attempts after an adoption",
        cluster=True,
    ),
    Regression(
        3014,
        "a watcher behind with nodes and not with pods told of a node as it had been, under a "
        "version so new that no other watcher ever held its own for newer",
        "test_kube_watch: a bookmark, and a list after silence, say as of when all is known",
        cluster=True,
    ),
    Regression(
        4005,
        "the same as seed 68 in a life that began at just the revision up to which the earlier one "
        "had read",
        "test_reporting: a report of an earlier life that comes late is answered",
    ),
    Regression(
        6198,
        "a scheduler placed a pod of another's shard: the pod had stood in its queue while it was "
        "alone, another had placed it since, and when that came to nothing it waited with both",
        "test_waiting: a pod that another placed comes back to its owner alone",
    ),
)
