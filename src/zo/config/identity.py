"""Run identity: an id from the configuration that decides a run's numbers."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def run_id(name: str, configuration: Mapping[str, Any]) -> str:
    """Returns an id that depends on the configuration alone.

    Args:
        name: A readable beginning, letters, digits, dashes and underscores.
        configuration: Plain nested data: everything that decides the run's numbers, and nothing else.

    Returns:
        `name`, a dash and 12 hexadecimal digits; usable as directory name and as W&B id.
    """
    canonical = json.dumps(configuration, sort_keys=True, separators=(",", ":"))
    return f"{name}-{hashlib.sha256(canonical.encode()).hexdigest()[:12]}"
