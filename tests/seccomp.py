"""What container runtimes do to io_uring, for a child process: a seccomp filter that refuses it."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2
RET_ERRNO = 0x00050000
RET_ALLOW = 0x7FFF0000
IO_URING_SETUP = 425  # the same number on every architecture

# struct sock_filter: code, jump if true, jump if false, operand.
LOAD_WORD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def forbid_io_uring() -> None:
    """From here on, in this process and its children, io_uring_setup is EPERM."""
    assert platform.system() == "Linux"
    steps = [
        (LOAD_WORD, 0, 0, 0),  # seccomp_data.nr
        (JUMP_EQUAL, 0, 1, IO_URING_SETUP),
        (RETURN, 0, 0, RET_ERRNO | errno.EPERM),
        (RETURN, 0, 0, RET_ALLOW),
    ]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
    program = _Program(len(steps), code)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_SECCOMP")
