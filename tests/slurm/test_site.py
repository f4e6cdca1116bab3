"""A real site's conditions: modules that do not load, secrets, memory that the cluster gives out."""

import subprocess

import pytest

from launch import status, submit
from launch.sweep import Sweep
from tests.launch.conftest import changed, states
from tests.slurm.conftest import call, reach
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm


def test_a_job_whose_module_does_not_load_failed_and_waits_to_be_asked_for(sweep, capsys):
    grid = changed(sweep, "optimizer=mezo", "steps=20", "hydra.launcher.mem_gb=null")
    broken = [*grid, "hydra.launcher.setup=[module load no-such/1.0]"]
    assert submit.main(broken) == 0
    (run,) = runs = Sweep.of(grid).runs
    reach(runs, "failed")
    capsys.readouterr()
    assert status.main([*grid, "--failed"]) == 0
    said = capsys.readouterr().out.splitlines()[0]
    assert "hydra.launcher.setup failed (exit status 127): module load no-such/1.0, see " in said
    assert "module: command not found" in said
    path = said.rpartition("see ")[2]
    assert path.endswith("_0_log.err")
    assert not (run.directory / "log.txt").exists()  # Python never ran

    assert submit.main(grid) == 0
    assert "1 failed before: --retry-failed" in capsys.readouterr().out
    assert states(runs) == ["failed"]
    assert submit.main([*grid, "--retry-failed"]) == 0
    reach(runs, "finished")


def test_secrets_reach_the_job_and_no_file(sweep, tmp_path, monkeypatch):
    exported, given = "exported-at-login-3141", "given by profile 2718"
    monkeypatch.setenv("WANDB_API_KEY", exported)
    seen = tmp_path / "seen"
    tell = f'test "$WANDB_API_KEY" = {exported} && test "$HF_TOKEN" = \'{given}\' && touch {seen}'
    token = f"+hydra.launcher.environment.HF_TOKEN='{given}'"
    grid = [*sweep, "optimizer=mezo", "steps=20", token]
    (tmp_path / "tell.sh").write_text(f"{tell}\nexport HF_TOKEN=of-a-module\nfalse\ntrue\n")
    assert submit.main([*grid, f"hydra.launcher.setup=[. {tmp_path}/tell.sh]"]) == 0
    runs = Sweep.of(grid).runs
    wait_for(lambda: "R" in call("squeue", "--noheader", "--format=%t"), "the job to run", 60)
    reach(runs, "finished")
    assert seen.exists()
    out = runs[0].directory.parent
    for secret in (exported, given):
        found = subprocess.run(["grep", "-rlaF", secret, out], capture_output=True, text=True)
        assert found.stdout == ""
    script = next(out.glob(".slurm/*/*.sh")).read_text()
    assert "export HF_TOKEN=$zo_HF_TOKEN" in script
