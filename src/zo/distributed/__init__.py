"""One training on several processes: the forward passes of a step are divided, and a few losses are gathered.

May import `zo.weights` and `zo.noise`. Importing this package or `zo.distributed.config` imports no torch.
"""
