"""Tests of forecasts of starts."""
