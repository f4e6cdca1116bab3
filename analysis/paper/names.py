"""Names in print, and their order: methods, tasks and models."""

ZERO_SHOT = "zero_shot"
METHODS = {
    ZERO_SHOT: "zero-shot",
    "icl": "ICL",
    "linear_probe": "linear probing",
    "mezo": "MeZO",
    "mezo_adam": "MeZO-Adam",
    "hizoo": "HiZOO",
    "lozo": "LOZO",
    "bszo": "BSZO",
    "bszo_b": "BSZO-B",
    "adam": "Adam",
    "sgd": "SGD",
}
UNTRAINED = (ZERO_SHOT, "icl", "linear_probe")
"""Baselines without steps, and so without a learning rate."""
PAPER_METHODS = ("mezo", "mezo_adam", "hizoo", "lozo", "bszo", "bszo_b")
TASKS = {
    "sst2": "SST-2",
    "rte": "RTE",
    "cb": "CB",
    "wic": "WiC",
    "wsc": "WSC",
    "trec": "TREC",
    "copa": "COPA",
    "boolq": "BoolQ",
    "rotten_tomatoes": "Rotten Tomatoes",
    "imdb": "IMDB",
    "phrases": "film phrases",
}
MODELS = {
    "roberta-large": "RoBERTa-large",
    "opt-1.3b": "OPT-1.3B",
    "opt-13b": "OPT-13B",
    "mistral-7b": "Mistral-7B",
    "smollm2-135m": "SmolLM2-135M",
}
# As the paper prints them, in its order.
PAPER_TASKS = {
    "sst2": "SST-2",
    "rte": "RTE",
    "cb": "CB",
    "wic": "WIC",
    "trec": "TREC",
    "copa": "COPA",
    "wsc": "WSC",
    "boolq": "BoolQ",
    "avg": "Avg",
}
PAPER_MODELS = {
    "roberta-large": "RoBERTa-large",
    "opt-1.3b": "OPT-1.3B",
    "mistral-7b": "Mistral-7B",
    "opt-13b": "OPT-13B",
}


def method_label(method: str) -> str:
    """The name of a method, or of a variant (`variant_name`), in print."""
    if ":" in method:
        return method.split(":", 2)[2]
    return METHODS.get(method, method)


def variant_name(method: str, i: int, of: int, words: str) -> str:
    """The name of the i-th of several variants of one method, from which `look` makes a look of its own."""
    return f"{method}:{i}/{of}:{words}"


def plain(method: str) -> str:
    """The method that a variant is of."""
    return method.partition(":")[0].partition("=")[0]


def task_label(task: str) -> str:
    """A task's name in print."""
    return TASKS.get(task, task)


def model_label(model: str) -> str:
    """A model's name in print."""
    return MODELS.get(model, model)


def method_order(method: str) -> tuple[int, str]:
    """Sorts methods as the tables do: zero-shot, the paper's, the others by name."""
    names = list(METHODS)
    own = plain(method)
    return (names.index(own) if own in names else len(names), method)
