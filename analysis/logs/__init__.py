"""W&B run files and cloud projects -> one frame of runs, with their histories."""
