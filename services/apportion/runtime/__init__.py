"""What every service stands on: the bus, configuration, the clock, logs, metrics, health.

The only layer between the pure core and the outside; each third-party client is imported by exactly
one module.
"""
