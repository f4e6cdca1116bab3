"""What is seen of a run: the progress on a terminal, its log files, and W&B fed from them."""
