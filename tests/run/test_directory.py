"""A run's identity: frozen at its first start, compared at every later one."""

import pytest

from zo.run.__main__ import main
from zo.run.directory import DirectoryError, directory_of, freeze
from zo.run.runner import run


def test_an_edited_configuration_is_refused_with_its_key(make_run):
    cfg = make_run("optimizer=mezo")
    path = freeze(cfg) / "config.yaml"
    whole = path.read_text()
    for was, now, told in (
        ("batch_size: 16", "batch_size: 8", "batch_size was 16; restore that value"),
        ("eps: 0.0001", "eps: 0.5", "optimizer.eps was 0.0001; restore that value"),
        ("data_files:\n", "data_files:\n    more: b\n", "task.data_files.more was not there"),
        ("batch_size: 16", "batch_sizes: 16", "is not this run's: batch_sizes"),
    ):
        assert was in whole
        path.write_text(whole.replace(was, now))
        with pytest.raises(DirectoryError, match=told):
            run(cfg)
    path.write_text(whole)
    assert freeze(cfg) == path.parent


@pytest.mark.parametrize("text", ["a: [", "steps: 4"])
def test_a_broken_configuration_is_refused_with_what_to_do(make_run, capsys, text):
    cfg = make_run("optimizer=mezo")
    path = freeze(cfg) / "config.yaml"
    path.write_text(text)
    assert main([str(path.parent)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{path} is not a run's configuration: ")
    assert said.endswith(
        "; remove this file and repeat the run's command, which writes it anew and keeps the steps\n"
    )
    assert len(said.splitlines()) == 1
    with pytest.raises(DirectoryError, match="is not this run's: "):
        run(cfg)
    path.unlink()
    assert run(cfg)["run/status"] == "finished"


def test_another_override_is_another_run_and_where_it_runs_is_not(make_run):
    cfg = make_run("optimizer=mezo")
    assert directory_of(make_run("optimizer=mezo", "batch_size=8")) != directory_of(cfg)
    same = make_run("optimizer=mezo", "device=cpu", "threads=1", "checkpoint.full_every=7")
    assert directory_of(same) == directory_of(cfg)
    freeze(cfg)
    assert freeze(same) == directory_of(cfg)
