"""Barriers around a grader's process, those that the kernel permits without privileges.

`enter` moves the process into namespaces of its own: a user, processes, a network without devices, and shared memory.
Ending the process then ends all that it started. `confine` then limits memory, forbids new privileges, and permits
writing in the scratch directory alone (Landlock). Reading is not limited.

Where the kernel has no network namespace, sockets are refused by an audit hook. That is none to hostile code: it can
call the system by ctypes.
"""

import ctypes
import glob
import os
import resource
import signal
import struct
import sys
from contextlib import suppress
from typing import Any

NEW_USER, NEW_PID, NEW_NET, NEW_IPC = 0x10000000, 0x20000000, 0x40000000, 0x08000000
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
CAPABILITIES_3 = 0x20080522
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
"""Numbers of system calls, the same on all architectures."""

O_PATH = 0o10000000
WRITING = 0b_0001_1111_1111_0010
"""Landlock's rights that change files: write, remove and make in all kinds."""

REFER, TRUNCATE = 1 << 13, 1 << 14
TCP = 0b11
SCOPES = 0b11
"""No signals to, and no abstract sockets of, processes outside."""

WRITABLE = (
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/shm",
    "/dev/nvidia*",
    "/dev/dri",
    "/dev/kfd",
)
"""What a grader may write to besides its scratch directory, where it is there: a GPU is opened for writing."""

MOST_PROCESSES = 256
MOST_FILE_GIB = 1
GIB = 2**30

SOCKETS = frozenset(
    f"socket.{call}"
    for call in ("bind", "connect", "getaddrinfo", "gethostbyname", "sendmsg", "sendto")
)

_libc: Any = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args: Any) -> int:
    """Returns what a function of the C library does; -1 where there is none, as on macOS."""
    function = getattr(_libc, name, None)
    return -1 if function is None else int(function(*args))


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process as soon as its parent ends; ends it if that has happened already."""
    _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() not in (parent, 0):  # 0: the parent is outside of the namespace
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of what its descendants leave behind."""
    _call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def enter() -> bool:
    """Moves this process into namespaces of its own, of processes from its next child on.

    Returns:
        Whether the kernel permitted it.
    """
    user, group = os.getuid(), os.getgid()
    if _call("unshare", NEW_USER | NEW_PID | NEW_NET | NEW_IPC) != 0:
        return False
    with suppress(OSError):  # its files then belong to nobody
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    return True


def limit(memory_gib: float, namespaces: bool) -> None:
    """Limits the memory that each process may write to, the size of a file and, within namespaces, processes."""
    memory = int(memory_gib * GIB)
    limits = {
        resource.RLIMIT_DATA: memory,
        resource.RLIMIT_FSIZE: MOST_FILE_GIB * GIB,
        resource.RLIMIT_CORE: 0,
    }
    if namespaces:  # outside, it would count all processes of the user
        limits[resource.RLIMIT_NPROC] = MOST_PROCESSES
    for kind, most in limits.items():
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))


def confine(scratch: str, namespaces: bool) -> bool:
    """Gives up privileges, and refuses writing outside of the scratch directory, and sockets.

    Args:
        scratch: Directory that stays writable.
        namespaces: Whether the process has a network of its own, so that sockets need no other refusal.

    Returns:
        Whether the kernel refuses writing elsewhere.
    """
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if namespaces:  # those of the namespace's own user
        header, nothing = struct.pack("Ii", CAPABILITIES_3, 0), bytes(24)
        _call("capset", header, nothing)
    else:
        sys.addaudithook(_refuse_sockets)
    return _restrict_writing(scratch)


def _restrict_writing(scratch: str) -> bool:
    """Restricts this process and its descendants by Landlock; returns whether the kernel has it."""
    if sys.platform != "linux":
        return False
    version = _call("syscall", LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    if version < 1:
        return False
    rights = WRITING | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    handled = [rights, TCP, SCOPES]
    known = 1 + (version >= 4) + (version >= 6)
    attributes = struct.pack(f"{known}Q", *handled[:known])
    size = ctypes.c_size_t(len(attributes))
    rules = _call("syscall", LANDLOCK_CREATE, attributes, size, ctypes.c_uint(0))
    if rules < 0:
        return False
    try:
        for path in (scratch, *(p for pattern in WRITABLE for p in glob.glob(pattern))):
            _permit(rules, path, rights)
        return _call("syscall", LANDLOCK_RESTRICT, rules, ctypes.c_uint(0)) == 0
    finally:
        os.close(rules)


def _permit(rules: int, path: str, rights: int) -> None:
    """Adds a rule that permits writing at and below a path."""
    if not os.path.isdir(path):
        rights &= 0b10 | TRUNCATE
    with suppress(OSError):
        at = os.open(path, O_PATH | os.O_CLOEXEC)
        try:
            rule = struct.pack("=Qi", rights, at)
            _call("syscall", LANDLOCK_ADD, rules, ctypes.c_int(1), rule, ctypes.c_uint(0))
        finally:
            os.close(at)


def _refuse_sockets(event: str, args: tuple[Any, ...]) -> None:
    """An audit hook."""
    if event in SOCKETS:
        raise PermissionError(
            f"{event}: a grader has no network; objective.sandbox=false permits it"
        )
