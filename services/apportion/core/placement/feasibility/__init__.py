"""Filters, and the evaluator that applies them to a node."""
