"""Adapters: what is trained of a loaded model, and the settings of each."""
