"""The audit: whether the printed numbers agree with each other. Nothing imports it."""
