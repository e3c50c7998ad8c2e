"""Warn of probable mistakes in a manifest, and of settings without effect; refuse nothing."""
