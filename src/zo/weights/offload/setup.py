"""`zo.offload`: moves a model's weights off the device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zo.weights.aliasing import FormerMemory, storage_key
from zo.weights.offload.backing_store import (
    NAMES,
    BackingStore,
    OnDisk,
    WeightsFile,
    copies,
)
from zo.weights.offload.offloader import Offload
from zo.weights.offloaded import OffloadedParameter, OffloadError, OffloadRefused
from zo.weights.scratch import host_bytes


@torch.inference_mode(False)  # steps outside of inference mode write the weights
def offload(
    model: nn.Module,
    where: str,
    device: torch.device | str | None = None,
    directory: str | Path | None = None,
) -> Offload:
    """Moves a model's weights off the device; each block's weights are on it only during its call.

    A model that transformers or accelerate has left on disk (`device_map={"": "disk"}`) stays in its files: those that
    are trained are copied into `directory` when an optimizer is made, and the others are read where they are.

    Example:
        >>> offload = zo.offload(model, "disk", device="cpu", directory="weights")
        >>> optimizer = zo.MeZO(model, lr=1e-4, restore="streamed")
        >>> loss = optimizer.step(lambda: model(x).square().mean())

    Args:
        model: In memory, or left on disk. Its buffers are moved to the device.
        where: `cpu`, the host's memory; or `disk`.
        device: Computes; None is the current GPU, or the CPU without one.
        directory: Of the files that are written, with `disk`.

    Returns:
        The offload; its `close` gives the model its own forwards back.

    Raises:
        ValueError: If the model, the device or the disk does not allow that.
    """
    if where not in ("cpu", "disk"):
        raise OffloadRefused(f"where={where!r}: must be cpu or disk")
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        raise OffloadRefused(
            f"device={str(device)!r}: PyTorch finds no CUDA device; take device='cpu'"
        )
    if where == "cpu" and device.type == "cpu":
        raise OffloadRefused(
            "where='cpu': the CPU computes, so that the weights are on its side already; take disk"
        )
    if where == "disk" and directory is None:
        raise OffloadRefused("directory: must be given with where='disk'")
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise OffloadRefused(f"{path}: is a ScriptModule; its weights cannot be offloaded")
    files = files_of(model)
    _tie(model, files)
    _check(model, files)
    _forget_accelerate(model)
    found = {name: p for name, p in model.named_parameters() if p.dtype in NAMES}
    former = {p: FormerMemory(p.data) for p in found.values() if not p.is_meta}
    if where == "cpu":
        stores = {p: _in_memory(p, files.get(p), device) for p in found.values()}
    else:
        stores = _on_disk(found, files, str(directory))
    for p in model.parameters():
        if p not in stores:
            p.data = p.data.to(device)
    for module in model.modules():
        buffers = module.named_buffers(recurse=False, remove_duplicate=False)
        module._buffers.update({name: buffer.to(device) for name, buffer in buffers})
    return Offload(model, stores, former, device, directory)


def _in_memory(p: nn.Parameter, file: BackingStore | None, device: torch.device) -> BackingStore:
    """Returns a parameter's values in the host's memory; its own memory is freed."""
    values = host_bytes(p.numel() * p.element_size()).view(p.dtype).view(p.shape)
    values.copy_(p.data if file is None else file.whole())
    if not p.is_meta:
        p.data = values
    store = BackingStore(values)
    if device.type == "cuda":
        store.pin()
    return store


def _on_disk(
    parameters: Mapping[str, nn.Parameter], files: Mapping[nn.Parameter, OnDisk], directory: str
) -> dict[nn.Parameter, BackingStore]:
    """Returns parameters' values in files: where they are, or copies of what is in memory or of another dtype."""
    stores: dict[nn.Parameter, BackingStore] = {}
    wanted: dict[str, tuple[BackingStore, torch.dtype]] = {}
    for name, p in parameters.items():
        if p in files and files[p].tensor.dtype == p.dtype:
            stores[p] = files[p]
        else:
            source = files.get(p) or BackingStore(p.data.to("cpu").contiguous())
            wanted[name] = source, p.dtype
    if wanted:
        made = copies(Path(directory, "model.safetensors"), wanted)
        stores |= {parameters[name]: of for name, of in made.items()}
    return stores


def _check(model: nn.Module, files: Mapping[nn.Parameter, OnDisk]) -> None:
    """Raises OffloadRefused if a parameter cannot be offloaded; names it."""
    first: dict[Any, str] = {}
    for name, p in model.named_parameters():
        if p.is_inference():
            raise OffloadRefused(
                f"{name}: was made under torch.inference_mode; make the model outside of it"
            )
        if p.dtype not in NAMES:
            continue
        if isinstance(p, OffloadedParameter):
            raise OffloadRefused(f"{name}: is offloaded already")
        if type(p) is not nn.Parameter:
            raise OffloadRefused(
                f"{name}: is a {type(p).__name__}; quantised and sharded weights cannot be offloaded"
            )
        if p in files:
            continue
        if p.is_meta:
            raise OffloadRefused(f"{name}: is on the meta device, and no file is known that has it")
        if (same := first.setdefault(storage_key(p), name)) != name:
            raise OffloadRefused(f"{name}: shares its memory with {same}; make them one parameter")


def files_of(model: nn.Module) -> dict[nn.Parameter, OnDisk]:
    """Returns the parameters that accelerate has left on disk, and where."""
    opened: dict[Path, dict[str, OnDisk]] = {}
    found: dict[nn.Parameter, OnDisk] = {}
    for module in model.modules():
        loader: Any = getattr(module.__dict__.get("_hf_hook"), "weights_map", None)
        prefix = ""
        while hasattr(loader, "prefix"):
            loader, prefix = loader.dataset, loader.prefix + prefix
        for name, p in module._parameters.items():
            of = getattr(loader, "index", {}).get(prefix + name)
            if p is None or not p.is_meta or of is None or p in found:
                continue
            within = of.get("weight_name", prefix + name)
            path = Path(of.get("safetensors_file") or f"{loader.save_folder}/{prefix}{name}.dat")
            if path not in opened:
                file = WeightsFile(path)
                if path.suffix == ".safetensors":
                    opened[path] = file.tensors()
                else:  # accelerate wrote it itself
                    opened[path] = {within: OnDisk(file, 0, p.dtype, p.shape)}
            store = opened[path].get(within)
            if store is None or store.tensor.shape != p.shape:
                raise OffloadError(f"{path}: has no {within} of the shape {tuple(p.shape)}")
            found[p] = store
    return found


def _tie(model: nn.Module, files: Mapping[nn.Parameter, OnDisk]) -> None:
    """Ties parameters that a model ties in memory, if their values in the files are equal.

    transformers compares them itself, except where both are on disk.
    """
    for module in model.modules():
        tied: dict[str, str] = getattr(module, "all_tied_weights_keys", {})
        for target, source in list(tied.items()):
            found = dict(module.named_parameters())
            one, other = found.get(source), found.get(target)
            if one is None or other is None or one not in files or other not in files:
                continue
            pieces = zip(files[one].pieces(), files[other].pieces(), strict=True)
            if one.shape == other.shape and all(
                torch.equal(a.to(one.dtype), b.to(one.dtype)) for a, b in pieces
            ):
                owner, _, name = target.rpartition(".")
                setattr(module.get_submodule(owner), name, one)
            else:
                del tied[target]


def _forget_accelerate(model: nn.Module) -> None:
    """Removes accelerate's hooks, which would fetch the weights, too."""
    if any("_hf_hook" in module.__dict__ for module in model.modules()):
        from accelerate.hooks import remove_hook_from_module

        remove_hook_from_module(model, recurse=True)
    model.__dict__.pop("hf_device_map", None)  # peft would dispatch by it
