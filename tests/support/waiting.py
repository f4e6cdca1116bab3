"""Waiting for other processes, never for ever."""

import time


def wait_for(condition, what, timeout_s=120):
    """Returns the first true value of `condition()`; fails after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s for {what}"
        time.sleep(0.05)
    return value
