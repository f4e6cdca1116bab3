"""Language models: load them, turn examples into batches, score candidates.

May import torch, transformers and `zo.tasks`.
"""
