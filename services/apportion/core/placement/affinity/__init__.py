"""Pod affinity, anti-affinity and topology spread: pod counts, refusals and preferences."""
