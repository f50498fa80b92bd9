"""Runs one program and its tests where they can do no harm; started as a process by `sandbox`.

Three processes, each the parent of the next:

* the guard, outside: makes the namespaces and a file system of its own, watches the memory;
* the warden, process 1 inside: ends with the program, or with the time, and all others with it;
* the program: no privileges, no network, limits, and nothing but Python's library to read.

This file is no part of the editor's process and imports nothing of it: it starts in milliseconds.
"""

from __future__ import annotations

import ctypes
import errno
import marshal
import os
import signal
import sys
import time
from typing import Any, NamedTuple

if sys.platform == "linux":  # elsewhere it is only imported, never run
    import resource

    _libc = ctypes.CDLL(None, use_errno=True)

INSIDE_ID = 1000
NOBODY = 65534
FOLDER = "/tmp"
SCAN_S = 0.05
TOLD_BYTES = 4096
READY = b"+"
"""What the pipe of the program begins with: all is set up, and what follows is the program's."""
SETUP_FAILED, TOO_MUCH_MEMORY = b"!", b"M"
"""What a report begins with that tells no status."""

NEW_MOUNTS, NEW_UTS, NEW_IPC = 0x00020000, 0x04000000, 0x08000000
NEW_USERS, NEW_PIDS, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
NEW_ALL_BUT_USERS = NEW_MOUNTS | NEW_UTS | NEW_IPC | NEW_PIDS | NEW_NETWORK
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
ATTR_READ_ONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
SYS_MOUNT_SETATTR = 442  # on every architecture
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41}
CAPABILITY_VERSION_3 = 0x20080522


class Order(NamedTuple):
    """What the guard is told, as a tuple of plain values."""

    program: str
    tests: str
    nonce: bytes
    wall_s: float
    cpu_s: int
    memory_bytes: int
    processes: int
    file_bytes: int
    folder_bytes: int


def main() -> None:
    """Read an order from standard input, carry it out, report on standard output."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    order = Order(*marshal.loads(sys.stdin.buffer.read()))
    report = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    os.closerange(max(report, proc) + 1, 256)
    try:
        _enter(order, proc)
    except OSError as error:
        step = error.filename or "a step of the set-up"
        os.write(report, SETUP_FAILED + f"{error.strerror} ({step})".encode())
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    warden = os.fork()
    if warden == 0:
        os.close(proc)
        _warden(order, report)
    _guard(order, warden, proc, report)


# --- the guard: namespaces and a file system


def _enter(order: Order, proc: int) -> None:
    """Leave the machine's network, processes, users and files for ones of our own.

    Raises:
        OSError: a step is not allowed here; its `filename` names the step.
    """
    # A root that nobody is a user beside is the root of a namespace, and an ordinary user outside.
    root = os.geteuid() == 0 and _knows_nobody(proc)
    privileged = root and _libc.unshare(NEW_ALL_BUT_USERS) == 0
    if root and not privileged:
        _become_nobody()
    if not privileged:
        _own_users(proc, NEW_ALL_BUT_USERS)
    _own_files(order, NOBODY if privileged else INSIDE_ID)
    if privileged:
        _become_nobody()
        _own_users(proc, 0)


def _knows_nobody(proc: int) -> bool:
    handle = os.open("self/uid_map", os.O_RDONLY, dir_fd=proc)
    lines = os.read(handle, 65536).decode().splitlines()
    os.close(handle)
    ranges = (map(int, line.split()) for line in lines)
    return any(first <= NOBODY < first + count for first, _, count in ranges)


def _become_nobody() -> None:
    try:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError as error:
        raise OSError(error.errno, error.strerror, "becoming another user") from error
    _prctl(PR_SET_DUMPABLE, 1)  # or the files of this process in /proc would be root's


def _own_users(proc: int, others: int) -> None:
    uid, gid = os.geteuid(), os.getegid()
    _checked(_libc.unshare(NEW_USERS | others), "namespaces of a user's own")
    _write(proc, "self/setgroups", "deny")
    _write(proc, "self/uid_map", f"{INSIDE_ID} {uid} 1")
    _write(proc, "self/gid_map", f"{INSIDE_ID} {gid} 1")


def _own_files(order: Order, owner: int) -> None:
    """A root folder in memory: Python's library to read, one empty folder to write."""
    _mount("none", "/", "", MS_REC | MS_PRIVATE)
    _mount("root", FOLDER, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    os.mkdir(f"{FOLDER}/old")
    number = SYS_PIVOT_ROOT.get(os.uname().machine, -1)
    new, old = FOLDER.encode(), f"{FOLDER}/old".encode()
    _checked(_libc.syscall(number, new, old), "a root folder of its own")
    os.chdir("/")
    library = os.path.dirname(os.__file__)
    if not os.access(f"/old{library}", os.R_OK | os.X_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), f"reading {library}")
    for path in _readable():
        _show(path)
    os.mkdir(FOLDER)
    options = f"size={order.folder_bytes},nr_inodes=4096,mode=700,uid={owner},gid={owner}"
    _mount("folder", FOLDER, "tmpfs", MS_NOSUID | MS_NODEV, options)
    _checked(_libc.umount2(b"/old", MNT_DETACH), "leaving the old root folder")
    os.rmdir("/old")
    _set_attributes("/", ATTR_READ_ONLY, 0)
    os.chdir(FOLDER)


def _readable() -> list[str]:
    """What Python's own library consists of on this machine, outer folders first."""
    shared = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/nix/store"]
    python = [os.path.join(sys.base_prefix, "lib"), *filter(os.path.isabs, sys.path)]
    files = ["/etc/ld.so.cache", "/usr/share/zoneinfo", "/dev/null"]
    return sorted({os.path.normpath(path) for path in (*shared, *python, *files)})


def _show(path: str) -> None:
    """Make a file or folder of the old root folder readable at the same place in the new one."""
    source = f"/old{path}"
    if os.path.lexists(path) or not os.path.lexists(source):
        return  # lies in one that is shown already
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.islink(source):
        os.symlink(os.readlink(source), path)
        return
    if os.path.isdir(source):
        os.mkdir(path)
    else:
        os.close(os.open(path, os.O_CREAT, 0o600))
    _mount(source, path, "", MS_BIND | MS_REC)
    devices = 0 if path.startswith("/dev/") else ATTR_NODEV
    _set_attributes(path, ATTR_READ_ONLY | ATTR_NOSUID | devices, AT_RECURSIVE)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    texts = (text.encode() for text in (source, target, kind))
    _checked(_libc.mount(*texts, ctypes.c_ulong(flags), options.encode()), f"mounting {target}")


def _set_attributes(path: str, attributes: int, flags: int) -> None:
    wanted = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(wanted))
    at = ctypes.c_int(AT_FDCWD)
    done = _libc.syscall(SYS_MOUNT_SETATTR, at, path.encode(), flags, ctypes.byref(wanted), size)
    _checked(done, f"making {path} read-only")


def _write(proc: int, name: str, text: str) -> None:
    try:
        handle = os.open(name, os.O_WRONLY, dir_fd=proc)
        os.write(handle, text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"writing /proc/{name}") from error
    os.close(handle)


def _prctl(option: int, *values: int) -> int:
    return _libc.prctl(option, *map(ctypes.c_ulong, (*values, *[0] * (4 - len(values)))))


def _checked(result: int, step: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), step)


# --- the guard: while the program runs


def _guard(order: Order, warden: int, proc: int, report: int) -> None:
    """Wait for the warden; end it, and all inside with it, when they use too much memory."""
    while not _ended(warden, SCAN_S):
        if _resident_bytes(proc, os.getpid()) > order.memory_bytes:
            os.kill(warden, signal.SIGKILL)
            os.waitpid(warden, 0)
            os.write(report, TOO_MUCH_MEMORY)
            return


def _ended(pid: int, wait_s: float) -> bool:
    if os.waitpid(pid, os.WNOHANG)[0]:
        return True
    signal.sigtimedwait({signal.SIGCHLD}, wait_s)
    return bool(os.waitpid(pid, os.WNOHANG)[0])


def _resident_bytes(proc: int, ancestor: int) -> int:
    """Memory of all that descends from a process: who is an orphan inside is the warden's child."""
    listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=proc)
    try:
        names = [name for name in os.listdir(listed) if name.isdigit()]
    finally:
        os.close(listed)
    found = {int(name): _parent_and_pages(proc, name) for name in names}
    total, family = 0, {ancestor}
    for _ in range(len(found)):
        born = {pid for pid, (parent, _) in found.items() if parent in family} - family
        if not born:
            break
        total += sum(found[pid][1] for pid in born)
        family |= born
    return total * resource.getpagesize()


def _parent_and_pages(proc: int, name: str) -> tuple[int, int]:
    try:
        handle = os.open(f"{name}/stat", os.O_RDONLY, dir_fd=proc)
    except OSError:  # it is gone
        return 0, 0
    try:
        fields = os.read(handle, 4096).rpartition(b")")[2].split()
        return int(fields[1]), int(fields[21])
    except (OSError, IndexError):
        return 0, 0
    finally:
        os.close(handle)


# --- the warden


def _warden(order: Order, report: int) -> None:
    """Process 1 inside: when it ends, the kernel ends all others there, and it ends in time."""
    code = 1
    try:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        _prctl(PR_SET_DUMPABLE, 0)  # nobody inside reads its memory
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # process 1 gets only what it has handlers for
        told, tell = os.pipe()
        program = os.fork()
        if program == 0:
            os.close(report)
            os.close(told)
            _program(order, tell)
        os.close(tell)
        status = _wait_for(program, order.wall_s)
        os.set_blocking(told, False)
        os.write(report, f"{status}\n".encode() + _first_and_last_bytes(told))
        code = 0
    finally:
        os._exit(code)


def _wait_for(program: int, wall_s: float) -> int:
    """The status the program ended with; -1 when the time is over."""
    end = time.monotonic() + wall_s
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return -1
        if pid == program:
            return status
        left = end - time.monotonic()
        if left <= 0:
            return -1
        if not pid:
            signal.sigtimedwait({signal.SIGCHLD}, min(left, 1.0))


def _first_and_last_bytes(pipe: int) -> bytes:
    try:
        # Who outlived the program may go on writing: no more than a pipe holds.
        found = os.read(pipe, 1 << 20)
    except BlockingIOError:
        return b""
    return found[: len(READY)] + found[len(READY) :][-TOLD_BYTES:]


# --- the program


def _program(order: Order, tell: int) -> None:
    """Give up what is left of the privileges, run program and tests, tell the outcome."""
    exit_now, write, own = os._exit, os.write, os.getpid
    try:
        _limit(order, tell)
        _drop_privileges()
        write(3, READY)
        pid = own()
        problem = _tested(order.program, order.tests)
        if own() == pid:  # and not in a copy that the program made of itself
            write(3, order.nonce if problem is None else problem[:TOLD_BYTES])
    finally:
        exit_now(0)


def _limit(order: Order, tell: int) -> None:
    os.setsid()
    output = os.memfd_create("output")  # counts as a file: no more of it than of any other
    for fd, wanted in ((output, 1), (output, 2), (tell, 3)):
        os.dup2(fd, wanted)
    os.closerange(4, 256)
    os.environ.clear()
    os.environ.update(HOME=FOLDER, LANG="C.UTF-8")
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_CPU, (order.cpu_s, order.cpu_s + 1))  # SIGXCPU, then SIGKILL
    limits = {
        resource.RLIMIT_AS: order.memory_bytes,
        resource.RLIMIT_NPROC: order.processes + 2,  # the guard and the warden are two
        resource.RLIMIT_FSIZE: order.file_bytes,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for which, value in limits.items():
        resource.setrlimit(which, (value, value))


def _drop_privileges() -> None:
    # In a namespace where it has no name it can make no further one, in which it would have all
    # privileges again and could mount memory without a limit.
    _checked(_libc.unshare(NEW_USERS), "a namespace without a name")
    _checked(_prctl(PR_SET_NO_NEW_PRIVS, 1), "giving up new privileges")
    for capability in range(64):
        _prctl(PR_CAPBSET_DROP, capability)  # fails for those that there are not
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _checked(_libc.capset(ctypes.byref(header), ctypes.byref(nothing)), "giving up privileges")


def _tested(program: str, tests: str) -> bytes | None:
    """What went wrong in the program or its tests; None when the last line of both was reached."""
    import builtins
    import threading
    from types import ModuleType

    names = builtins.__dict__
    pristine = dict(names)
    run, translate = exec, compile
    # A name of its own, as the benchmarks' own runners give it: what stands under
    # `if __name__ == "__main__"` is not run.
    module = ModuleType("program")
    sys.modules["program"] = module
    try:
        run(translate(program, "program", "exec", 0, True), module.__dict__)
        _restore(names, pristine)
        for reset in (sys.settrace, sys.setprofile, threading.settrace, threading.setprofile):
            reset(None)  # pyright: ignore[reportArgumentType]
        module.__dict__["__builtins__"] = builtins
        run(translate(tests, "tests", "exec", 0, True), module.__dict__)
    except BaseException as error:
        _restore(names, pristine)
        return _words(error)
    return None


def _restore(changed: dict[str, Any], pristine: dict[str, Any]) -> None:
    changed.clear()
    changed.update(pristine)


def _words(error: BaseException) -> bytes:
    try:
        text = str(error).strip()
    except BaseException:
        text = ""
    name = type(error).__name__
    return (f"{name}: {text}" if text else name).encode("utf-8", "replace")


if __name__ == "__main__":
    main()
