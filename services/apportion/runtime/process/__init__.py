"""What every process is made of, whatever it does: its life, its surfaces, its settings."""
