"""Importing transformers' Trainer takes seconds: it is left out where its tests are."""


def pytest_ignore_collect(config):
    return True if "not process" in config.option.markexpr else None
