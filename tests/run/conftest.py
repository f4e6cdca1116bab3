"""What tests of runs share: a command that has to refuse, and something that happens between steps."""

import pytest

from zo.run.assembly import Session


@pytest.fixture
def refused(capsys):
    """Returns a function that calls a command, which has to refuse, and returns the one line that it says."""

    def line(main, *arguments):
        capsys.readouterr()
        assert main([*map(str, arguments)]) == 2
        (said,) = capsys.readouterr().err.splitlines()
        return said

    return line


@pytest.fixture
def before_steps(monkeypatch):
    """Returns a function that has `act(session, step)` called before each step of a run."""
    make = Session.executor

    def call(act):
        def acted(session, examples):
            act(session, session.assembly.optimizer.step_index + 1)
            return make(session, examples)

        monkeypatch.setattr(Session, "executor", acted)

    return call
