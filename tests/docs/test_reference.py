"""The reference of keys, methods and classes is what the code says."""

import pytest

from tools import reference


@pytest.mark.parametrize("name", reference.WRITTEN)
def test_a_page_of_the_reference_is_that_of_the_code(name):
    written = (reference.PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert written == reference.page(name), "python -m tools.reference writes it"


def test_every_key_of_a_run_and_every_method_has_a_row():
    from zo.config.schema import option_schemas

    keys, methods = (reference.page(name) for name in ("configuration", "methods"))
    for key in (
        "`lr`",
        "`task.max_length`",
        "`precision.restore`",
        "`adapter.r`",
        "`distributed.tensor`",
    ):
        assert f"| {key} | " in keys
    for method in option_schemas()["optimizer"]:
        assert f"`optimizer={method}`" in methods
