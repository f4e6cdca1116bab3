"""A training as a file of kilobytes: what every step measured, from which its weights are made again.

May import `zo.distributed`, `zo.optim`, `zo.weights` and `zo.noise`.
"""
