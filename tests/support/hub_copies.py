"""Local copies of the hub's data sets, made up: its files and columns, a dozen rows per split."""

import json

import yaml

KINDS = ("DESC", "ENTY", "ABBR", "HUM", "NUM", "LOC")  # as the hub numbers them
PARTS = {"trec": "", "squad": "", "drop": "", "wsc": "wsc.fixed"}  # others are called as their task
CLASSES = {"cb": 3, "trec": 6}
COLUMNS = {
    "sst2": "sentence",
    "rte": "premise, hypothesis",
    "cb": "premise, hypothesis",
    "copa": "premise, choice1, choice2, question",
    "wic": "word, sentence1, sentence2",
    "wsc": "text, span1_text, span2_text",
    "boolq": "question, passage",
    "trec": "text",
    "squad": "title, context, question, answers",
    "drop": "passage, question, answers_spans",
    "record": "passage, query, entities, answers",
}
ROW = {
    "sst2": ["sentence number 0 is made up "],
    "rte": ["Town 0 lies in Spain.", "0 is a town."],
    "cb": ["B: Is 0 odd? A: I think so.", "0 is odd"],
    "copa": ["Ship 0 sank.", "The wind blew.", "I sold it.", "cause"],
    "wic": ["bank", "Bank 0 lent money .", "We sat on the bank 0 times ."],
    "wsc": ["Ann thanked Eve 0 times because She had helped.", "Eve", "She"],
    "boolq": ["is 0 a number", "Numbers -- 0 is one."],
    "trec": ["What is thing 0 ?"],
    "squad": ["Town", "It is old.", " How old? ", {"text": ["very old", "old"]}],
    "drop": ["It is old.", "How old?", {"spans": ["very old", "old"]}],
    "record": [
        "A town.\n@highlight\nIt is old",
        "People like @placeholder .",
        ["Rome", "Oslo", "Bern"],
        ["Oslo", "Bern"],
    ],
}


def write(root, name):
    """Writes a task's splits as lines of json, labels in turn, and a README that names a subset as the hub's does."""
    part = root / PARTS.get(name, name)
    part.mkdir(parents=True)
    row = dict(zip(COLUMNS[name].split(", "), ROW[name], strict=True))
    for split, n in {"train": 18, "validation": 12, "test": 12}.items():
        hidden = split == "test" and name != "trec"
        labels = [-1 if hidden else i % CLASSES.get(name, 2) for i in range(n)]
        rows = [{**row, "label": y, "label_coarse_original": KINDS[y]} for y in labels]
        (part / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    if name == "sst2":
        files = [{"split": s, "path": f"sst2/{s}.jsonl"} for s in ("train", "validation", "test")]
        head = yaml.safe_dump({"configs": [{"config_name": "sst2", "data_files": files}]})
        (root / "README.md").write_text(f"---\n{head}---\n# made up\n")
    return root
