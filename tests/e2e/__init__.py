"""End-to-end tests: from kubectl to a bound pod, with everything real except the devices."""
