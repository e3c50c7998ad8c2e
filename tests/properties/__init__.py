"""Property tests, each of which checks a rule on many generated inputs."""
