"""Filter and score nodes by pod affinity, anti-affinity and topology spread constraints."""
