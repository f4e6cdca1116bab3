"""One run: loop, run directory, checkpoints, logs, resume, replay, export. `zo resume DIRECTORY` resumes one.

May import every other room of `zo` except `zo.integrations`.
"""
