"""Golden tests: later builds can read the data that earlier builds wrote."""
