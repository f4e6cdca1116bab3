"""Local copies of the hub's data sets, made up: its files and columns, a dozen rows per split."""

import json

import yaml

KINDS = ("DESC", "ENTY", "ABBR", "HUM", "NUM", "LOC")  # as the hub numbers them
PARTS = {"sst2": "sst2", "trec": "", "wsc": "wsc.fixed"}  # others are called as their task
CLASSES = {"cb": 3, "trec": 6}
ROWS = {
    "sst2": lambda i: {"sentence": f"sentence number {i} is made up "},
    "rte": lambda i: {"premise": f"Town {i} lies in Spain.", "hypothesis": f"{i} is a town."},
    "cb": lambda i: {"premise": f"B: Is {i} odd? A: I think so.", "hypothesis": f"{i} is odd"},
    "copa": lambda i: {
        "premise": f"Ship {i} sank.",
        "choice1": f"The wind blew {i} times.",
        "choice2": "I sold it.",
        "question": ("cause", "effect")[i // 2 % 2],
    },
    "wic": lambda i: {
        "word": "bank",
        "sentence1": f"Bank {i} lent money .",
        "sentence2": f"We sat on the bank {i} times .",
    },
    "wsc": lambda i: {
        "text": f"Ann thanked Eve {i} times because She had helped.",
        "span1_text": "Eve",
        "span2_text": "She",
    },
    "boolq": lambda i: {"question": f"is {i} a number", "passage": f"Numbers -- {i} is one."},
    "trec": lambda i: {
        "text": f"What is thing {i} ?",
        "label_original": f"{KINDS[i % 6]}:x",
        "label_coarse": i % 6,
        "label_coarse_original": KINDS[i % 6],
    },
}


def write(root, name):
    """Writes a task's splits as lines of json, labels in turn, and a README that names a subset as the hub's does."""
    part = root / PARTS.get(name, name)
    part.mkdir(parents=True)
    for split, n in {"train": 18, "validation": 12, "test": 12}.items():
        hidden = split == "test" and name != "trec"
        labels = [-1 if hidden else i % CLASSES.get(name, 2) for i in range(n)]
        rows = [{**ROWS[name](i), "idx": i, "label": label} for i, label in enumerate(labels)]
        (part / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    if name == "sst2":
        files = [{"split": s, "path": f"sst2/{s}.jsonl"} for s in ("train", "validation", "test")]
        head = yaml.safe_dump({"configs": [{"config_name": "sst2", "data_files": files}]})
        (root / "README.md").write_text(f"---\n{head}---\n# made up\n")
    return root
