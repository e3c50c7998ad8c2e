"""Prices: counting shapes, solving, tables, and the scores that look them up."""
