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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import c_int, c_long, c_size_t, c_void_p
from pathlib import Path
from typing import Any, BinaryIO

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
        self._mapped: Any = None
        try:
            with self._open() as file:
                self._stamp = self._stamp_of(file)
        except OSError as error:
            raise OffloadError(f"{path}: {error.strerror}") from None

    def _open(self) -> BinaryIO:
        return self.path.open("r+b") if self.writable else self.path.open("rb")

    def _stamp_of(self, file: BinaryIO) -> tuple[int, ...]:
        found = os.fstat(file.fileno())
        same = found.st_size, found.st_dev, found.st_ino
        return same if self.writable else (*same, found.st_mtime_ns)

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Opens the file.

        Raises:
            OffloadError: If it was removed or changed since the first time.
        """
        try:
            file = self._open()
        except OSError as error:
            raise OffloadError(
                f"{self.path}: removed while its weights were in use ({error.strerror})"
            ) from None
        with file:
            if self._stamp_of(file) != self._stamp:
                raise OffloadError(f"{self.path}: changed while its weights were in use")
            yield file

    def tensors(self) -> dict[str, OnDisk]:
        """Returns the tensors of a safetensors file, those of other dtypes than weights have left out.

        Raises:
            OffloadError: If it is no safetensors file.
        """
        try:
            with self.opened() as file:
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            return {
                name: OnDisk(
                    self, 8 + length + of["data_offsets"][0], DTYPES[of["dtype"]], of["shape"]
                )
                for name, of in header.items()
                if of["dtype"] in DTYPES
            }
        except (ValueError, KeyError, TypeError, OverflowError, OSError) as error:
            raise OffloadError(f"{self.path}: is no safetensors file ({error})") from None

    def read(self, *parts: tuple[int, Tensor]) -> None:
        """Fills contiguous tensors of the host, each from a byte on.

        Raises:
            OffloadError: If the file cannot be read, or ends before.
        """
        try:
            with self.opened() as file:
                for begin, out in parts:
                    file.seek(begin)
                    if file.readinto(_bytes_of(out)) < out.nbytes:  # type: ignore[attr-defined]
                        raise OffloadError(f"{self.path}: cut off while its weights were in use")
        except OSError as error:
            raise OffloadError(f"{self.path}: {error.strerror}") from None

    def write(self, begin: int, values: Tensor) -> None:
        """Writes a contiguous tensor of the host from a byte on.

        Raises:
            OffloadError: If the file was removed or changed.
            OSError: If the disk does not take it.
        """
        try:
            with self.opened() as file:
                file.seek(begin)
                file.write(_bytes_of(values))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None

    def mapped(self, begin: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
        """Returns a tensor of the file, memory-mapped; writing to it changes a writable file, and no other."""
        count = math.prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype, device="cpu")
        if self._mapped is None:
            kind = mmap.MAP_SHARED if self.writable else mmap.MAP_PRIVATE | NO_RESERVE
            with self.opened() as file:
                self._mapped = _mapped(file.fileno(), self._stamp[0], kind)
        # Each tensor has a storage of its own.
        return torch.frombuffer(self._mapped, dtype=dtype, count=count, offset=begin).view(shape)


def _mapped(descriptor: int, size: int, kind: int) -> Any:
    """Returns the bytes of an open file, memory-mapped.

    Python's own mmap keeps a descriptor, and torch's reserves memory for the whole of a file that is not written.

    Raises:
        OSError: If the system does not map it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.argtypes = [c_void_p, c_size_t, c_int, c_int, c_int, c_long]
    libc.mmap.restype, libc.munmap.argtypes = c_void_p, [c_void_p, c_size_t]
    address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, kind, descriptor, 0)
    if address in (None, c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    found = (ctypes.c_char * size).from_address(address)
    unmapping = weakref.finalize(found, libc.munmap, address, size)
    unmapping.atexit = False  # tensors may outlive the others
    return found


def _bytes_of(t: Tensor) -> Any:
    return t.detach().view(-1).view(torch.uint8).numpy()


class BackingStore:
    """The values of an offloaded tensor, in the host's memory.

    Attributes:
        tensor: The values, of a file memory-mapped.
        writable: Whether updates may write it; False for files of others.
    """

    writable = True

    def __init__(self, tensor: Tensor):
        self.tensor = tensor

    def pin(self) -> None:
        """Locks the memory, so that a GPU's transfers need not wait for it."""
        if self.tensor.numel():
            runtime, address = torch.cuda.cudart(), self.tensor.data_ptr()
            torch.cuda.check_error(runtime.cudaHostRegister(address, self.tensor.nbytes, 0))
            weakref.finalize(self, runtime.cudaHostUnregister, address)

    def read(self, out: Tensor) -> None:
        """Copies the values to the device; does not wait for a GPU."""
        out.copy_(self.tensor, non_blocking=True)

    def write(self, values: Tensor) -> None:
        """Copies values from the device; does not wait for a GPU."""
        self.tensor.copy_(values, non_blocking=True)

    def piece(self, begin: int, end: int) -> Tensor:
        """Returns values in the host's memory, (end − begin,), by their flat positions."""
        return self.tensor.view(-1)[begin:end]

    def rows(self, rows: Tensor) -> Tensor:
        """Returns rows of a matrix in the host's memory, by their indices, (r,)."""
        return self.tensor[rows]

    def whole(self) -> Tensor:
        """Returns the tensor in the host's memory."""
        return self.piece(0, self.tensor.numel()).view(self.tensor.shape)

    def pieces(self) -> Iterator[Tensor]:
        """Yields the flat values, a piece at a time in the host's memory; of a file nothing stays mapped."""
        count = self.tensor.numel()
        for begin in range(0, count, PIECE):
            yield self.piece(begin, min(begin + PIECE, count))

    def entries(self, index: Tensor) -> Tensor:
        """Returns values in the host's memory by their flat positions, (n,)."""
        found, begin = self.tensor.new_empty(len(index)), 0
        for piece in self.pieces():
            inside = (index >= begin) & (index < begin + len(piece))
            found[inside] = piece[index[inside] - begin]
            begin += len(piece)
        return found


class OnDisk(BackingStore):
    """A tensor of a file.

    Args:
        file: The file.
        begin: Byte at which its values begin.
        dtype: Of the file.
        shape: Of the tensor.
    """

    def __init__(self, file: WeightsFile, begin: int, dtype: torch.dtype, shape: Sequence[int]):
        super().__init__(file.mapped(begin, dtype, shape))
        self.file, self.writable, self._begin = file, file.writable, begin

    def _byte(self, position: int) -> int:
        return self._begin + position * self.tensor.element_size()

    def read(self, out: Tensor) -> None:
        """Reads the values; those for another device than the CPU go through the host's memory."""
        if out.device.type == "cpu":
            self.file.read((self._begin, out))
        else:
            out.copy_(self.whole())

    def write(self, values: Tensor, position: int = 0) -> None:
        """Writes values, from a flat position on."""
        self.file.write(self._byte(position), values.cpu())

    def piece(self, begin: int, end: int) -> Tensor:
        """Returns a copy."""
        found = host_bytes(self._byte(end) - self._byte(begin)).view(self.tensor.dtype)
        self.file.read((self._byte(begin), found))
        return found

    def rows(self, rows: Tensor) -> Tensor:
        """Returns a copy; reads no other rows."""
        width = self.tensor.shape[1]
        found = self.tensor.new_empty(len(rows), width)
        begins = [self._byte(row * width) for row in rows.tolist()]
        self.file.read(*zip(begins, found, strict=True))
        return found


def copies(path: Path, wanted: Mapping[str, tuple[BackingStore, torch.dtype]]) -> dict[str, OnDisk]:
    """Writes tensors into a new safetensors file, in another dtype where that is asked for; a piece at a time.

    Args:
        path: The file; one that exists is replaced.
        wanted: By their names, the tensors and their dtypes in the file.

    Returns:
        The tensors in the file, which is writable.

    Raises:
        OffloadRefused: If the disk has no room for it.
    """
    described, end = {}, 0
    for name, (of, dtype) in wanted.items():
        begin, end = end, end + of.tensor.numel() * dtype.itemsize
        offsets, shape = [begin, end], [*of.tensor.shape]
        described[name] = {"dtype": NAMES[dtype], "shape": shape, "data_offsets": offsets}
    _create(path, json.dumps(described).encode(), end)
    found = WeightsFile(path, writable=True).tensors()
    for name, (of, dtype) in wanted.items():
        position = 0
        for piece in of.pieces():
            found[name].write(piece.to(dtype), position)
            position += len(piece)
    return found


def _create(path: Path, header: bytes, size: int) -> None:
    """Makes a safetensors file for values of so many bytes; the disk has all of it."""
    header += b" " * (-len(header) % 8)
    size += 8 + len(header)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if (free := shutil.disk_usage(path.parent).free) < size:
        raise OffloadRefused(
            f"the copy of the weights that are trained takes {gigabytes(size)}, and {path.parent} has room for"
            f" {gigabytes(free)}"
        )
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.flush()
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            path.unlink()
            raise OSError(error.errno, error.strerror, str(path)) from None
