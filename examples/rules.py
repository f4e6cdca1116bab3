"""A reward without a gradient: short texts with the word "great" get the highest reward."""


def score(prompts: list[str], texts: list[str]) -> list[float]:
    """Returns a number for each text, larger is better."""
    return [("great" in text) - abs(len(text) - 20) / 20 for text in texts]
