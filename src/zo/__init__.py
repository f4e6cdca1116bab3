"""Zeroth-order fine-tuning of language models: methods, tasks, scoring and the run loop."""
