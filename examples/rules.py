"""A reward that has no gradient: short texts that say "great" are rated best."""


def score(prompts: list[str], texts: list[str]) -> list[float]:
    """Returns a number for each text, larger is better."""
    return [("great" in text) - abs(len(text) - 20) / 20 for text in texts]
