"""Golden tests: this build can read the data that earlier builds wrote."""
