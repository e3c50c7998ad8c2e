"""Unit tests ask: is this rule right?"""
