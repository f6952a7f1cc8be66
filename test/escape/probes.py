"""Hostile probes: each tries one thing that a sandbox must not be able to do.

A probe that is refused raises OSError, which is the good case. A probe that gets
through returns what it got, which is an escape. Anything else is a broken probe.
One JSON line comes out for each: {"probe", "verdict", "detail"}.
"""

import ctypes
import errno
import json
import os
import signal
import socket
import struct
import sys

HOST = json.loads(sys.argv[1])  # what the host side prepared to be looked for
libc = ctypes.CDLL(None, use_errno=True)
probes = []


def probe(fn):
    probes.append(fn)
    return fn


def syscall(number, *args):
    """Makes a raw system call; raises OSError when it fails."""
    args = [ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    r = libc.syscall(ctypes.c_long(number), *args)
    if r == -1:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))
    return r


def blocked(why):
    raise OSError(errno.EPERM, why)


def read(path, n=4096):
    with open(path, "rb") as f:
        return f.read(n)


def write(path, data):
    with open(path, "wb", buffering=0) as f:
        return f.write(data)


def refused(what, calls):
    """Runs several variants of one attempt: all have to be refused."""
    reasons = []
    for call in calls:
        try:
            got = call()
        except OSError as e:
            reasons.append(errno.errorcode.get(e.errno, str(e)))
            continue
        return f"{what}: {got!r}"
    blocked(" ".join(reasons))


# Host files


@probe
def host_file_by_path():
    return read(HOST["secret_path"])


@probe
def host_file_above_root():
    ups = "/.." * 40
    return refused("host file", [lambda p=p: read(p + HOST["secret_path"]) for p in (ups, "/proc/1/root" + ups, "/proc/self/root" + ups, "/proc/self/cwd" + ups)])


@probe
def host_file_through_any_process():
    pids = [p for p in os.listdir("/proc") if p.isdigit()]
    tries = [lambda p=p, d=d: read(f"/proc/{p}/{d}{HOST['secret_path']}") for p in pids for d in ("root", "cwd")]
    return refused("host file", tries or [lambda: blocked("no process")])


@probe
def host_file_by_handle():
    # struct file_handle with a made-up inode of the root
    handle = ctypes.create_string_buffer(struct.pack("iiQ", 8, 1, 2), 16)
    return syscall(304, os.open("/", os.O_RDONLY), ctypes.cast(handle, ctypes.c_void_p), os.O_RDONLY)


@probe
def host_paths_in_mounts():
    text = read("/proc/self/mountinfo", 1 << 20) + read("/proc/self/mounts", 1 << 20)
    if HOST["data_dir"].encode() in text:
        return text.decode()
    blocked("no host path in it")


@probe
def write_agent_image():
    return refused("write", [lambda: write("/.ringfence/agent", b"x"), lambda: os.rename("/.ringfence/agent", "/.ringfence/x"), lambda: os.unlink("/.ringfence/agent")])


# Host processes


@probe
def host_process_listed():
    for p in os.listdir("/proc"):
        if p.isdigit():
            try:
                line = read(f"/proc/{p}/cmdline")
            except OSError:
                continue
            if HOST["marker"].encode() in line and b"probes" not in line and HOST["secret_path"].encode() not in line:
                return line.decode(errors="replace")
    blocked("not in /proc")


@probe
def host_process_signalled():
    return refused("signal", [lambda: os.kill(HOST["pid"], 0), lambda: os.kill(HOST["pid"], signal.SIGKILL), lambda: os.pidfd_open(HOST["pid"])])


@probe
def host_process_traced():
    return refused("trace", [lambda: syscall(101, 16, HOST["pid"], 0, 0), lambda: syscall(101, 0x4206, HOST["pid"], 0, 0)])


@probe
def host_process_memory():
    buf = ctypes.create_string_buffer(16)
    iov = struct.pack("PN", ctypes.addressof(buf), 16)
    return refused("memory", [lambda: read(f"/proc/{HOST['pid']}/mem"), lambda: syscall(310, HOST["pid"], iov, 1, iov, 1, 0)])


@probe
def daemon_environment():
    found = [v for v in os.environ.values() if HOST["env"] in v]
    for p in os.listdir("/proc"):
        if p.isdigit():
            try:
                if HOST["env"].encode() in read(f"/proc/{p}/environ", 1 << 20):
                    found.append(p)
            except OSError:
                continue
    return found or blocked("not there")


# The agent


@probe
def agent_listed():
    for p in os.listdir("/proc"):
        if p.isdigit():
            try:
                if read(f"/proc/{p}/cmdline").startswith(b"/.ringfence/agent\0") and os.path.exists(f"/proc/{p}/fd/0"):
                    os.readlink(f"/proc/{p}/fd/0")
                    return p
            except OSError:
                continue
    blocked("no process whose files can be seen")


@probe
def agent_pipes_written():
    return refused("pipe", [lambda n=n: write(f"/proc/1/fd/{n}", b"forged") for n in (0, 1, 2)])


@probe
def agent_traced():
    return refused("trace", [lambda: syscall(101, 16, 1, 0, 0), lambda: syscall(101, 0x4206, 1, 0, 0), lambda: read("/proc/1/mem")])


# Kernel interfaces


@probe
def sysrq():
    return refused("sysrq", [lambda: write("/proc/sysrq-trigger", b"b"), lambda: write("/proc/sys/kernel/sysrq", b"1")])


@probe
def kernel_memory():
    return refused("memory", [lambda: read("/proc/kcore"), lambda: read("/dev/mem"), lambda: read("/dev/kmem"), lambda: read("/dev/port")])


@probe
def kernel_symbols():
    text = read("/proc/kallsyms", 1 << 16)
    if any(set(line.split()[0]) - {ord("0")} for line in text.splitlines() if line.split()):
        return text[:200]
    blocked("no addresses")


@probe
def kernel_log():
    text = b""
    for get in (lambda: read("/proc/kmsg"), lambda: read("/dev/kmsg")):
        try:
            text += get()
        except OSError:
            continue
    buf = ctypes.create_string_buffer(1 << 20)
    n = libc.klogctl(3, buf, len(buf))
    text += buf.raw[: max(n, 0)]
    if HOST["kernel"].encode() in text:
        return text[:200]
    blocked("not the host's")


@probe
def kernel_settings():
    names = ("kernel/core_pattern", "kernel/modprobe", "kernel/hotplug", "vm/overcommit_memory", "vm/drop_caches", "kernel/panic", "fs/binfmt_misc/register", "kernel/randomize_va_space")
    return refused("setting", [lambda n=n: write("/proc/sys/" + n, b"1") for n in names])


@probe
def kernel_identity():
    texts = [os.uname().release, os.uname().version]
    for path in ("/proc/version", "/proc/cmdline", "/sys/devices/virtual/dmi/id/product_name", "/proc/sys/kernel/hostname"):
        try:
            texts.append(read(path).decode())
        except OSError:
            continue
    for word in (HOST["kernel"], HOST["cmdline"], HOST["product"]):
        if word and any(word in t for t in texts):
            return word
    if os.uname().nodename == HOST["hostname"]:
        return HOST["hostname"]
    blocked("none of the host's")


@probe
def sys_tree():
    paths = ("/sys/kernel/debug", "/sys/kernel/security", "/sys/firmware/efi", "/sys/power/state", "/sys/kernel/uevent_helper", "/sys/block", "/sys/bus/pci/devices", "/sys/module", "/sys/fs/bpf")
    for path in paths:
        if os.path.isdir(path) and os.listdir(path) or os.path.isfile(path):
            return path
    blocked("absent or empty")


@probe
def sys_written():
    return refused("write", [lambda: write("/sys/kernel/uevent_helper", b"/tmp/x"), lambda: write("/sys/power/state", b"mem"), lambda: os.mkdir("/sys/fs/cgroup/x")])


@probe
def modules_loaded():
    fd = os.open("/bin/sh", os.O_RDONLY)
    return refused("module", [lambda: syscall(175, b"\x7fELF", 4, b""), lambda: syscall(313, fd, b"", 0), lambda: syscall(176, b"x", 0)])


@probe
def kernel_replaced():
    return refused("kernel", [lambda: syscall(246, 0, 0, 0, 0), lambda: syscall(320, -1, -1, 0, 0, 0), lambda: syscall(169, 0xFEE1DEAD, 672274793, 0x1234567, 0)])


@probe
def kernel_programmed():
    attr = ctypes.create_string_buffer(128)
    p = ctypes.cast(attr, ctypes.c_void_p)
    return refused("interface", [lambda: syscall(321, 0, p, 72), lambda: syscall(298, p, 0, -1, -1, 0), lambda: syscall(425, 8, p), lambda: syscall(323, 0)])


@probe
def hardware_ports():
    return refused("ports", [lambda: syscall(172, 3), lambda: syscall(173, 0, 1024, 1)])


@probe
def host_clock():
    return refused("clock", [lambda: syscall(227, 0, struct.pack("qq", 1, 0)), lambda: syscall(164, struct.pack("qq", 1, 0), 0)])


@probe
def swap_and_accounting():
    return refused("call", [lambda: syscall(167, b"/etc/passwd", 0), lambda: syscall(163, b"/etc/passwd"), lambda: syscall(179, 0x800002 << 8, b"/dev/vda", 0, 0)])


# Devices


@probe
def devices_present():
    names = ("mem", "kmem", "kvm", "loop0", "loop-control", "sda", "vda", "nvme0n1", "dm-0", "uinput", "vhost-net", "vhost-vsock", "vfio/vfio", "hpet", "snapshot", "nvram")
    # /dev/fuse and /dev/net/tun are there: the sentry has its own of each.
    return refused("device", [lambda n=n: (n, os.open("/dev/" + n, os.O_RDWR)) for n in names])


@probe
def devices_made():
    def make(kind, major, minor):
        path = f"/tmp/probe-{os.getpid()}-{major}-{minor}"
        try:
            os.mknod(path, kind | 0o600, os.makedev(major, minor))
            return os.open(path, os.O_RDONLY)
        finally:
            if os.path.lexists(path):
                os.unlink(path)

    import stat

    wanted = [(stat.S_IFCHR, 1, 1), (stat.S_IFCHR, 1, 4), (stat.S_IFCHR, 10, 232), (stat.S_IFCHR, 10, 237), (stat.S_IFBLK, 7, 0), (stat.S_IFBLK, 8, 0), (stat.S_IFBLK, 254, 0), (stat.S_IFBLK, 259, 0)]
    wanted.append((stat.S_IFBLK, HOST["disk"][0], HOST["disk"][1]))
    return refused("device", [lambda w=w: make(*w) for w in wanted])


# Mounts


def mount(source, kind, data=b"", flags=0):
    os.makedirs("/tmp/probe-mount", exist_ok=True)
    return syscall(165, source, b"/tmp/probe-mount", kind, flags, data)


@probe
def host_mounted():
    disks = [b"/dev/vda", b"/dev/sda", b"/dev/vda1", b"/dev/loop0"]
    tries = [lambda d=d, k=k: mount(d, k) for d in disks for k in (b"ext4", b"xfs", b"btrfs", b"iso9660")]
    tries += [lambda k=k: mount(b"none", k) for k in (b"debugfs", b"tracefs", b"securityfs", b"bpf", b"nfs", b"hugetlbfs", b"configfs", b"binfmt_misc")]
    tries.append(lambda: mount(HOST["secret_path"].encode(), b"", flags=4096))
    return refused("mount", tries)


@probe
def sentry_files_mounted():
    # the sentry's own host files, which its internal mounts name by number
    tries = [lambda n=n: mount(b"none", b"erofs", b"ifd=%d" % n) for n in range(3, 40)]
    tries += [lambda n=n: mount(b"none", b"9p", b"trans=fd,rfdno=%d,wfdno=%d" % (n, n)) for n in range(3, 40)]
    return refused("mount", tries)


@probe
def mounted_at_all():
    return refused("mount", [lambda: mount(b"none", b"tmpfs"), lambda: mount(b"none", b"proc"), lambda: mount(b"none", b"cgroup2"), lambda: mount(b"/etc", b"", flags=4096)])


@probe
def unmounted():
    return refused("unmount", [lambda: syscall(166, b"/proc", 2), lambda: syscall(166, b"/.ringfence", 2), lambda: syscall(155, b"/", b"/tmp")])


# Network


@probe
def raw_sockets():
    wanted = [(socket.AF_INET, socket.SOCK_RAW, 1), (socket.AF_INET, socket.SOCK_RAW, 6), (socket.AF_INET, socket.SOCK_RAW, 255), (socket.AF_INET6, socket.SOCK_RAW, 58), (socket.AF_PACKET, socket.SOCK_RAW, 0x0300), (socket.AF_PACKET, socket.SOCK_DGRAM, 0x0300)]
    return refused("socket", [lambda w=w: socket.socket(*w) for w in wanted])


@probe
def host_socket_families():
    return refused("socket", [lambda f=f, t=t: socket.socket(f, t, 0) for f, t in ((40, 1), (38, 5), (44, 3), (29, 3), (16, 3 << 8))])


@probe
def interfaces():
    names = [n for _, n in socket.if_nameindex()]
    return names if sorted(names) != ["eth0", "lo"] else blocked("no link but its own to the gateway")


def connect(address, port, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(2)
        s.connect((address, port))
        return address


@probe
def host_ports():
    return refused("connection", [lambda a=a: connect(a, HOST["port"]) for a in ["127.0.0.1", "localhost", "0.0.0.0", *HOST["addresses"]]] + [lambda: connect("::1", HOST["port"], socket.AF_INET6)])


@probe
def other_addresses():
    return refused("connection", [lambda a=a: connect(a, 80) for a in ("192.0.2.1", "169.254.169.254", "10.0.0.1", "172.17.0.1")])


@probe
def host_unix_sockets():
    def dial(path):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            s.connect(path)
            return path

    return refused("socket", [lambda p=p: dial(p) for p in ("\0" + HOST["abstract"], HOST["socket_path"], HOST["control_path"])])


# The other sandbox


@probe
def other_ports():
    return refused("connection", [lambda: connect("127.0.0.1", HOST["other_port"]), lambda: connect("127.0.0.2", HOST["other_port"])])


@probe
def other_files():
    return refused("file", [lambda p=p: read(p) for p in (HOST["other_file"], "/dev/shm/other-secret", "/tmp/other-secret", HOST["other_disk"])])


@probe
def other_shared_memory():
    return refused("shared memory", [lambda: syscall(29, 4242, 0, 0), lambda: syscall(68, 4242, 0), lambda: syscall(64, 4242, 0, 0)])


@probe
def other_abstract_socket():
    def dial():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            s.connect("\0other-sandbox")
            return "connected"

    return refused("socket", [dial])


@probe
def other_processes():
    for p in os.listdir("/proc"):
        if p.isdigit():
            try:
                if b"other-holder" in read(f"/proc/{p}/cmdline"):
                    return p
            except OSError:
                continue
    blocked("not in /proc")


def run(fn):
    try:
        got = fn()
    except OSError as e:
        return "blocked", str(e)
    except Exception as e:  # a probe that does not work proves nothing
        return "broken", repr(e)
    return "ESCAPED", repr(got)


for fn in probes:
    if fn.__name__ not in HOST["run"]:
        continue
    verdict, detail = run(fn)
    print(json.dumps({"probe": fn.__name__, "verdict": verdict, "detail": detail[:300]}), flush=True)
