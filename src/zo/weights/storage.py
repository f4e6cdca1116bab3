"""Which tensors share memory."""

from collections.abc import Hashable

from torch import Tensor


def storage_key(t: Tensor) -> Hashable:
    """Returns a key that tensors of one memory share; a tensor without memory of its own is its own key."""
    return t.data_ptr() or id(t)
