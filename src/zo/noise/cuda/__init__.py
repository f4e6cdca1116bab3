"""Philox noise on a CUDA GPU, by Triton: `draws`, `passes`, `programs`, and the engine that launches them."""
