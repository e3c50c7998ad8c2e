"""Simulation of the whole system from one seed, in virtual time, with faults and checks."""
