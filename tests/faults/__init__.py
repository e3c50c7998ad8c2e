"""Real faults: three real servers, real processes, real signals and a real full disk."""
