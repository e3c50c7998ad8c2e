"""Unit tests of the events that an agent reports and of the state that it folds."""
