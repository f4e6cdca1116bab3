"""Templates and the functions that they put columns through."""

import pytest

from zo.tasks import TaskError
from zo.tasks.templates import columns, fill

TEXTS = [
    ("strip", "of units ", "of units"),
    ("lower", "He", "he"),
    ("unfinished", "The man fell. ", "The man fell"),
    ("unfinished", "Did he fall?", "Did he fall?"),
    ("unfinished", "He fell..", "He fell."),
    ("continued", "The wind blew.", "the wind blew."),
    ("continued", "I fell.", "I fell."),
    ("continued", "It is Ann's.", "it is Ann's."),
    ("continued", "", ""),
    ("connective", "cause", "because"),
    ("highlights", "A town.\n@highlight\nIt is old", "A town.\n- It is old"),
    ("connective", "effect", "so"),
    ("asked", "is it", "Is it?"),
    ("asked", "is it?", "Is it?"),
    ("asked", "", "?"),
]


@pytest.mark.parametrize(("function", "text", "expected"), TEXTS)
def test_a_function_of_a_column(function, text, expected):
    assert fill(f"<{{x:{function}}}>", {"x": text}, "prompt") == f"<{expected}>"


def test_data_are_text_whatever_they_look_like_and_double_braces_are_braces():
    assert fill("{{{a}}} {b} {a}", {"a": "{b}", "b": 3}, "prompt") == "{{b}} 3 {b}"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{a:upper}", r"task\.prompt: \{a:upper\} names none of strip, lower"),
        ("{a!r}", r"task\.prompt: \{a\} is not the name of a column"),
        ("{a.b}", r"task\.prompt: \{a\.b\} is not the name of a column"),
        ("{}", r"task\.prompt: \{\} is not the name of a column"),
        ("{a", r"task\.prompt: '\{a' is not a template"),
    ],
)
def test_a_template_that_cannot_be_filled_is_one_sentence(template, message):
    with pytest.raises(TaskError, match=message):
        columns(template, "prompt")
