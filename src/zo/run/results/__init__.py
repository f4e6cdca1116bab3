"""What a run leaves behind: weights of any step, an exported model with its card, predictions."""
