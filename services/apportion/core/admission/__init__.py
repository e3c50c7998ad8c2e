"""Admission: a pod as it is about to be written in, a patch or a rejection out.

Pure: `rules.admit` is the whole of what the webhook decides; who calls it, and over which wire, is
the business of the service `admission`. Invariant: a pod that is let through with our scheduler's
name is one that the watcher can read, and what was filled in changes nothing of what it asks for.
"""

from apportion.core.admission.rules import Admitted, Asked, Rejected, Rules, admit

__all__ = ["Admitted", "Asked", "Rejected", "Rules", "admit"]
