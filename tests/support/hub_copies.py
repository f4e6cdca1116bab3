"""Local copies of the hub's data sets, made up: its files and columns, a dozen rows per split."""

import json

import yaml

KINDS = ("DESC", "ENTY", "ABBR", "HUM", "NUM", "LOC")  # as the hub numbers them
PARTS = {"trec": "", "squad": "", "drop": "", "wsc": "wsc.fixed"}  # others are called as their task
CLASSES = {"cb": 3, "trec": 6}
ROW = {
    "sst2": {"sentence": "sentence number 0 is made up "},
    "rte": {"premise": "Town 0 lies in Spain.", "hypothesis": "0 is a town."},
    "cb": {"premise": "B: Is 0 odd? A: I think so.", "hypothesis": "0 is odd"},
    "copa": {"premise": "Ship 0 sank.", "choice1": "The wind blew.", "choice2": "I sold it."}
    | {"question": "cause"},
    "wic": {"word": "bank", "sentence1": "Bank 0 lent money ."}
    | {"sentence2": "We sat on the bank 0 times ."},
    "wsc": {"text": "Ann thanked Eve 0 times because She had helped."}
    | {"span1_text": "Eve", "span2_text": "She"},
    "boolq": {"question": "is 0 a number", "passage": "Numbers -- 0 is one."},
    "trec": {"text": "What is thing 0 ?"},
    "squad": {"title": "Town", "context": "It is old.", "question": " How old? "}
    | {"answers": {"text": ["very old", "old"]}},
    "drop": {"passage": "It is old.", "question": "How old?"}
    | {"answers_spans": {"spans": ["very old", "old"]}},
    "record": {"passage": "A town.\n@highlight\nIt is old", "query": "People like @placeholder ."}
    | {"entities": ["Rome", "Oslo", "Bern"], "answers": ["Oslo", "Bern"]},
}


def write(root, name):
    """Writes a task's splits as lines of json, labels in turn, and a README that names a subset as the hub's does."""
    part = root / PARTS.get(name, name)
    part.mkdir(parents=True)
    for split, n in {"train": 18, "validation": 12, "test": 12}.items():
        hidden = split == "test" and name != "trec"
        labels = [-1 if hidden else i % CLASSES.get(name, 2) for i in range(n)]
        rows = [{**ROW[name], "label": y, "label_coarse_original": KINDS[y]} for y in labels]
        (part / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    if name == "sst2":
        files = [{"split": s, "path": f"sst2/{s}.jsonl"} for s in ("train", "validation", "test")]
        head = yaml.safe_dump({"configs": [{"config_name": "sst2", "data_files": files}]})
        (root / "README.md").write_text(f"---\n{head}---\n# made up\n")
    return root
