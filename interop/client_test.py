"""Our client as programs see it: SOCKS5 (TCP, UDP), HTTP proxy, what they say when something fails; and a third-party proxy as a hop.

The SOCKS side here is written by hand from RFC 1928, so that nothing of Hoplite is on it.
"""

import asyncio
import contextlib
import http.client
import ipaddress
import socket
import ssl
import struct
import sys

from common import HERE, TOKEN, Checks, Lab, free_port, in_thread, sha256, wait_for
from masque_client import http3_get
from servers import payload


class SocksError(Exception):
    """The reply code."""


def exactly(s, size):
    data = b""
    while len(data) < size:
        piece = s.recv(size - len(data))
        if not piece:
            raise EOFError("the proxy closed")
        data += piece
    return data


def address(host, port):
    try:
        ip = ipaddress.ip_address(host)
        return bytes([1 if ip.version == 4 else 4]) + ip.packed + struct.pack("!H", port)
    except ValueError:
        return b"\x03" + bytes([len(host)]) + host.encode() + struct.pack("!H", port)


def read_address(s):
    kind = exactly(s, 1)[0]
    host = exactly(s, {1: 4, 4: 16}.get(kind) or exactly(s, 1)[0])
    return host, struct.unpack("!H", exactly(s, 2))[0]


def socks(port, command, host, target_port, user=None, timeout=30):
    """A SOCKS5 request; (socket, bound port), or SocksError with the reply."""
    s = socket.create_connection(("127.0.0.1", port), timeout)
    if user:
        s.sendall(b"\x05\x01\x02")
        assert exactly(s, 2) == b"\x05\x02", "user name and password are not offered"
        s.sendall(b"\x01" + bytes([len(user)]) + user.encode() + b"\x01x")
        assert exactly(s, 2)[1] == 0, "user name and password are refused"
    else:
        s.sendall(b"\x05\x01\x00")
        assert exactly(s, 2) == b"\x05\x00", "no authentication is refused"
    s.sendall(b"\x05" + bytes([command]) + b"\0" + address(host, target_port))
    version, reply, _ = exactly(s, 3)
    assert version == 5
    bound = read_address(s)
    if reply:
        s.close()
        raise SocksError(reply)
    return s, bound[1]


def reply(port, host, target_port, command=1, timeout=40, user=None):
    try:
        socks(port, command, host, target_port, user, timeout)[0].close()
        return 0
    except SocksError as e:
        return e.args[0]


def fetch(client, host, port, size=2_000_000, user=None):
    s, _ = socks(client.socks, 1, host, port, user)
    with s:
        s.sendall(f"GET /bytes/{size} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        got = b""
        while b"\r\n\r\n" not in got:
            got += exactly(s, 1)
        body = exactly(s, size)
    return sha256(body) == sha256(payload(size)) or "wrong checksum"


def udp_echo(client, host, port, sizes=(1, 100, 1000, 1100), user=None):
    control, relay = socks(client.socks, 3, "0.0.0.0", 0, user)
    with control, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.settimeout(5)
        for size in sizes:
            data = payload(size)
            udp.sendto(b"\0\0\0" + address(host, port) + data, ("127.0.0.1", relay))
            got = udp.recv(65536)
            if not got.endswith(data) or got[:3] != b"\0\0\0":
                return f"{size} bytes came back changed"


@contextlib.contextmanager
def udp_shim(client, host, port):
    """A local UDP port whose datagrams go to one target through SOCKS UDP ASSOCIATE; yields its address."""
    control, relay = socks(client.socks, 3, "0.0.0.0", 0)
    inside, outside = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    header = b"\0\0\0" + address(host, port)
    for s in (inside, outside):
        s.bind(("127.0.0.1", 0))
        s.settimeout(0.2)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    program, stop = [], []

    def upward():
        while not stop:
            with contextlib.suppress(OSError):
                data, peer = inside.recvfrom(65536)
                program[:] = [peer]
                outside.sendto(header + data, ("127.0.0.1", relay))

    def downward():
        while not stop:
            with contextlib.suppress(OSError):
                data = outside.recv(65536)
                size = {1: 4, 4: 16}.get(data[3]) or 1 + data[4]
                inside.sendto(data[4 + size + 2:], program[0])

    threads = [in_thread(upward)[0], in_thread(downward)[0]]
    try:
        yield inside.getsockname()
    finally:
        stop.append(True)
        for thread in threads:
            thread.join()
        for s in (control, inside, outside):
            s.close()


def http_status(client, method, target, tunnel=None):
    c = http.client.HTTPConnection("127.0.0.1", client.http, timeout=40)
    try:
        if tunnel:
            c.request("CONNECT", tunnel)
        else:
            c.request(method, target)
        answer = c.getresponse()
        return answer.status, answer.getheader("proxy-status") or "", answer.read(100_000)
    finally:
        c.close()


def works(checks, lab, client, targets, hops):
    http_port, echo, tls_port = targets.ports["http"], targets.ports["echo"], targets.ports["https1"]
    way = f"{hops} hops"
    for host in ("127.0.0.1", "target.test", "localhost"):
        checks.attempt(f"{way}: SOCKS CONNECT to {host}, 2 MB, checksum", lambda: fetch(client, host, http_port))
        checks.attempt(f"{way}: SOCKS UDP to {host}", lambda: udp_echo(client, host, echo))
    checks.attempt(f"{way}: user name and password are taken", lambda: fetch(client, "target.test", http_port, user="work"))
    checks.attempt(f"{way}: UDP with a user name", lambda: udp_echo(client, "target.test", echo, user="work"))

    def http3():
        with udp_shim(client, "target.test", targets.ports["https"]) as shim:
            status, body = asyncio.run(http3_get(shim, lab.authority.ca, "target.test", "/bytes/2000000"))
        return (status, sha256(body)) == (200, sha256(payload(2_000_000))) or f"{status}, {len(body)} bytes"
    checks.attempt(f"{way}: HTTP/3 target over SOCKS UDP, 2 MB, checksum", http3)

    def through_connect():
        context = ssl.create_default_context(cafile=str(lab.authority.ca))
        c = http.client.HTTPSConnection("127.0.0.1", client.http, timeout=30, context=context)
        c.set_tunnel("target.test", tls_port)
        c.request("GET", "/bytes/2000000")
        return sha256(c.getresponse().read()) == sha256(payload(2_000_000)) or "wrong checksum"
    checks.attempt(f"{way}: HTTP CONNECT, 2 MB, checksum", through_connect)

    def absolute():
        status, _, body = http_status(client, "GET", f"http://target.test:{http_port}/hello")
        return status == 200 and b"http/1.1" in body or f"{status} {body[:80]}"
    checks.attempt(f"{way}: absolute-form GET", absolute)


def refusals(checks, client, targets):
    """The replies of docs/errors.md."""
    closed = free_port()
    cases = [("a target that refuses", "127.0.0.1", closed, (5,), 502, "connection_refused"),
             ("a name that does not exist", "nowhere.test", 80, (4,), 502, "dns_error"),
             ("the metadata address", "169.254.169.254", 80, (2,), 403, "destination_ip_prohibited"),
             ("a name of the metadata address", "metadata.test", 80, (2,), 403, "destination_ip_prohibited"),
             ("a private address", "10.1.2.3", 80, (2,), 403, "destination_ip_prohibited")]
    for what, host, port, replies, status, error in cases:
        def check_reply(host=host, port=port, replies=replies):
            got = reply(client.socks, host, port)
            return got in replies or f"reply {got}, expected {replies}"

        def check_status(host=host, port=port, status=status, error=error, tunnel=True):
            got, said, _ = http_status(client, "GET", f"http://{host}:{port}/", f"{host}:{port}" if tunnel else None)
            return got == status and error in said or f"{got} {said!r}, expected {status} {error}"
        checks.attempt(f"{what}: SOCKS reply", check_reply)
        checks.attempt(f"{what}: HTTP CONNECT status", check_status)
        checks.attempt(f"{what}: HTTP GET status", lambda: check_status(tunnel=False))
    checks.attempt("SOCKS BIND: reply 7", lambda: reply(client.socks, "127.0.0.1", 80, command=2) == 7)


def broken(checks, lab, amber, birch, targets):
    """Paths with a fault: each said truthfully, soon, and both ways."""
    class Other:
        def __init__(self, like, **changes):
            self.name, self.port, self.pin = like.name, like.port, like.pin
            self.__dict__.update(changes)

    wrong_pin = "sha256:" + "A" * 43 + "="
    cases = [("the first relay is not there", [Other(amber, port=free_port()), birch], TOKEN, (3, 6), (503, 504)),
             ("the second relay is not there", [amber, Other(birch, port=lab.spare)], TOKEN, (1, 6), (503, 504)),
             ("the first relay's pin is wrong", [Other(amber, pin=wrong_pin), birch], TOKEN, (3,), (503,), b"certificate"),
             ("the second relay's pin is wrong", [amber, Other(birch, pin=wrong_pin)], TOKEN, (1,), (503,), b"certificate"),
             ("the token is wrong", [amber, birch], "wrong", (2,), (403,)),
             ("the second relay is none that the ingress knows", [amber, Other(birch, port=free_port())], TOKEN, (1, 2), (403, 503))]
    for number, (what, path, token, replies, statuses, *words) in enumerate(cases):
        client = lab.client(path, name=f"client-broken-{number}", token=token)

        def socks_says(replies=replies, client=client):
            got = reply(client.socks, "target.test", targets.ports["http"])
            return got in replies or f"reply {got}, expected one of {replies}"

        def http_says(statuses=statuses, client=client, words=words):
            status, said, body = http_status(client, "GET", f"http://target.test:{targets.ports['http']}/")
            fine = status in statuses and all(word in body for word in words)
            return fine or f"{status} {said!r} {body!r}, expected one of {statuses} {words}"
        checks.attempt(f"{what}: SOCKS reply", socks_says)
        checks.attempt(f"{what}: HTTP status", http_says)
        client.stop()


def third_party(checks, lab, targets, birch):
    """A proxy that is not ours: alone, as the first hop, as the last."""
    leaf = lab.authority.leaf("reference", ["localhost", "127.0.0.1"])
    port = free_port()
    proxy = lab.run("reference", [sys.executable, HERE / "reference_proxy.py", port, leaf.cert, leaf.key, "--token", TOKEN])
    wait_for("the reference proxy", lambda: "ready" in proxy.text() or not proxy.alive())
    proxy.name, proxy.port, proxy.pin = "reference", port, leaf.pin
    amber = lab.relay("amber2", roles=["ingress"], relays=[proxy])
    amber.name = "amber2"
    for what, path in (("aioquic proxy alone", [proxy]), ("aioquic proxy, then our relay", [proxy, birch]),
                       ("our relay, then the aioquic proxy", [amber, proxy])):
        client = lab.client(path, name="client-" + "-".join(r.name for r in path))
        checks.attempt(f"{what}: TCP, 2 MB, checksum", lambda: fetch(client, "target.test", targets.ports["http"]))
        checks.attempt(f"{what}: UDP", lambda: udp_echo(client, "target.test", targets.ports["echo"]))
        client.stop()


def main():
    checks = Checks("client")
    with Lab() as lab:
        targets = lab.targets({"target.test": "127.0.0.1", "metadata.test": "169.254.169.254"})
        dns = f"127.0.0.1:{targets.ports['dns']}"
        birch = lab.relay("birch", dns=dns)
        lab.spare = free_port()

        class Absent:
            port = lab.spare
        cedar = lab.relay("cedar", roles=["ingress"], relays=[birch])
        dogwood = lab.relay("dogwood", roles=["ingress"], relays=[cedar])
        amber = lab.relay("amber", roles=["ingress"], relays=[cedar, dogwood, birch, Absent])
        for path in ([birch], [amber, birch], [amber, cedar, birch], [amber, dogwood, cedar, birch]):
            client = lab.client(path, name=f"client-{len(path)}")
            works(checks, lab, client, targets, len(path))
            if len(path) == 2:
                refusals(checks, client, targets)
            client.stop()
        broken(checks, lab, amber, birch, targets)
        third_party(checks, lab, targets, birch)
        logs = "".join(p.text() for p in lab.processes if p.name not in ("targets", "reference"))
        checks.check("no name or address of a target in any log of ours",
                     not any(word in logs for word in ("target.test", "metadata.test", "nowhere.test", "169.254")))
        if checks.failed:
            lab.show_logs()
    checks.done()


if __name__ == "__main__":
    main()
