"""Unit tests of the lab, which plans changes of a cluster and replays its history."""
