import json
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from analysis.logs.sources import load
from analysis.report import manifest
from tests.analysis.make_logs import config, write_run


def test_files_say_where_every_run_comes_from(logs: Path, tmp_path: Path) -> None:
    write_run(logs, "odd", config("bszo", 1e-3, note="x", patience=None), [], {"run/note": 3})
    write_run(logs, "even", config("bszo", 1e-3, note=2), [], {})
    frames = load([logs], cache_dir=None)
    paths = manifest.write(frames, tmp_path / "results")
    table = pq.read_table(paths[0]).to_pandas().set_index("run_id")
    assert len(table) == 8
    assert table.loc["mezo-4", "best/test_accuracy"] == 0.85
    assert [json.loads(table.loc[i, "note"]) for i in ("odd", "even")] == ["x", 2]
    lines = pd.read_csv(paths[1]).set_index("run_id")
    mezo = lines.loc["mezo-4"]
    assert mezo["versions"].startswith("torch 2.9.0 wandb ")
    assert (mezo["device"], mezo["git_revisions"][:7]) == ("cpu", "1489d1e")
    assert (mezo["source"], mezo["rows"], mezo["torn"]) == (str(logs), 41, False)
    assert lines["config_hash"].str.fullmatch("[0-9a-f]{12}").all()
    before = [path.read_bytes() for path in paths]
    manifest.write(load([logs], cache_dir=None), tmp_path / "results")
    assert [path.read_bytes() for path in paths] == before
