"""The paper's printed numbers and their audit."""
