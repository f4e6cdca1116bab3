"""The header of the library's records, and hashes of weights."""

import hashlib
from dataclasses import asdict
from typing import Any

import torch

from zo.distributed.agreement import digests
from zo.optim.base import ZOOptimizer
from zo.record.trajectory import Header
from zo.weights.space import ParameterSpace
from zo.weights.tensors import hash_of


def header_of(method: ZOOptimizer) -> Header:
    """Returns the header of a record of the method's steps."""
    space = method.params
    config: dict[str, Any] = {
        **asdict(method.config),
        "seed": method.seed,
        "restore": space.policy.name,
        "noise": space.engine.backend.split("-")[0],
        "rounding": space.rounding,
        "groups": method.group_of,
        "decays": space.decays,
    }
    return Header(
        run_id="",
        config=config,
        base=fingerprint(space),
        parameters=space.numel,
        noise=space.engine.backend,
        losses_per_step=method.config.losses_per_step,
        written_by={"torch": torch.__version__},
    )


def fingerprint(space: ParameterSpace) -> str:
    """Returns a hash of the weights' dtypes, shapes and bits."""
    described = ((f"{p.dtype}{tuple(p.shape)}", p) for p in space.gathered()[1])
    return f"blake2b:{hash_of(described, hashlib.blake2b(digest_size=16))}"


def digest_of(method: ZOOptimizer) -> bytes:
    """Returns a digest of the weights and of all state that the next step depends on, computed on their devices."""
    found = repr(digests(method)).encode()
    return hashlib.blake2b(found, digest_size=16).digest()
