"""What is submitted and what is left alone, how it is packed, and what is refused in one sentence."""

import json
import pkgutil
import signal
import subprocess
import sys

import pytest

from launch import profile, slurm, submit
from launch.profile import LocalProfile, SlurmProfile
from zo.run.lock import held

SLURM = "hydra/launcher=slurm"


@pytest.fixture
def sbatch(monkeypatch):
    """Takes the place of sbatch: a list of (groups, profile, name)."""
    taken = []
    monkeypatch.setattr(slurm, "check", lambda: None)
    monkeypatch.setattr("launch.records.queue", lambda names: set())
    monkeypatch.setattr(slurm, "submit", lambda *given: taken.append(given) or "7")
    return taken


@pytest.fixture
def queue(sbatch, monkeypatch):
    """All that was submitted waits in the queue."""

    def waiting(names):
        return {(name, index) for groups, _, name in sbatch for index in range(len(groups))}

    monkeypatch.setattr("launch.records.queue", waiting)


def once(monkeypatch, name, error):
    """Makes the first call of a function raise an error; returns the list of such calls."""
    original, calls = pkgutil.resolve_name(name), []

    def first_raises(*arguments):
        if calls:
            return original(*arguments)
        calls.append(name)
        raise error

    monkeypatch.setattr(name, first_raises)
    return calls


def ends(command):
    """Returns a command's exit status; what Ctrl-C does to it does not reach pytest."""
    try:
        return command()
    except KeyboardInterrupt:
        pytest.fail("Ctrl-C got through")


def given(sbatch):
    return [[path.name for path in group] for groups, *_ in sbatch for group in groups]


def test_missing_and_interrupted_runs_are_submitted_and_nothing_else(
    grid, runs, note, sbatch, capsys
):
    note(runs[0], "finished")
    note(runs[1], "interrupted")
    note(runs[2], "failed", error="E")
    assert submit.main([*grid, SLURM]) == 0
    assert given(sbatch) == [[runs[1].run_id], [runs[3].run_id]]
    out = capsys.readouterr().out
    assert "4 runs: 1 finished, 1 interrupted, 1 failed, 1 missing; 2 submitted" in out
    assert "1 failed before: --retry-failed submits them, too" in out
    for run in (runs[1], runs[3]):
        assert (run.directory / "config.yaml").exists()
    names = {json.loads((r.directory / "job.json").read_text())["name"] for r in (runs[1], runs[3])}
    assert names == {sbatch[0][2]}
    assert not (runs[0].directory / "job.json").exists()


def test_failed_runs_are_submitted_on_request(grid, runs, note, sbatch):
    for run in runs:
        note(run, "failed", error="E")
    assert submit.main([*grid, SLURM, "--retry-failed", "--limit", "3"]) == 0
    assert given(sbatch) == [[run.run_id] for run in runs[:3]]


def test_a_running_run_is_left_alone(grid, runs, note, sbatch):
    note(runs[0], "interrupted")
    with held(runs[0].directory):
        assert submit.main([*grid, SLURM]) == 0
    assert given(sbatch) == [[run.run_id] for run in runs[1:]]


def test_a_dry_run_writes_nothing(grid, runs, sbatch, tmp_path, capsys):
    assert submit.main([*grid, SLURM, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == [run.run_id for run in runs]
    assert lines[4] == "4 runs: 4 missing; 0 submitted, 4 would be"
    assert not sbatch
    assert not (tmp_path / "out").exists()


def test_runs_are_packed(grid, runs, sbatch):
    assert submit.main([*grid, SLURM, "hydra.launcher.runs_per_job=3"]) == 0
    assert given(sbatch) == [[run.run_id for run in runs[:3]], [runs[3].run_id]]
    indices = [json.loads((run.directory / "job.json").read_text())["index"] for run in runs]
    assert indices == [0, 0, 0, 1]


def test_a_refusal_of_slurm_is_one_sentence(grid, sbatch, monkeypatch, capsys):
    def refuse(*_):
        raise slurm.SubmitError("sbatch: error: invalid partition specified: gpu")

    monkeypatch.setattr(slurm, "submit", refuse)
    assert submit.main([*grid, SLURM]) == 2
    assert capsys.readouterr().err == "sbatch: error: invalid partition specified: gpu\n"


AFTER_SUBMITTING = ["launch.records.queue", "time.sleep"]


@pytest.mark.parametrize(
    "moment", ["launch.submit.freeze", "launch.slurm.submit", *AFTER_SUBMITTING]
)
def test_ctrl_c_at_any_moment_ends_the_wait_and_not_the_jobs(
    grid, queue, monkeypatch, capsys, moment
):
    pressed = once(monkeypatch, moment, KeyboardInterrupt)
    assert ends(lambda: submit.submit_and_watch([*grid, SLURM])) == 130
    assert pressed == [moment]
    out = capsys.readouterr().out.splitlines()
    assert out[-1].startswith("Jobs that were submitted go on. How: python -m launch.status model=")
    assert out[-2] == ("4 queued" if moment in AFTER_SUBMITTING else "4 missing")


def test_ctrl_c_before_anything_is_submitted_says_so(grid, sbatch, monkeypatch, capsys):
    once(monkeypatch, "launch.slurm.check", KeyboardInterrupt)
    assert ends(lambda: submit.submit_and_watch([*grid, SLURM])) == 130
    assert capsys.readouterr() == ("", "Nothing was submitted\n")
    assert not sbatch


def test_a_second_ctrl_c_does_not_wait_for_the_queue(grid, queue, monkeypatch, capsys):
    def slow(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("launch.records.queue", slow)
    assert ends(lambda: submit.submit_and_watch([*grid, SLURM])) == 130
    _, told, how = capsys.readouterr().out.splitlines()
    assert told == "4 runs: 4 missing; 4 submitted"
    assert how.startswith("Jobs that were submitted go on")


def test_ctrl_c_waits_until_sbatch_has_answered():
    """Python's handler must not see it earlier, nor sbatch, which a terminal sends it, too."""
    asked = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('answered')"
    heard = []

    def submit_it():
        with slurm.ctrl_c_waits():
            signal.raise_signal(signal.SIGINT)
            done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
            heard.append(done.stdout)

    with pytest.raises(KeyboardInterrupt):
        submit_it()
    assert heard == ["answered\n"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_ctrl_c_while_submitting_leaves_the_rest_to_the_same_command(
    grid, queue, monkeypatch, capsys
):
    once(monkeypatch, "launch.submit.freeze", KeyboardInterrupt)
    assert ends(lambda: submit.main([*grid, SLURM])) == 130
    assert capsys.readouterr().err == (
        "Jobs that were submitted go on; the same command submits the rest\n"
    )
    assert submit.main([*grid, SLURM]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "4 runs: 4 missing; 4 submitted"


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["hydra.launcher.partitoin=x"], "hydra.launcher.partitoin=x: no such key; did you mean partition?"),
        (["hydra.launcher.mem_gb=lots"], "hydra.launcher.mem_gb=lots: must be a number"),
        (["hydra.launcher.timeout_min=1"], "hydra.launcher.signal_delay_s=120: must be less than the time limit"),
        (["hydra.launcher.runs_per_job=0"], "hydra.launcher.runs_per_job=0: must be at least 1"),
        (["hydra.launcher.gpus_per_node=1"], "hydra.launcher.gpus_per_node=1: must be null where gres asks"),
        (["+hydra.launcher.sbatch.mem-gb=1"], "must not repeat mem-gb, which is a key of its own"),
        (["resume=false"], "resume=False: must be true for a job"),
        (["hydra/launcher=basic"], "hydra/launcher=basic: runs in its own process; take slurm or local"),
        (["hydra/launcher=submitit_slurm"], "hydra/launcher=submitit_slurm: must be one of basic,"),
        (["hydra/launcher=slurmy"], "hydra/launcher=slurmy: must be one of"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_anything_is_written(
    grid, sbatch, tmp_path, capsys, arguments, says
):
    chosen = [] if any(a.startswith("hydra/launcher=") for a in arguments) else [SLURM]
    assert submit.main([*grid, *chosen, *arguments]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_edited_run_directory_is_refused_in_one_sentence(grid, runs, note, sbatch, capsys):
    note(runs[2], "interrupted")
    config = runs[2].directory / "config.yaml"
    config.write_text(config.read_text().replace("steps: 2\n", "steps: 3\n"))
    assert submit.main([*grid, SLURM]) == 2
    assert f"{config} was changed after the run began: steps was 2" in capsys.readouterr().err
    assert not sbatch


def test_a_machine_without_slurm_is_told_so(grid, monkeypatch, capsys):
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert submit.main([*grid, SLURM]) == 2
    assert capsys.readouterr().err.startswith("sbatch and srun are not on PATH")


def test_the_trap_of_submitits_variable_is_refused(grid, monkeypatch, capsys):
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setenv("SUBMITIT_PREEMPT_SIGNAL", "TERM")
    assert submit.main([*grid, SLURM]) == 2
    assert capsys.readouterr().err.startswith("SUBMITIT_PREEMPT_SIGNAL must not be set")


def test_every_committed_profile_is_typed_and_in_range():
    for path in profile.PROFILES.glob("*.yaml"):
        found = profile.read([f"hydra/launcher={path.stem}", "out=/data/out"])
        assert isinstance(found, LocalProfile if path.stem == "local" else SlurmProfile)
        assert found.folder.startswith("/data/out/.")
    example = profile.read(["hydra/launcher=example_cluster"])
    assert (example.partition, example.runs_per_job) == (
        "gpu-preempt",
        1,
    )  # its own and slurm.yaml's
    assert example.environment["HF_HUB_OFFLINE"] == "1"


def test_without_a_launcher_hydras_own_is_taken():
    assert profile.read(["optimizer=mezo"]) is None


def test_a_profile_reaches_sbatch_whole(tmp_path, monkeypatch):
    values = {
        "partition": "gpu", "account": "me", "qos": "low", "constraint": "a100", "gres": "gpu:2",
        "cpus_per_task": 3, "mem_gb": 1.5, "timeout_min": 90, "signal_delay_s": 45,
        "array_parallelism": 5, "setup": ["module load x"], "environment": {"A": "b c"},
        "sbatch": {"mail-type": "FAIL", "exclusive": True},
    }  # fmt: skip
    from submitit import SlurmExecutor

    chosen = SlurmProfile(**values, folder=str(tmp_path))
    monkeypatch.setattr(SlurmExecutor, "affinity", lambda *_: 2)  # sbatch need not exist here
    executor = SlurmExecutor(tmp_path)
    executor.update_parameters(**slurm._parameters(chosen), job_name="zo-x")
    executor.parameters["map_count"] = 9
    script = executor._make_submission_file_text("the command", "uid").splitlines()
    for line in (
        "partition=gpu", "account=me", "qos=low", "constraint=a100", "gres=gpu:2", "cpus-per-task=3",
        "mem=1536M", "time=90", "signal=USR2@45", "array=0-8%5", "mail-type=FAIL", "exclusive",
        "requeue", "job-name=zo-x", "nodes=1", "ntasks-per-node=1", "open-mode=append",
    ):  # fmt: skip
        assert f"#SBATCH --{line}" in script
    assert script.index("module load x") < script.index("export A='b c'")
    assert any(line.startswith(f"export PYTHONPATH={slurm.ROOT}") for line in script)
