"""The paper's printed numbers against each other: what made results/paper/audit.md and statistics.md."""
