"""A run's directory: what is written there, whole or not at all, and read when the run goes on."""
