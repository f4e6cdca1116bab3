"""One run: loop, run directory, checkpoints, logs, resume, replay, export. `python -m zo.run DIRECTORY` resumes one.

May import every other room of `zo` except `zo.integrations`.
"""
