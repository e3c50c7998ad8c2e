"""What every process is made of, without a process."""
