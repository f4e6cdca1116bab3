"""Runs that are killed, damaged and starved of disk end as their undisturbed twins, bit for bit.

KILLS=200 python -m pytest -m slow tests/run/test_faults.py
"""

import os

import pytest

from tests.support import faults


@pytest.mark.slow
@pytest.mark.parametrize("kills", [int(os.environ.get("KILLS", "12"))])
def test_every_run_ends_as_its_twin_whatever_happens_to_it(kills, tmp_path):
    campaign = faults.campaign(tmp_path / "campaign", kills)
    print(dict(campaign.faults), campaign.refused)
    assert campaign.kills >= kills
    assert campaign.replayed
    differing = {o.case: o.differences for o in campaign.outcomes if o.differences}
    assert not differing
