"""Which modules compute with which parameters, and which rows of a table an embedding looks up."""

from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor, nn

ParameterOwners: TypeAlias = dict[nn.Module, list[tuple[nn.Module, str, int]]]
"""Modules and their parameters: (the module, or the container in it, name there, position)."""

CONTAINERS = (nn.ParameterDict, nn.ParameterList)
"""Containers of parameters, which are not called: the module that they are in computes with them."""


def parameter_owners(model: nn.Module, position: Callable[[Tensor], int | None]) -> ParameterOwners:
    """Returns the modules that compute with parameters.

    Args:
        model: The model.
        position: Returns a parameter's position, or None to leave it out.
    """
    held: ParameterOwners = {}
    callers: dict[nn.Module, nn.Module]
    callers = {c: m for m in model.modules() for c in m.children() if isinstance(c, CONTAINERS)}
    for module in model.modules():
        for name, p in module.named_parameters(recurse=False, remove_duplicate=False):
            if (i := position(p)) is not None:
                held.setdefault(callers.get(module, module), []).append((module, name, i))
    return held


def looks_up(module: nn.Module) -> bool:
    """Returns whether a module reads only some rows of its weight."""
    plain = isinstance(module, nn.Embedding) and type(module).forward is nn.Embedding.forward
    return plain and module.max_norm is None


def looked_up(module: nn.Module, args: tuple[Any, ...]) -> Tensor | None:
    """Returns the rows of its weight, (r,), that a module reads for `args`; None is all."""
    if not looks_up(module) or not args or args[0].numel() >= module.num_embeddings:
        return None
    rows: Tensor = args[0].reshape(-1).long()
    return rows
