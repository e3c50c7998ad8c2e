"""Unit tests of the lab, which plans, replays and studies clusters."""
