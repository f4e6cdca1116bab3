"""Processes that join and leave while a training goes on.

One process leads. The others connect to it by TCP and need nothing else of each other: no shared file system, and no
connection between two of them. A process that joins starts from the base weights, replays the steps made so far from
their losses, and takes part from the start of a step on. The process that leads decides alone who takes part; an
exchange that lost a process is repeated by the others, with the passes of a step divided anew.

Messages are JSON, and the record of a training as bytes. A key authenticates both sides; nothing is encrypted.
"""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Client,
    Connection,
    answer_challenge,
    deliver_challenge,
    wait,
)
from queue import Empty, SimpleQueue
from typing import Any

from zo.distributed.agreement import check_told
from zo.distributed.processes import Processes, ProcessesError, ProcessLostError

NEAR = 10
"""Steps that a process may still have to replay when it is let in; the others wait for it meanwhile."""


GREETING = 1 << 16
"""Bytes that a process may send before it takes part."""

MALFORMED = (EOFError, OSError, ValueError, KeyError, TypeError)
"""What reading a message raises where the other side ended, stopped in the middle of one or sent something else."""


class MembersChangedError(Exception):
    """A process was lost in an exchange. The exchange was not made; who is left has its new rank."""


@dataclass(frozen=True)
class Elastic:
    """Processes that may join and leave a training.

    Attributes:
        address: Host and port of the process that leads, as `10.0.0.5:29400`; the leading process listens there.
        key: Secret that all processes share.
        parts: Parts of a mini-batch, whose losses are measured apart and added in one order. It changes the order of
            a sum; the number of processes does not.
        leads: Whether this process leads. It keeps the record, and the training ends with it.
        timeout: Seconds that a process waits for another.
    """

    address: str
    key: str = field(repr=False)
    parts: int = 1
    leads: bool = False
    timeout: float = 600.0

    def __post_init__(self) -> None:
        """Checks the address.

        Raises:
            ValueError: If it is no host and port.
        """
        if not self.host or not self.address.removeprefix(f"{self.host}:").isdecimal():
            right = "must be a host and a port, as 10.0.0.5:29400"
            raise ValueError(f"elastic.address={self.address!r}: {right}")

    @property
    def host(self) -> str:
        """Host of the address."""
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        """Port of the address."""
        return int(self.address.rpartition(":")[2])


@dataclass(eq=False)
class Newcomer:
    """A process that wants to take part.

    Attributes:
        connection: To it.
        steps: That it has replayed, as it said last; None while it replays.
        behind: Steps that it lacked when it said so before.
    """

    connection: Connection
    steps: int | None = None
    behind: float = float("inf")

    def near(self, steps: int) -> bool:
        """Returns whether it has replayed nearly all of so many steps, or does not come nearer."""
        if self.steps is None:
            return False
        before, self.behind = self.behind, steps - self.steps
        return self.behind <= NEAR or self.behind >= before


class Members(Processes):
    """The processes that make the current step; who they are changes between steps."""

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """As `Processes.gather`.

        Raises:
            MembersChangedError: If a process was lost.
        """
        start = time.perf_counter()
        found = self.exchange(list(values))
        self.seconds += time.perf_counter() - start
        self.bytes += 8 * len(values) * (self.world if self.world > 1 else 0)
        return found


class Lead(Members):
    """The processes of a training, as the one that leads sees them.

    Args:
        elastic: How they find each other.
        told: Settings and code of this process, by the name that a message gives them.

    Raises:
        ProcessesError: If the port is taken.
    """

    def __init__(self, elastic: Elastic, told: Mapping[str, Any]):
        super().__init__()
        self._timeout = elastic.timeout
        self._key = elastic.key.encode()
        self._told = dict(told)
        self._peers: list[Connection] = []
        self._newcomers: list[Newcomer] = []
        self._ready: list[Newcomer] = []
        self._arrived: SimpleQueue[Connection] = SimpleQueue()
        self._steps = 0
        self._closed = threading.Event()
        try:
            self._server = socket.create_server((elastic.host, elastic.port), backlog=16)
        except OSError as error:
            raise ProcessesError(f"elastic.address={elastic.address}: {error.strerror}") from None
        threading.Thread(target=self._listen, daemon=True).start()

    def open_step(
        self, steps: int, record: Callable[[int], bytes], digests: Callable[[], list[int]]
    ) -> None:
        """Lets in who is ready, and sends the others that wait what they lack.

        Args:
            steps: That were made.
            record: Returns what the record has after so many steps.
            digests: Returns those of the weights.
        """
        self._steps = steps
        joining, self._ready = self._ready, []
        self._peers += [newcomer.connection for newcomer in joining]
        self.world = 1 + len(self._peers)
        first = self.world - len(joining)
        for i, newcomer in enumerate(joining):
            place = {"rank": first + i, "world": self.world, "digests": digests()}
            self._answer(newcomer, place, record)
        for newcomer in self._newcomers:
            if newcomer.steps is not None:
                self._answer(newcomer, {}, record)

    def exchange(self, told: Any) -> list[Any]:
        """As `Processes.exchange`, of what JSON can hold.

        Raises:
            MembersChangedError: If a process was lost.
        """
        answers, lost = self._answers()
        if lost:
            self._peers = [peer for peer in self._peers if peer not in lost]
            for peer in lost:
                peer.close()
            self.world = 1 + len(self._peers)
            for rank, peer in enumerate(self._peers, start=1):
                _send(peer, {"rank": rank, "world": self.world})
            raise MembersChangedError
        self._hear_newcomers()
        found = [told, *(answers[peer] for peer in self._peers)]
        for peer in self._peers:
            _send(peer, {"all": found, "world": self.world + len(self._ready)})
        return found

    def close(self) -> None:
        """Ends the training."""
        self._closed.set()
        with suppress(OSError):  # closed before
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for connection in (*self._peers, *(n.connection for n in self._newcomers + self._ready)):
            connection.close()

    def _answers(self) -> tuple[dict[Connection, Any], list[Connection]]:
        """Returns what each other process tells, and the processes that ended or did not answer in time."""
        answers: dict[Connection, Any] = {}
        lost: list[Connection] = []
        deadline = time.monotonic() + self._timeout
        while silent := [p for p in self._peers if p not in answers and p not in lost]:
            heard = wait(silent, max(0.0, deadline - time.monotonic()))
            for peer in [p for p in silent if p in heard] or silent:
                try:
                    if not heard:
                        raise TimeoutError
                    answers[peer] = json.loads(peer.recv_bytes())
                except MALFORMED:
                    lost.append(peer)
        return answers, lost

    def _hear_newcomers(self) -> None:
        """Notes who has come, and who is ready for the next step."""
        while True:
            try:
                self._newcomers.append(Newcomer(self._arrived.get_nowait()))
            except Empty:
                break
        for newcomer in list(self._newcomers):
            try:
                if newcomer.steps is None and newcomer.connection.poll():
                    steps = json.loads(newcomer.connection.recv_bytes(GREETING))["steps"]
                    if type(steps) is not int or not 0 <= steps <= self._steps:
                        raise ValueError
                    newcomer.steps = steps
                    if newcomer.near(self._steps):
                        self._newcomers.remove(newcomer)
                        self._ready.append(newcomer)
            except MALFORMED:
                self._newcomers.remove(newcomer)
                newcomer.connection.close()

    def _answer(
        self, newcomer: Newcomer, place: dict[str, Any], record: Callable[[int], bytes]
    ) -> None:
        """Sends a newcomer its place and what it lacks, in a thread of its own: it may stop reading."""
        assert newcomer.steps is not None
        messages, newcomer.steps = [{"told": self._told, **place}, record(newcomer.steps)], None

        def send() -> None:
            for message in messages:
                _send(newcomer.connection, message)

        threading.Thread(target=send, daemon=True).start()

    def _listen(self) -> None:
        """Greets every process that connects, each in a thread of its own."""
        while True:
            try:
                connected, _ = self._server.accept()
            except OSError:  # closed, or for now there are no more descriptors
                if self._closed.wait(0.2):
                    return
                continue
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            seconds = struct.pack("ll", max(1, int(self._timeout)), 0)
            for direction in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                connected.setsockopt(socket.SOL_SOCKET, direction, seconds)
            greeting = (Connection(connected.detach()),)
            threading.Thread(target=self._greet, args=greeting, daemon=True).start()

    def _greet(self, connection: Connection) -> None:
        try:
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
        except (AuthenticationError, EOFError, OSError):
            connection.close()
        else:
            self._arrived.put(connection)


class Follower(Members):
    """The processes of a training, as one sees them that joins.

    Args:
        elastic: How they find each other.
        told: Settings and code of this process.
        replay: Makes the steps of a piece of the record; returns the steps made by then.
        digests: Returns those of the weights.

    Raises:
        ProcessesError: If settings, code or weights are others, or the key is.
        ProcessLostError: If the process that leads is not there, or ended.
    """

    def __init__(
        self,
        elastic: Elastic,
        told: Mapping[str, Any],
        replay: Callable[[bytes], int],
        digests: Callable[[], list[int]],
    ):
        super().__init__()
        self._timeout = 2 * elastic.timeout  # the lead itself waits that long once for others
        self._address = elastic.address
        self._connection = _connect(elastic)
        try:
            mine, steps = json.loads(json.dumps(dict(told))), 0
            place: dict[str, Any] = {}
            while not place:
                _send(self._connection, {"steps": steps})
                place = self._receive()
                check_told("this process", place.pop("told"), mine, "give all processes the same")
                steps = replay(self._connection.recv_bytes())
            if place["digests"] != digests():
                raise ProcessesError(
                    f"step {steps}: replayed weights differ from those of {elastic.address}; this machine rounds"
                    " differently or its memory fails"
                )
        except BaseException:
            self.close()
            raise
        self.rank, self._next = place["rank"], place["world"]

    def open_step(
        self, steps: int, record: Callable[[int], bytes], digests: Callable[[], list[int]]
    ) -> None:
        """Counts who takes part from this step on."""
        self.world = self._next

    def exchange(self, told: Any) -> list[Any]:
        """As `Lead.exchange`."""
        _send(self._connection, told)
        answer = self._receive()
        if "rank" in answer:
            self.rank, self.world = answer["rank"], answer["world"]
            raise MembersChangedError
        self._next = answer["world"]
        found: list[Any] = answer["all"]
        return found

    def close(self) -> None:
        """Leaves the training, which goes on."""
        self._connection.close()

    def _receive(self) -> Any:
        try:
            if not self._connection.poll(self._timeout):
                raise TimeoutError
            return json.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            why = "the process that leads ended, or this one left the training or was too slow"
            raise ProcessLostError(f"{self._address}: {why}") from error


def _send(connection: Connection, told: Any) -> None:
    """Sends a message; an end of the other side is seen where its answer is awaited."""
    try:
        connection.send_bytes(told if isinstance(told, bytes) else json.dumps(told).encode())
    except OSError:
        connection.close()  # a part of the message may be there


def _connect(elastic: Elastic) -> Connection:
    """Returns a connection to the process that leads, once it listens."""
    deadline = time.monotonic() + elastic.timeout
    while True:
        try:
            return Client((elastic.host, elastic.port), authkey=elastic.key.encode())
        except AuthenticationError:
            raise ProcessesError(
                f"elastic.key: not that of the process at {elastic.address}"
            ) from None
        except OSError as error:
            if time.monotonic() > deadline:
                why = error.strerror or error
                raise ProcessLostError(f"elastic.address={elastic.address}: {why}") from None
            time.sleep(0.2)
