"""Keys and numbers of a run file's history and summary records, all records at once.

A run file holds one history and one summary record per step, and in each one item per key, so that a run of
20,000 steps has 600,000 of them: taken one by one from protobuf objects they cost a second, as arrays a fifth
of it. This knows just one layout of a record, W&B's usual one, and checks it byte by byte. A record that looks
different in any way is named in `Items.others`, to be read by the protobuf library.

    record   08 <number> <12: history, 1a: summary> <length> payload
    payload  item* [12 <length> <step>]              the step only in history
    item     0a <length> <0a or 12> <length> key 82 01 <length> value
"""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

HISTORY, SUMMARY = 0x12, 0x1A
NUMBER, ITEM, KEY, NESTED_KEY, STEP, VALUE = 0x08, 0x0A, 0x0A, 0x12, 0x12, (0x82, 0x01)
LONG = 0x80  # the bit by which a length goes on in the next byte
MOST_LENGTH_BYTES = 5

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Items:
    """The items of all history and summary records that have the usual layout."""

    record: Ints  # for each item, the index of its record; rising
    key: Ints  # for each item, its key, an index of `keys`
    keys: list[str]  # the different keys
    data: NDArray[np.uint8]  # what the next two point into
    start: Ints  # for each item, where its value begins
    end: Ints  # for each item, where its value ends
    others: Ints  # indices of the records with another layout, none of whose items is here; rising

    def of(self, chosen: NDArray[np.bool_]) -> "Items":
        """Some of the items."""
        return replace(
            self,
            record=self.record[chosen],
            key=self.key[chosen],
            start=self.start[chosen],
            end=self.end[chosen],
        )

    def numbers(self) -> NDArray[np.float64]:
        """The values as float64, NaN and infinities too.

        Raises:
            ValueError: one of them is no number.
        """
        bounds = np.empty(2 * len(self.start) + 1, dtype=np.int64)
        bounds[0:-1:2], bounds[1::2], bounds[-1] = self.start, self.end, len(self.data)
        texts = pa.LargeStringArray.from_buffers(
            2 * len(self.start), pa.py_buffer(bounds), pa.py_buffer(self.data)
        )
        values = texts.take(pa.array(np.arange(0, len(texts), 2)))
        return np.asarray(pc.cast(values, pa.float64()))  # ArrowInvalid is a ValueError

    def text(self, item: int) -> str:
        """The value of one item as JSON."""
        return bytes(self.data[self.start[item] : self.end[item]]).decode()


def kinds_and_payloads(data: NDArray[np.uint8], starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """The field number byte of each record, 0 for another layout, and where its payload begins."""
    if not len(starts):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    last = len(data) - 1
    _, at = _varint(data, starts + 1)
    kind = data[np.minimum(at, last)].astype(np.int64)
    length, payload = _varint(data, at + 1)
    usual = (data[np.minimum(starts, last)] == NUMBER) & (payload + length == ends)
    usual &= (kind == HISTORY) | (kind == SUMMARY)
    return np.where(usual, kind, 0), payload


def items(data: NDArray[np.uint8], indices: Ints, payloads: Ints, ends: Ints) -> Items:
    """The items of some records.

    Args:
        data: the bodies of all records of a file, one after the other.
        indices: what `Items.record` shall say of each record.
        payloads: where their payloads begin, rising.
        ends: where they end.
    """
    marks = np.flatnonzero((data[:-1] == VALUE[0]) & (data[1:] == VALUE[1])).astype(np.int64)
    if not len(payloads) or not len(marks):
        nothing = np.zeros(0, np.int64)
        return Items(nothing, nothing, [], data, nothing, nothing, others=indices)
    owner = np.searchsorted(payloads, marks, side="right") - 1
    inside = (owner >= 0) & (marks < ends[owner])
    marks, owner = marks[inside], owner[inside]
    padded = np.concatenate([data, np.zeros(256, np.uint8)])  # so that any length can be followed
    value_end = marks + 3 + padded[marks + 2]
    first = np.diff(owner, prepend=-1) != 0
    start = np.where(first, payloads[owner], np.roll(value_end, 1))
    final = np.diff(owner, append=-1) != 0
    good = _usual(padded, start, marks, value_end)
    good &= ~final | _ends_well(padded, value_end, ends[owner])
    bad = np.ones(len(payloads), dtype=bool)  # also a record without items
    bad[owner] = False
    bad[owner[~good]] = True
    keep = ~bad[owner]
    key, keys = _keys(padded, start[keep] + 4, marks[keep])
    return Items(
        record=indices[owner[keep]],
        key=key,
        keys=keys,
        data=data,
        start=marks[keep] + 3,
        end=value_end[keep],
        others=indices[bad],
    )


def _usual(data: NDArray[np.uint8], start: Ints, mark: Ints, end: Ints) -> NDArray[np.bool_]:
    """Whether each item is laid out as the module says, from its first byte to its last."""
    length, tag, key_length = data[start + 1], data[start + 2], data[start + 3]
    good = (data[start] == ITEM) & (length < LONG) & (start + 2 + length == end)
    good &= ((tag == KEY) | (tag == NESTED_KEY)) & (key_length > 0) & (key_length < LONG)
    good &= (start + 4 + key_length == mark) & (data[mark + 2] < LONG)
    return np.asarray(good)


def _ends_well(data: NDArray[np.uint8], end: Ints, record_end: Ints) -> NDArray[np.bool_]:
    """Whether nothing, or nothing but the step, follows a record's last item."""
    step = (data[end] == STEP) & (end + 2 + data[end + 1] == record_end)
    return np.asarray((end == record_end) | step)


def _keys(data: NDArray[np.uint8], start: Ints, end: Ints) -> tuple[Ints, list[str]]:
    """The different keys, and which of them each item has."""
    code = np.zeros(len(start), dtype=np.int64)
    keys: list[str] = []
    lengths = end - start
    for length in np.flatnonzero(np.bincount(lengths)).tolist():
        which = np.flatnonzero(lengths == length)
        texts = sliding_window_view(data, length)[start[which]].view(f"S{length}").ravel()
        while len(which):  # one round per key of this length
            same = texts == texts[0]
            code[which[same]] = len(keys)
            keys.append(bytes(texts[0]).decode())
            which, texts = which[~same], texts[~same]
    return code, keys


def _varint(data: NDArray[np.uint8], at: Ints) -> tuple[Ints, Ints]:
    """The numbers that begin at these places, and the places behind them."""
    value, last = np.zeros(len(at), np.int64), len(data) - 1
    going, at = np.ones(len(at), dtype=bool), at.copy()
    for i in range(MOST_LENGTH_BYTES):
        byte = data[np.minimum(at, last)].astype(np.int64)
        value += np.where(going, (byte & 0x7F) << (7 * i), 0)
        at += going
        going &= (byte & LONG) != 0
    return value, at
