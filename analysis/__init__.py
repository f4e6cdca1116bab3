"""From the W&B run files to the tables and figures in results/; never imports torch or zo."""
