"""Settings of a run on several processes: which are its identity, and which are refused."""

import pytest

from zo.config import ConfigError
from zo.config.identity import run_id
from zo.config.schema import from_plain, scientific


def test_only_shards_are_part_of_the_identity(make_run):
    plain = run_id(make_run())
    others = ("distributed.timeout=5", "distributed.check_every=null", "distributed.shards=1")
    assert run_id(make_run(*others)) == plain
    sharded = make_run("distributed.shards=2")
    assert run_id(sharded) != plain
    assert from_plain(scientific(sharded)).distributed.shards == 2
    assert "distributed" not in scientific(make_run())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["distributed.shards=3"], "distributed.shards=3: must divide batch_size=16"),
        (["distributed.shards=0"], "distributed.shards=0: must be 1 to 1024"),
        (["distributed.check_every=0"], "distributed.check_every=0: must be at least 1, or null"),
        (["distributed.timeout=0"], "distributed.timeout=0.0: must be at least 1 second"),
        (["optimizer=adam", "distributed.shards=2"], "must be 1: adam makes one backward pass"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(make_run, settings, sentence):
    with pytest.raises(ConfigError) as refused:
        make_run(*settings)
    assert sentence in str(refused.value)
