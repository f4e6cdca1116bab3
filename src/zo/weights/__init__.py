"""The trainable tensors and how they move: parameter space, directions, updates, rounding, restore policies.

May import torch, numpy and `zo.noise`.
"""
