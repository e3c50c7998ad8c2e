"""A cluster with HAMi on which a person, or a test, can follow the migration guide."""
