"""The methods as torch optimizers, for anybody's training loop.

May import `zo.record`, `zo.distributed`, `zo.optim`, `zo.weights` and `zo.noise`, and nothing of the suite around them.
"""
