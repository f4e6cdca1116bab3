import socket

import datasets
import pytest


@pytest.fixture(autouse=True)
def own_cache_and_no_network(tmp_path, monkeypatch):
    """Data are read from files only, and nothing that another run cached is found."""

    def refuse(*args):
        raise AssertionError(f"a task with local data asks the network: {args}")

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets-cache")
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
