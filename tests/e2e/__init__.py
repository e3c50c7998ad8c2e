"""What people do, from kubectl to a bound pod, with everything real but the devices."""
