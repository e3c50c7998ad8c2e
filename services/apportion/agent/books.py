"""What the agent asks of whoever knows the pods of its node: a kubelet, or our own list of runs.

Invariant: a pod that is not in the books uses nothing on the node that could be taken away.
"""

from typing import Protocol

from apportion.agent.usage.owners import Owner


class Books(Protocol):
    """Who knows what pods there are on this node, and whose a process is."""

    async def pods(self) -> set[str]:
        """Their uids. Raises NotPrepared where nobody can tell now."""

    def owner(self, pid: int) -> Owner | None:
        """Whose a process is; None where it has ended."""
