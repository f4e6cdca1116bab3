"""How to reach machines: what a sweep consists of, what it costs, what of it is done. Nothing scientific."""
