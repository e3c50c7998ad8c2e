"""Apply pod affinity, anti-affinity and topology spread: pod counts, refusals, preferences."""
