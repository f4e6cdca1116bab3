"""Local copies of the hub's data sets, made up: its files, columns and types, a dozen rows per split."""

import datasets
import yaml

TEXT, NUMBER = datasets.Value("string"), datasets.Value("int32")


def label(*names):
    return datasets.ClassLabel(names=list(names))


IDX = {"idx": NUMBER}
NO_YES = label("False", "True")


def texts(*columns):
    return dict.fromkeys(columns, TEXT)


def numbers(*columns):
    return dict.fromkeys(columns, NUMBER)


PAIR = texts("premise", "hypothesis")
SUPER_GLUE = {
    "rte": {**PAIR, **IDX, "label": label("entailment", "not_entailment")},
    "cb": {**PAIR, **IDX, "label": label("entailment", "contradiction", "neutral")},
    "copa": texts("premise", "choice1", "choice2", "question")
    | IDX
    | {"label": label("choice1", "choice2")},
    "wic": texts("word", "sentence1", "sentence2")
    | numbers("start1", "start2", "end1", "end2", "idx")
    | {"label": NO_YES},
    "wsc.fixed": texts("text", "span1_text", "span2_text")
    | numbers("span1_index", "span2_index", "idx")
    | {"label": NO_YES},
    "boolq": texts("question", "passage") | IDX | {"label": NO_YES},
}
SST2 = {"sentence": TEXT, "label": label("negative", "positive"), "idx": NUMBER}
KINDS = ("DESC", "ENTY", "ABBR", "HUM", "NUM", "LOC")  # in the order of label_coarse
ROWS = {
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
    "wsc.fixed": lambda i: {
        "text": f"Ann thanked Eve {i} times because She had helped.",
        "span1_text": "Eve",
        "span2_text": "She",
    },
    "boolq": lambda i: {"question": f"is {i} a number", "passage": f"Numbers -- {i} is one."},
}


def _readme(root, part):
    """Names the configuration and its files, as the hub's README does."""
    files = [{"split": s, "path": f"{part}/{s}-*"} for s in ("train", "validation", "test")]
    head = yaml.safe_dump({"configs": [{"config_name": part, "data_files": files}]})
    (root / "README.md").write_text(f"---\n{head}---\n# made up\n", encoding="utf-8")
    return root


def _parquet(root, part, schema, sizes, row):
    """Splits of rows with a label each, which the test split hides."""
    classes = schema["label"].num_classes
    for split, n in sizes.items():
        rows = [
            row(i) | {"idx": i, "label": -1 if split == "test" else i % classes} for i in range(n)
        ]
        file = root / part / f"{split}-00000-of-00001.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_list(rows, features=datasets.Features(schema)).to_parquet(file)
    return _readme(root, part)


def sst2(root, train=30):
    """nyu-mll/glue: parquet files and a README that names the configurations."""
    sizes = {"train": train, "validation": 10, "test": 4}
    return _parquet(
        root, "sst2", SST2, sizes, lambda i: {"sentence": f"sentence number {i} is made up "}
    )


def super_glue(root, part, train=18):
    """aps/super_glue: <part>/<split>-00000-of-00001.parquet and a README that names the configurations."""
    blank = {key: 0 for key, kind in SUPER_GLUE[part].items() if kind == NUMBER}
    sizes = {"train": train, "validation": 12, "test": 4}
    return _parquet(root, part, SUPER_GLUE[part], sizes, lambda i: blank | ROWS[part](i))


def trec(root, train=18):
    """SetFit/TREC-QC: json lines, fine and coarse labels as number, text and the original's code."""
    root.mkdir(parents=True, exist_ok=True)
    for split, n in {"train": train, "test": 12}.items():
        rows = []
        for i in range(n):
            coarse = i % len(KINDS)
            row = {"text": f"What is thing {i} ?", "label": i, "label_text": "x"}
            row |= {"label_original": f"{KINDS[coarse]}:x", "label_coarse": coarse}
            row |= {"label_coarse_text": "y", "label_coarse_original": KINDS[coarse]}
            rows.append(row)
        datasets.Dataset.from_list(rows).to_json(root / f"{split}.jsonl")
    (root / "README.md").write_text("made up\n", encoding="utf-8")
    (root / "prepare.py").write_text("raise RuntimeError('run')\n", encoding="utf-8")
    return root
