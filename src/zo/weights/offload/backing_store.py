"""Backing stores of offloaded weights: the host's memory, or safetensors files.

Transfers read and write a file by position: a truncated or missing file is an error, not a SIGBUS. Other readers
(`state_dict`, `save_pretrained`) get the weights memory-mapped.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import shutil
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zo.weights.offloaded import OffloadError, OffloadRefused, gigabytes
from zo.weights.scratch import host_bytes

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""safetensors' names of the dtypes of weights."""

NAMES = {dtype: name for name, dtype in DTYPES.items()}

PIECE = 1 << 23
"""Values that are copied at a time: so many are no part of what the C library keeps of freed memory."""

NO_RESERVE = 0x4000
"""Linux's MAP_NORESERVE: pages that are only read take no memory of their own."""


class Entry(NamedTuple):
    """A tensor in a file.

    Attributes:
        dtype: Of the file.
        shape: Of the tensor.
        begin: Byte at which its values begin.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int

    @property
    def bytes(self) -> int:
        """Length in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


class WeightsFile:
    """A file of weights, opened for each transfer: a model may have more files than a process may open.

    Args:
        path: Of the file.
        writable: Whether it is a copy that training changes. Others are read alone, and must stay as they are.

    Raises:
        OffloadError: If it cannot be opened.
    """

    def __init__(self, path: Path, writable: bool = False):
        self.path, self.writable = path, writable
        try:
            self._stamp = self._stamp_of(os.stat(path))
            with self.opened():
                pass
        except OSError as error:
            raise OffloadError(f"{path}: {error.strerror}") from None
        self._mapped: Any = None

    def _stamp_of(self, found: os.stat_result) -> tuple[int, ...]:
        same = found.st_dev, found.st_ino, found.st_size
        return same if self.writable else (*same, found.st_mtime_ns)

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Opens the file, and yields its descriptor.

        Raises:
            OffloadError: If it was removed or changed since the first time.
        """
        try:
            descriptor = os.open(self.path, os.O_RDWR if self.writable else os.O_RDONLY)
        except OSError as error:
            raise OffloadError(
                f"{self.path}: removed while its weights were in use ({error.strerror})"
            ) from None
        try:
            if self._stamp_of(os.fstat(descriptor)) != self._stamp:
                raise OffloadError(f"{self.path}: changed while its weights were in use")
            yield descriptor
        finally:
            os.close(descriptor)

    def entries(self) -> dict[str, Entry]:
        """Returns the tensors of a safetensors file, those of other dtypes than weights have left out.

        Raises:
            OffloadError: If it is no safetensors file.
        """
        try:
            with self.opened() as descriptor:
                length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
                header = json.loads(os.pread(descriptor, length, 8))
            header.pop("__metadata__", None)
            return {
                name: Entry(
                    DTYPES[of["dtype"]], tuple(of["shape"]), 8 + length + of["data_offsets"][0]
                )
                for name, of in header.items()
                if of["dtype"] in DTYPES
            }
        except (ValueError, KeyError, TypeError, OverflowError, OSError) as error:
            raise OffloadError(f"{self.path}: is no safetensors file ({error})") from None

    def read(self, begin: int, out: Tensor) -> None:
        """Fills a contiguous tensor of the host from a byte on.

        Raises:
            OffloadError: If the file cannot be read, or ends before.
        """
        memory, done = _bytes_of(out), 0
        with self.opened() as descriptor:
            while done < len(memory):
                try:
                    count = os.preadv(descriptor, [memory[done:]], begin + done)
                except OSError as error:
                    raise OffloadError(f"{self.path}: {error.strerror}") from None
                if not count:
                    raise OffloadError(f"{self.path}: cut off while its weights were in use")
                done += count

    def write(self, begin: int, values: Tensor) -> None:
        """Writes a contiguous tensor of the host from a byte on.

        Raises:
            OffloadError: If the file was removed or changed.
            OSError: If the disk does not take it.
        """
        memory, done = _bytes_of(values), 0
        with self.opened() as descriptor:
            while done < len(memory):
                try:
                    done += os.pwrite(descriptor, memory[done:], begin + done)
                except OSError as error:
                    raise OSError(error.errno, error.strerror, str(self.path)) from None

    def mapped(self, entry: Entry) -> Tensor:
        """Returns a tensor of the file, memory-mapped; writing to it changes a writable file, and no other."""
        if not entry.bytes:
            return torch.empty(entry.shape, dtype=entry.dtype, device="cpu")
        if self._mapped is None:
            kind = mmap.MAP_SHARED if self.writable else mmap.MAP_PRIVATE | NO_RESERVE
            with self.opened() as descriptor:
                self._mapped = _mapped(descriptor, kind)
        count = math.prod(entry.shape)
        flat = torch.frombuffer(self._mapped, dtype=entry.dtype, count=count, offset=entry.begin)
        return flat.view(entry.shape)


def _mapped(descriptor: int, kind: int) -> Any:
    """Returns the bytes of an open file, memory-mapped; Python's own mmap keeps a descriptor of it.

    Raises:
        OSError: If the system does not map it.
    """
    libc, size = ctypes.CDLL(None, use_errno=True), os.fstat(descriptor).st_size
    map_file: Any = ctypes.CFUNCTYPE(
        ctypes.c_void_p, *[ctypes.c_void_p, ctypes.c_size_t], *[ctypes.c_int] * 3, ctypes.c_long,
        use_errno=True,
    )(("mmap", libc))  # fmt: skip
    unmap: Any = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(("munmap", libc))
    address = map_file(None, size, mmap.PROT_READ | mmap.PROT_WRITE, kind, descriptor, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    found = (ctypes.c_char * size).from_address(address)
    weakref.finalize(found, unmap, address, size).atexit = False  # tensors may outlive the others
    return found


def _bytes_of(t: Tensor) -> memoryview:
    values: Any = t.detach().view(-1).view(torch.uint8).numpy()
    return memoryview(values)


class BackingStore(ABC):
    """The values of an offloaded tensor.

    Attributes:
        tensor: The values in the host's memory, or memory-mapped.
        writable: Whether updates may write it; False for files of others.
    """

    tensor: Tensor
    writable = True

    @abstractmethod
    def read(self, out: Tensor) -> None:
        """Copies the values to the device."""

    @abstractmethod
    def write(self, values: Tensor) -> None:
        """Copies values from the device."""

    @abstractmethod
    def piece(self, begin: int, end: int) -> Tensor:
        """Returns values in the host's memory, (end − begin,), by their flat positions."""

    def whole(self) -> Tensor:
        """Returns the tensor in the host's memory."""
        return self.piece(0, self.tensor.numel()).view(self.tensor.shape)

    def rows(self, rows: Tensor) -> Tensor:
        """Returns rows of a matrix in the host's memory, by their indices, (r,)."""
        found = self.tensor.new_empty(len(rows), self.tensor.shape[1])
        width = self.tensor.shape[1]
        for row, out in zip(rows.tolist(), found, strict=True):
            out.copy_(self.piece(row * width, (row + 1) * width))
        return found

    def entries(self, index: Tensor) -> Tensor:
        """Returns values in the host's memory by their flat positions, (n,); of a file nothing stays mapped."""
        found, count = self.tensor.new_empty(len(index)), self.tensor.numel()
        for begin in range(0, count, PIECE):
            inside = (index >= begin) & (index < begin + PIECE)
            piece = self.piece(begin, min(begin + PIECE, count))
            found[inside] = piece[index[inside] - begin]
        return found


class InMemory(BackingStore):
    """A tensor of the host; pinned where the device is a GPU."""

    def __init__(self, tensor: Tensor, device: torch.device):
        self.tensor = tensor
        if device.type == "cuda" and tensor.numel():
            runtime, address = torch.cuda.cudart(), tensor.data_ptr()
            torch.cuda.check_error(runtime.cudaHostRegister(address, tensor.nbytes, 0))
            weakref.finalize(self, runtime.cudaHostUnregister, address)

    def read(self, out: Tensor) -> None:
        """Copies the values to the device; does not wait for a GPU."""
        out.copy_(self.tensor, non_blocking=True)

    def write(self, values: Tensor) -> None:
        """Copies values from the device; does not wait for a GPU."""
        self.tensor.copy_(values, non_blocking=True)

    def piece(self, begin: int, end: int) -> Tensor:
        """Returns a view."""
        return self.tensor.view(-1)[begin:end]

    def rows(self, rows: Tensor) -> Tensor:
        """As `BackingStore.rows`."""
        return self.tensor[rows]


class OnDisk(BackingStore):
    """A tensor of a file.

    Args:
        file: The file.
        entry: Where it is.
    """

    def __init__(self, file: WeightsFile, entry: Entry):
        self.file, self.entry = file, entry
        self.tensor, self.writable = file.mapped(entry), file.writable

    def read(self, out: Tensor) -> None:
        """Reads the values; those for another device than the CPU go through the host's memory."""
        if out.device.type == "cpu":
            self.file.read(self.entry.begin, out)
        else:
            out.copy_(self.whole())

    def write(self, values: Tensor) -> None:
        """Writes the values."""
        self.file.write(self.entry.begin, values.cpu())

    def piece(self, begin: int, end: int) -> Tensor:
        """Returns a copy."""
        each = self.entry.dtype.itemsize
        found = host_bytes((end - begin) * each).view(self.entry.dtype)
        self.file.read(self.entry.begin + begin * each, found)
        return found


def copies(path: Path, wanted: Mapping[str, tuple[BackingStore, torch.dtype]]) -> list[OnDisk]:
    """Writes tensors into a new safetensors file, in another dtype where that is asked for; a piece at a time.

    Args:
        path: The file; one that exists is replaced.
        wanted: By their names, the tensors and their dtypes in the file.

    Returns:
        The tensors in the file, which is writable.

    Raises:
        OffloadRefused: If the disk has no room for it.
    """
    shapes = [(name, dtype, tuple(of.tensor.shape)) for name, (of, dtype) in wanted.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    entries = _create(path, shapes)
    file, found = WeightsFile(path, writable=True), []
    for entry, (source, dtype) in zip(entries, wanted.values(), strict=True):
        count = source.tensor.numel()
        for begin in range(0, count, PIECE):
            part = source.piece(begin, min(begin + PIECE, count)).to(dtype)
            file.write(entry.begin + begin * dtype.itemsize, part)
        found.append(OnDisk(file, entry))
    return found


def _create(path: Path, shapes: Sequence[tuple[str, torch.dtype, tuple[int, ...]]]) -> list[Entry]:
    """Makes a safetensors file of these tensors, without their values; the disk has all of it."""
    entries, described, end = list[Entry](), {}, 0
    for name, dtype, shape in shapes:
        entry = Entry(dtype, shape, end)
        entries.append(entry)
        end += entry.bytes
        described[name] = {
            "dtype": NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [entry.begin, end],
        }
    header = json.dumps(described).encode()
    header += b" " * (-len(header) % 8)
    start = 8 + len(header)
    if (free := shutil.disk_usage(path.parent).free) < start + end:
        raise OffloadRefused(
            f"the copy of the weights that are trained takes {gigabytes(start + end)}, and {path.parent} has room for"
            f" {gigabytes(free)}"
        )
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.flush()
        try:
            os.posix_fallocate(file.fileno(), 0, start + end)
        except OSError as error:
            path.unlink()
            raise OSError(error.errno, error.strerror, str(path)) from None
    return [entry._replace(begin=start + entry.begin) for entry in entries]
