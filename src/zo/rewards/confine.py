"""The sandbox of a grader's process, as far as the kernel permits it without privileges.

`enter` moves the process into new namespaces of users, processes and shared memory. It then has no access to other
processes, and its end ends its child processes. `confine` forbids new privileges, sockets (seccomp), and writing
outside of the scratch directory (Landlock). `limit` limits memory. Reading is not limited.
"""

import ctypes
import errno
import glob
import os
import platform
import resource
import signal
import struct
import sys
from contextlib import suppress
from typing import Any

NEW_USER, NEW_PID, NEW_IPC = 0x10000000, 0x20000000, 0x08000000
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38
CAPABILITIES_3 = 0x20080522
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
"""Numbers of system calls, the same on all architectures."""

O_PATH = 0o10000000
WRITING = 0b_0001_1111_1111_0010
"""Landlock's rights that change files: write, remove and make in all kinds."""

REFER, TRUNCATE = 1 << 13, 1 << 14
TCP = 0b11
SCOPES = 0b11  # Blocks signals to outside processes, and their abstract sockets

WRITABLE = (
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/shm",
    "/dev/nvidia*",
    "/dev/dri",
    "/dev/kfd",
)
"""Paths that a grader may write to besides its scratch directory; GPUs are opened for writing."""

MOST_PROCESSES = 256
MOST_FILE_GIB = 1
GIB = 2**30

SOCKET = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""Machine -> its seccomp number, and the number of the system call `socket`."""

IO_URING = 425  # Number of the system call that can make sockets without `socket`
OTHER_CALLS = 0x40000000  # First number of x86-64's other calling convention (x32)
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06  # Instructions of a seccomp filter
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM

_libc: Any = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args: Any) -> int:
    """Calls a function of the C library and returns its result; -1 if it does not exist, as on macOS."""
    function = getattr(_libc, name, None)
    return -1 if function is None else int(function(*args))


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Makes the kernel send a signal to this process when its parent's thread ends; ends it if that has happened."""
    _call("prctl", PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() not in (parent, 0):  # 0: the parent is outside of the namespace
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of its descendants' orphans."""
    _call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def enter() -> bool:
    """Moves this process into new namespaces, of processes from its next child on; whether the kernel permits it."""
    user, group = os.getuid(), os.getgid()
    if _call("unshare", NEW_USER | NEW_PID | NEW_IPC) != 0:
        return False
    with suppress(OSError):  # its files then belong to nobody
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:
                file.write(text)
    return True


def limit(memory_gib: float, namespaces: bool) -> None:
    """Limits data memory per process, file size and, within namespaces, the number of processes."""
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


def confine(scratch: str, namespaces: bool) -> dict[str, bool]:
    """Drops privileges, those in `namespaces`, too, and blocks sockets and writing outside of `scratch`.

    Returns which barriers are in force: `processes`, `network`, `files`.
    """
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if namespaces:
        _call("capset", struct.pack("Ii", CAPABILITIES_3, 0), bytes(24))
    files = _restrict_writing(scratch)
    return {"processes": namespaces, "network": _refuse_sockets(), "files": files}


def _refuse_sockets() -> bool:
    """Blocks sockets by seccomp; returns whether the kernel does it."""
    if sys.platform != "linux" or platform.machine() not in SOCKET:
        return False
    machine, socket = SOCKET[platform.machine()]
    program = (
        (LOAD, 0, 0, 4),  # of which machine the call is
        (EQUAL, 0, 4, machine),
        (LOAD, 0, 0, 0),  # its number
        (AT_LEAST, 2, 0, OTHER_CALLS),
        (EQUAL, 1, 0, socket),
        (EQUAL, 0, 1, IO_URING),
        (RETURN, 0, 0, REFUSE),
        (RETURN, 0, 0, ALLOW),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    filtering = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    return _call("prctl", PR_SET_SECCOMP, 2, filtering, 0, 0) == 0


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
