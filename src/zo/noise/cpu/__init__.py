"""Philox noise on the CPU, by numba: `compiled`, `formats`, `draws`, `passes`, and the engine that calls them."""
