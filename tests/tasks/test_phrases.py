"""The phrases that come with the suite: SST-2's prompt and answers."""

from pathlib import Path

import yaml

CONF = Path(__file__).parents[2] / "conf" / "task"
SAME = ("prompt", "masked_prompt", "candidates", "label_words", "max_length")


def raw(name):
    return yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))


def test_prompts_and_answers_are_those_of_sst2():
    phrase, sst2 = raw("phrases"), raw("sst2")
    sst2["prompt"] = sst2["prompt"].replace(":strip", "")  # the asset has no spaces to strip
    sst2["masked_prompt"] = sst2["masked_prompt"].replace(":strip", "")
    assert {key: phrase[key] for key in SAME} == {key: sst2[key] for key in SAME}
