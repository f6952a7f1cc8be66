"""Runs attempts to reach something, in a sandbox: a JSON list of lists on stdin, a JSON list of outcomes on stdout."""

import errno
import fcntl
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

LIMIT = 4


def connect(address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    s = socket.socket(family, socket.SOCK_STREAM)
    s.settimeout(LIMIT)
    s.connect((address, port))
    return s


def rest(s):
    data = b""
    while True:
        part = s.recv(65536)
        if not part:
            return data
        data += part


def tcp(address, port, send="hello\n"):
    with connect(address, port) as s:
        s.sendall(send.encode())
        return s.recv(4096).decode()


def half_close(address, port):
    with connect(address, port) as s:
        s.sendall(b"last words")
        s.shutdown(socket.SHUT_WR)
        return rest(s).decode()


def http(address, port, *hosts):
    """One connection, one request per host; the statuses, and the body of the last."""
    statuses = []
    body = b""
    with connect(address, port) as s:
        for host in hosts:
            s.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            head = b""
            while b"\r\n\r\n" not in head:
                part = s.recv(65536)
                if not part:
                    return " ".join([*statuses, "closed"])
                head += part
            head, body = head.split(b"\r\n\r\n", 1)
            length = int(next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")).split(b":")[1])
            while len(body) < length:
                body += s.recv(65536)
            statuses.append(head.split()[1].decode())
    return " ".join([*statuses, body.decode().strip()])


def raw(address, port, text):
    with connect(address, port) as s:
        s.sendall(text.encode())
        return s.recv(65536).decode().split("\r\n")[0]


def websocket(address, port, host):
    with connect(address, port) as s:
        s.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n".encode())
        head = s.recv(4096)
        if b" 101 " not in head:
            return head.split(b"\r\n")[0].decode()
        s.sendall(b"a frame")
        return s.recv(4096).decode()


def tls(address, port, name):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with connect(address, port) as s, context.wrap_socket(s, server_hostname=name or None) as t:
        t.sendall(f"GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
        return t.recv(65536).decode().split("\r\n")[0]


def url(address):
    context = ssl.create_default_context(cafile="/tmp/ca.pem")
    with urllib.request.urlopen(address, timeout=LIMIT, context=context) as answer:
        return answer.read().decode().strip()


def udp(address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.settimeout(LIMIT)
        s.connect((address, port))
        s.send(b"hello")
        return s.recv(4096).decode()


def query(name, kind, identity=7):
    labels = b"".join(struct.pack("B", len(p)) + p.encode() for p in name.rstrip(".").split("."))
    return struct.pack(">HHHHHH", identity, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


def rcode(reply):
    names = {0: "NOERROR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"}
    return f"{names[reply[3] & 15]} {struct.unpack('>H', reply[6:8])[0]}"


def dns(server, name, kind=1):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(LIMIT)
        s.connect((server, 53))
        s.send(query(name, kind))
        return rcode(s.recv(4096))


def dns_tcp(server, name, kind=1):
    with connect(server, 53) as s:
        q = query(name, kind)
        s.sendall(struct.pack(">H", len(q)) + q)
        reply = s.recv(4096)
        return rcode(reply[2:])


def resolve(name):
    return " ".join(sorted({a[4][0] for a in socket.getaddrinfo(name, 80, type=socket.SOCK_STREAM)}))


def ping(address):
    p = subprocess.run(["ping", "-n", "-c1", "-W2", address], capture_output=True, text=True)
    text = p.stdout + p.stderr
    for word in ("Packet filtered", "Administratively prohibited", "prohibited", "unreachable", "Permission"):
        if word in text:
            return "prohibited"
    return "answered" if p.returncode == 0 else f"silent: {text}"


def shell(command):
    p = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=100)
    return (p.stdout + p.stderr).strip()[-300:]


def open_socket(family, kind, protocol):
    socket.socket(getattr(socket, family), getattr(socket, kind), protocol).close()
    return "opened"


def multicast(address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.settimeout(0.5)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        s.sendto(b"hello", (address, port))
        return s.recv(100).decode()


def netlink(what):
    """Asks the kernel to change the sandbox's own network; the error that it answers."""
    index = socket.if_nametoindex("eth0")

    def attribute(kind, value):
        return struct.pack("HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)

    address, mac = socket.inet_aton("203.0.113.99"), bytes.fromhex("020000000009")
    link = struct.pack("BxHiII", 0, 0, index, 0, 1)
    kind, body = {
        "down": (16, link),
        "mac": (16, link + attribute(1, mac)),
        "address": (20, struct.pack("BBBBI", socket.AF_INET, 32, 0, 0, index) + attribute(2, address) + attribute(1, address)),
        "route": (24, struct.pack("BBBBBBBBI", socket.AF_INET, 8, 0, 0, 254, 4, 0, 1, 0) + attribute(1, b"\x0a\0\0\0") + attribute(4, struct.pack("i", index))),
        "neighbour": (28, struct.pack("BxxxiHBB", socket.AF_INET, index, 2, 0, 1) + attribute(1, socket.inet_aton("192.0.0.1")) + attribute(2, mac)),
    }[what]
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
        s.settimeout(LIMIT)
        s.send(struct.pack("IHHII", 16 + len(body), kind, 0x505, 1, 0) + body)
        (code,) = struct.unpack("i", s.recv(4096)[16:20])
    return errno.errorcode[-code] if code else "done"


def interface_down():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, 0x8914, struct.pack("16sh22x", b"eth0", 0))  # SIOCSIFFLAGS
    return "done"


def big_udp(address, port, size):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(LIMIT)
        s.connect((address, port))
        s.send(b"x" * size)
        return str(len(s.recv(70000)))


def ip_options(address, port):
    """Loose source routing through a private address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(1)
        s.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, bytes([131, 7, 4, 10, 0, 0, 1, 1]))
        s.sendto(b"hello", (address, port))
        return s.recv(100).decode()


def download(address, port):
    began = time.monotonic()
    with connect(address, port) as s:
        s.settimeout(60)
        size = len(rest(s))
    return f"{size} {time.monotonic() - began}"


def upload(address, port, size):
    began = time.monotonic()
    with connect(address, port) as s:
        s.settimeout(60)
        s.sendall(bytes(size))
        s.shutdown(socket.SHUT_WR)
        answer = rest(s)
    return f"{size} {time.monotonic() - began}" if answer == b"all" else f"answered {answer}"


def many(address, port, count):
    """How many connections are held at a time, and how the others failed."""
    held, failed = [], {}
    for _ in range(count):
        try:
            held.append(connect(address, port))
        except OSError as e:
            failed[name_of(e)] = failed.get(name_of(e), 0) + 1
    time.sleep(0.5)  # one that was let in too many is reset at once
    still = 0
    for s in held:
        s.setblocking(False)
        try:
            still += s.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            still += 1
        except OSError as e:
            failed[name_of(e)] = failed.get(name_of(e), 0) + 1
        s.close()
    return f"{still} {failed}"


def name_of(e):
    if isinstance(e, socket.gaierror):
        return "unresolved"
    if isinstance(e, urllib.error.HTTPError):
        return f"HTTP {e.code}: {e.read().decode().strip()}"
    if isinstance(e, urllib.error.URLError) and isinstance(e.reason, OSError):
        return name_of(e.reason)
    if isinstance(e, ssl.SSLError):
        return f"TLS {e.reason}"
    if isinstance(e, TimeoutError):
        return "timeout"
    return errno.errorcode.get(getattr(e, "errno", 0) or 0, repr(e))


def run(kind, *args):
    try:
        return str(globals()[kind](*args))
    except Exception as e:  # noqa: BLE001: whatever it is, it is the outcome
        return name_of(e)


def main():
    attempts = json.load(sys.stdin)
    outcomes = [None] * len(attempts)

    def one(i):
        outcomes[i] = run(*attempts[i])

    if os.environ.get("ONE_BY_ONE"):
        for i in range(len(attempts)):
            one(i)
    else:
        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(attempts))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    json.dump(outcomes, sys.stdout)


main()
