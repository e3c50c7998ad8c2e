"""Manifests: the documents that people have today, read into pods that can be submitted.

Pure: parsed documents come in, drafts come out, and the caller gives each pod its uid. Invariant:
every document has its own outcome, so a bad one never hides a good one.
"""

from apportion.core.manifests.reading import Outcome, read_document, read_documents
from apportion.core.manifests.template import ManifestConfig
from apportion.core.manifests.workloads import Manifest, PodDraft, submitted

__all__ = [
    "Manifest",
    "ManifestConfig",
    "Outcome",
    "PodDraft",
    "read_document",
    "read_documents",
    "submitted",
]
