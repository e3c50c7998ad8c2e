"""Property tests: each checks a rule on many generated inputs."""
