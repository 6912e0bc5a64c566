"""An independent client's view of a relay: both tunnels, both forms of datagrams, refusals, bad manners.

aioquic speaks QUIC and HTTP/3; nothing of Hoplite is on this side.
"""

import asyncio
import socket
import sys

from aioquic.buffer import encode_uint_var
from common import TOKEN, Checks, Lab, free_port, sha256, wait_for
from masque_client import session
from servers import payload

NAMES = {"target.test": "127.0.0.1", "sneaky.test": "127.0.0.1", "metadata.test": "169.254.169.254",
         "private.test": "10.1.2.3", "mixed.test": "169.254.169.254,127.0.0.1"}

H3_FRAME_UNEXPECTED, H3_CLOSED_CRITICAL_STREAM, H3_SETTINGS_ERROR, H3_MISSING_SETTINGS = 0x105, 0x104, 0x109, 0x10A
H3_DATAGRAM_ERROR, H3_ID_ERROR, QPACK_DECOMPRESSION_FAILED, H3_MESSAGE_ERROR = 0x33, 0x108, 0x200, 0x10E


class Suite:
    def __init__(self, checks, lab, targets, port):
        self.checks, self.lab, self.targets, self.port = checks, lab, targets, port
        self.ca = lab.authority.ca

    def session(self, token=TOKEN, port=None):
        return session(port or self.port, self.ca, token)

    def run(self, what, body):
        self.checks.attempt(what, lambda: asyncio.run(asyncio.wait_for(body(), 90)))

    # What a relay is for.

    async def settings(self):
        async with self.session() as c:
            got = await c.settings()
            return (got.get(0x33), got.get(0x8)) == (1, 1) or str(got)

    async def fetch(self, host="127.0.0.1", size=3_000_000, port=None, **more):
        async with self.session() as c:
            x = c.connect_tcp(f"{host}:{port or self.targets.ports['http']}", **more)
            if (status := await x.status()) != 200:
                return f"status {status} {x.header('proxy-status')}"
            x.write(f"GET /bytes/{size} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            got = b""
            while b"\r\n\r\n" not in got:
                piece = await x.read()
                if piece is None:
                    return "the stream ended early"
                got += piece
            body = got.split(b"\r\n\r\n", 1)[1]
            body += await x.read_all(size - len(body))
            x.write(b"", end=True)
            return sha256(body) == sha256(payload(size)) or f"wrong checksum of {len(body)} bytes"

    async def echo(self, send, receive, sizes, host="127.0.0.1", port=None, **more):
        async with self.session() as c:
            x = c.connect_udp(host, port or self.targets.ports["echo"], **more)
            if (status := await x.status()) != 200:
                return f"status {status} {x.header('proxy-status')}"
            if x.header("capsule-protocol") != "?1":
                return f"capsule-protocol is {x.header('capsule-protocol')!r}"
            for size in sizes:
                data = payload(size)
                getattr(x, send)(data)
                if await getattr(x, receive)() != data:
                    return f"{size} bytes came back changed"

    async def both_forms_at_once(self):
        async with self.session() as c:
            a = c.connect_udp("127.0.0.1", self.targets.ports["echo"])
            b = c.connect_udp("127.0.0.1", self.targets.ports["echo"])
            await a.status(), await b.status()
            for i in range(50):
                a.send_datagram(b"a%d" % i)
                b.send_capsule(b"b%d" % i)
                if (await a.datagram(), await b.capsule()) != (b"a%d" % i, b"b%d" % i):
                    return "a flow was answered in the other's form or with the other's data"

    async def early(self, send, receive):
        async with self.session() as c:
            x = c.connect_udp("target.test", self.targets.ports["echo"])
            for i in range(8):
                getattr(x, send)(b"early %d" % i)
            got = {await getattr(x, receive)() for _ in range(8)}
            return got == {b"early %d" % i for i in range(8)} or f"only {len(got)} came back"

    async def unknown_things(self):
        async with self.session() as c:
            x = c.connect_udp("127.0.0.1", self.targets.ports["echo"])
            await x.status()
            x.send_datagram(b"no such context", context=2)
            x.send_datagram(b"fine")
            if await x.datagram() != b"fine":
                return "an unknown context was not dropped"
            x = c.connect_udp("127.0.0.1", self.targets.ports["echo"])
            await x.status()
            x.send_capsule(b"grease", kind=0x17 + 41 * 29)
            x.send_capsule(b"", kind=0x1234)
            x.send_capsule(b"after")
            return await x.capsule() == b"after" or "unknown capsules were not skipped"

    async def crumbs(self):
        async with self.session() as c:
            x = c.connect_udp("127.0.0.1", self.targets.ports["echo"])
            await x.status()
            data = payload(200)
            value = b"\0" + data
            for byte in encode_uint_var(0) + encode_uint_var(len(value)) + value:
                x.write(bytes([byte]))
            return await x.capsule() == data or "changed"

    async def half_close(self):
        async with self.session() as c:
            x = c.connect_tcp(f"127.0.0.1:{self.targets.ports['http']}")
            await x.status()
            x.write(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n", end=True)
            got = await x.read_all(1 << 20)
            return b"200 OK" in got and x.reset is None or f"{got[:60]!r} reset={x.reset}"

    async def many(self):
        async with self.session() as c:
            xs = [c.connect_udp("127.0.0.1", self.targets.ports["echo"]) for _ in range(100)]
            for x in xs:
                if await x.status() != 200:
                    return "a request was refused"
            for i, x in enumerate(xs):
                x.send_datagram(b"%d" % i)
            for i, x in enumerate(xs):
                if await x.datagram() != b"%d" % i:
                    return "flows are mixed up"

    # Who may, and where to.

    async def status_of(self, ask, want, port=None, proxy_status=None, **more):
        async with self.session(port=port, **more) as c:
            x = ask(c)
            try:
                got = await x.status(20)
            except ConnectionResetError as e:
                got = f"reset {e}"
            if got not in want:
                return f"status {got}, expected {want}"
            if proxy_status and proxy_status not in x.header("proxy-status"):
                return f"Proxy-Status is {x.header('proxy-status')!r}, expected {proxy_status}"

    async def authenticate(self):
        async with self.session(token=None) as c:
            x = c.connect_tcp("127.0.0.1:1")
            status = await x.status()
            return status == 407 and x.header("proxy-authenticate").lower().startswith("bearer") or \
                f"{status} {x.header('proxy-authenticate')!r}"

    # Bad manners: the connection or the stream ends with the right code, and others go on.

    async def misbehave(self, act, codes):
        async with self.session() as good, self.session() as bad:
            x = good.connect_udp("127.0.0.1", self.targets.ports["echo"])
            await x.status()
            await bad.settings()
            stream = act(bad)
            code = await bad.close_code(3)
            if code is None and stream is not None:
                code = stream.reset
            x.send_datagram(b"still here")
            if await x.datagram() != b"still here":
                return "another client was disturbed"
            return code in codes or f"ended with {code if code is None else hex(code)}, expected {[hex(c) for c in codes]}"


def frame(kind, data):
    return encode_uint_var(kind) + encode_uint_var(len(data)) + data


def works(s, ipv6):
    http, echo = s.targets.ports["http"], s.targets.ports["echo"]
    s.run("SETTINGS offer HTTP datagrams and extended CONNECT", s.settings)
    s.run("CONNECT: 3 MB by address, checksum", s.fetch)
    s.run("CONNECT: 20 MB by name, checksum", lambda: s.fetch("target.test", 20_000_000))
    s.run("CONNECT: token in Authorization", lambda: s.fetch(size=1000, header="authorization"))
    s.run("CONNECT: half-closed by the client, the answer still comes", s.half_close)
    sizes = (1, 64, 500, 1200, 0)
    s.run("CONNECT-UDP: QUIC DATAGRAM frames come back as such", lambda: s.echo("send_datagram", "datagram", sizes))
    s.run("CONNECT-UDP: capsules come back as capsules", lambda: s.echo("send_capsule", "capsule", (*sizes, 1400)))
    s.run("CONNECT-UDP: by name", lambda: s.echo("send_datagram", "datagram", (100,), host="target.test"))
    s.run("CONNECT-UDP: token in Authorization",
          lambda: s.echo("send_datagram", "datagram", (100,), header="authorization"))
    s.run("CONNECT-UDP: authority without a port, as Firefox writes it",
          lambda: s.echo("send_datagram", "datagram", (100,), authority="localhost"))
    s.run("CONNECT-UDP: the whole URI in :path, as Firefox writes it",
          lambda: s.echo("send_datagram", "datagram", (100,), authority="localhost",
                         path=f"https://localhost:{s.port}/.well-known/masque/udp/127.0.0.1/{echo}/"))
    s.run("both forms at once on one connection", s.both_forms_at_once)
    s.run("datagram frames before the answer are kept", lambda: s.early("send_datagram", "datagram"))
    s.run("capsules before the answer are kept", lambda: s.early("send_capsule", "capsule"))
    s.run("unknown contexts and capsules are skipped", s.unknown_things)
    s.run("a capsule in pieces of one byte", s.crumbs)
    s.run("100 UDP flows on one connection", s.many)
    if ipv6:
        s.run("CONNECT: IPv6 target", lambda: s.fetch("[::1]", 1_000_000, port=ipv6["http"]))
        s.run("CONNECT-UDP: IPv6 target", lambda: s.echo("send_datagram", "datagram", (100,), "::1", ipv6["echo"]))
    else:
        s.checks.skip("IPv6 targets", "no IPv6 on loopback here")
    return http, echo


def refuses(s, strict):
    """`strict`: the port of a relay whose policy allows nothing special."""
    http, echo = s.targets.ports["http"], s.targets.ports["echo"]
    s.run("no token: 407 and how to authenticate", s.authenticate)
    for what, more in (("a wrong token", {"token": "wrong"}), ("no token", {"token": None})):
        s.run(f"CONNECT with {what}: 407", lambda: s.status_of(
            lambda c: c.connect_tcp(f"127.0.0.1:{http}"), (401, 407), **more))
        s.run(f"CONNECT-UDP with {what}: 407", lambda: s.status_of(
            lambda c: c.connect_udp("127.0.0.1", echo), (401, 407), **more))
    hostile = ["169.254.169.254", "169.254.169.254.", "127.0.0.1", "127.0.0.1.", "localhost", "LOCALHOST.", "sneaky.test", "metadata.test", "private.test",
               "mixed.test", "10.1.2.3", "192.168.0.1", "172.16.0.1", "100.64.0.1", "0.0.0.0", "224.0.0.251",
               "255.255.255.255", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[fe80::1]", "[fd00::1]", "[ff02::fb]",
               "[64:ff9b::7f00:1]", "[2002:7f00:1::]"]
    for host in hostile:
        s.run(f"hostile CONNECT to {host}: 403", lambda: s.status_of(
            lambda c: c.connect_tcp(f"{host}:{http}"), (403,), port=strict))
        s.run(f"hostile CONNECT-UDP to {host}: 403", lambda: s.status_of(
            lambda c: c.connect_udp(host.strip("[]"), echo), (403,), port=strict))
    for host in ("2130706433", "0x7f000001", "127.1", "017700000001"):
        s.run(f"a number is no address: {host} reaches nothing", lambda: s.status_of(
            lambda c: c.connect_tcp(f"{host}:{http}"), (400, 403, 502, 504), port=strict))
    closed = free_port()
    s.run("a target that refuses: 502 connection_refused", lambda: s.status_of(
        lambda c: c.connect_tcp(f"127.0.0.1:{closed}"), (502,), proxy_status="connection_refused"))
    s.run("a name that does not exist: 502 dns_error", lambda: s.status_of(
        lambda c: c.connect_tcp("nowhere.test:443"), (502,), proxy_status="dns_error"))
    get = [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", "/")]
    s.run("GET: 4xx", lambda: s.status_of(lambda c: c.request(get, end=True), (400, 403, 404, 405)))
    other = [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "https"), (":authority", "localhost"),
             (":path", "/")]
    s.run("another :protocol: 4xx or 501", lambda: s.status_of(lambda c: c.request(other), (400, 404, 405, 501)))
    for what, path in (("port 0", "/.well-known/masque/udp/127.0.0.1/0/"),
                       ("port 70000", "/.well-known/masque/udp/127.0.0.1/70000/"),
                       ("no host", "/.well-known/masque/udp//53/"),
                       ("a host with a slash", "/.well-known/masque/udp/a%2Fb/53/"),
                       ("a broken escape", "/.well-known/masque/udp/%zz/53/"),
                       ("another path", "/elsewhere")):
        s.run(f"CONNECT-UDP with {what}: 4xx", lambda: s.status_of(
            lambda c: c.connect_udp("", 0, path=path), (400, 404)))
    for authority in ("127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999", ":80", "user@127.0.0.1:80"):
        s.run(f"CONNECT to {authority!r}: 400 or a reset stream", lambda: s.status_of(
            lambda c: c.connect_tcp(authority), (400, f"reset {H3_MESSAGE_ERROR:#x}")))


def survives(s):
    unexpected = (H3_FRAME_UNEXPECTED,)
    bad = [
        ("DATA before HEADERS", lambda c: c.raw_stream(frame(0, b"x")), unexpected),
        ("SETTINGS on a request stream", lambda c: c.raw_stream(frame(4, b"")), unexpected),
        ("a frame of HTTP/2 (PRIORITY)", lambda c: c.raw_stream(frame(2, b"12345")), unexpected),
        ("header block with a dynamic reference", lambda c: c.raw_stream(frame(1, b"\x02\x00\x80")),
         (QPACK_DECOMPRESSION_FAILED,)),
        ("truncated header block", lambda c: c.raw_stream(frame(1, b"\x00\x00\x27"), end=True),
         (QPACK_DECOMPRESSION_FAILED, H3_MESSAGE_ERROR)),
        ("a second control stream", lambda c: c.raw_stream(b"\x00" + frame(4, b""), unidirectional=True), (0x103,)),
        ("the control stream ends", lambda c: end_control(c), (H3_CLOSED_CRITICAL_STREAM,)),
        ("SETTINGS twice", lambda c: again(c, frame(4, b"")), unexpected),
        ("an empty datagram", lambda c: c.raw_datagram(b""), (H3_DATAGRAM_ERROR,)),
        ("a datagram with half a varint", lambda c: c.raw_datagram(b"\xc0\x00"), (H3_DATAGRAM_ERROR,)),
        ("a quarter stream id above all", lambda c: c.raw_datagram(b"\xff" * 8 + b"\0x"),
         (H3_DATAGRAM_ERROR, H3_ID_ERROR)),
    ]
    for what, act, codes in bad:
        s.run(f"{what}: closed with the right code, others go on", lambda: s.misbehave(act, codes))
    s.run("a capsule that claims 2^62-1 bytes ends the stream, others go on", lambda: s.misbehave(
        lambda c: huge_capsule(c, s.targets.ports["echo"]), (H3_DATAGRAM_ERROR, H3_MESSAGE_ERROR, None)))
    s.run("a datagram for a stream that was never opened, others go on", lambda: s.misbehave(
        lambda c: c.raw_datagram(encode_uint_var(1000) + b"\0x"), (None, H3_ID_ERROR, H3_DATAGRAM_ERROR)))
    s.run("and after all that a download still works", s.fetch)


def end_control(c):
    c._quic.send_stream_data(c.http._local_control_stream_id, b"", True)
    c.transmit()


def again(c, data):
    c._quic.send_stream_data(c.http._local_control_stream_id, data)
    c.transmit()


def huge_capsule(c, port):
    x = c.connect_udp("127.0.0.1", port)
    x.write(encode_uint_var(0) + b"\xff" * 8 + b"\0" + payload(5000))
    return x


def ipv6_targets(lab):
    try:
        with socket.socket(socket.AF_INET6) as s:
            s.bind(("::1", 0))
    except OSError:
        return None
    leaf = lab.authority.leaf("target6", ["localhost", "::1"])
    from common import HERE
    server = lab.run("targets6", [sys.executable, HERE / "servers.py", "--host", "::1", "--cert", leaf.cert, "--key", leaf.key])
    wait_for("the IPv6 target servers", lambda: server.lines() or not server.alive())
    return server.lines()[0] if server.lines() else None


def main():
    checks = Checks("aioquic")
    with Lab() as lab:
        targets = lab.targets(NAMES)
        ipv6 = ipv6_targets(lab)
        if len(sys.argv) > 1:  # some other proxy, to check the checks: its command, with {port} {cert} {key}
            leaf, port = lab.authority.leaf("proxy", ["localhost", "127.0.0.1"]), free_port()
            proxy = lab.run("proxy", [w.format(port=port, cert=leaf.cert, key=leaf.key) for w in sys.argv[1:]])
            wait_for("the proxy", lambda: "ready" in proxy.text())
            works(Suite(checks, lab, targets, port), ipv6)
        else:
            dns = f"127.0.0.1:{targets.ports['dns']}"
            relay, strict = lab.relay("amber", dns=dns), lab.relay("strict", dns=dns, allow=())
            suite = Suite(checks, lab, targets, relay.port)
            works(suite, ipv6)
            refuses(suite, strict.port)
            survives(suite)
            checks.check("no address or name of a target in the relays' logs",
                         not any(word in r.text() for r in (relay, strict) for word in [*NAMES, "169.254"]))
            checks.check("the relays are still running", relay.alive() and strict.alive())
        if checks.failed:
            lab.show_logs()
    checks.done()


if __name__ == "__main__":
    main()
