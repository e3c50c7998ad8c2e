"""Benchmarks: programs that measure Apportion and print figures. People run them by hand."""
