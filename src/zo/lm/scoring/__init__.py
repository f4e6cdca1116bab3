"""Examples -> rows of tokens -> a model's scores of candidates, and the texts that it writes."""
