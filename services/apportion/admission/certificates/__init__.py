"""The webhook's certificates: made here and renewed, or given by somebody else in files."""
