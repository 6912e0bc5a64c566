"""Target servers for the interop tests: HTTP/1.1, HTTP/2 and HTTP/3 with the same pages, a UDP echo, and a tiny DNS.

Run as a process: prints one JSON line with its ports, then one JSON line per request or query.
Nothing of it is Hoplite's: aioquic speaks HTTP/3, hyper-h2 speaks HTTP/2.
"""

import argparse
import asyncio
import contextlib
import functools
import hashlib
import json
import re
import socket
import ssl
import struct
import sys
import urllib.parse

from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (ConnectionTerminated, DataReceived as H2Data, RequestReceived, StreamEnded,
                       StreamReset, WindowUpdated)

BLOCK = b"".join(hashlib.sha256(struct.pack("!I", i)).digest() for i in range(32768))  # 1 MiB, the same everywhere


def payload(size):
    return (BLOCK * (size // len(BLOCK) + 1))[:size]


# A page with all that pages have; its script says in the title that it ran. The image is 8 by 8.
SITE = {
    "/site": ("text/html; charset=utf-8", b"<!doctype html><title>no</title><link rel=stylesheet href=/site/style.css><img src=/site/image.svg>"
              b"<iframe src=/site/frame></iframe><script src=/site/script.js></script>"),
    "/site/style.css": ("text/css", b"body { background: url(/site/behind.svg) }"),
    "/site/script.js": ("text/javascript", b"fetch('/site/data').then(r => r.text()).then(t => { document.title = t; });"),
    "/site/data": ("text/plain", b"done by fetch"),
    "/site/frame": ("text/html", b"<!doctype html><title>frame</title>"),
    "/site/image.svg": ("image/svg+xml", b"<svg xmlns='http://www.w3.org/2000/svg' width='8' height='8'/>"),
    "/site/behind.svg": ("image/svg+xml", b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>"),
}


def say(**line):
    print(json.dumps(line), flush=True)


def respond(protocol, method, path, peer, body, alt_svc):
    """The one site behind all three protocols: (status, headers, body)."""
    say(event="request", protocol=protocol, method=method, path=path, peer=peer, body=len(body))
    headers = {"content-type": "text/html; charset=utf-8", "x-protocol": protocol, "cache-control": "no-store"}
    if alt_svc:
        headers["alt-svc"] = alt_svc
    if size := re.fullmatch(r"/bytes/(\d+)", path):
        headers["content-type"] = "application/byte-stream"
        return 200, headers, payload(int(size[1]))
    if path == "/success.txt":
        return 200, headers, b"success\n"
    if path == "/portal":
        return 302, headers | {"location": "http://login.test/?for=you"}, b""
    if path in SITE:
        return 200, headers | {"content-type": SITE[path][0]}, SITE[path][1]
    if path.startswith("/upload"):
        return 200, headers, hashlib.sha256(body).hexdigest().encode()
    if path.startswith("/peer"):
        return 200, headers, peer.encode()
    page = f"<!doctype html><title>hoplite {protocol}</title><p id=protocol>{protocol}</p><p id=path>{path}</p>"
    return 200, headers, page.encode()


class Http3(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = None
        self.requests = {}

    def quic_event_received(self, event):
        if isinstance(event, ProtocolNegotiated):
            self.http = H3Connection(self._quic)
        if self.http is None:
            return
        for e in self.http.handle_event(event):
            if isinstance(e, HeadersReceived):
                self.requests[e.stream_id] = (dict(e.headers), bytearray())
            elif isinstance(e, DataReceived):
                self.requests[e.stream_id][1].extend(e.data)
            if isinstance(e, (HeadersReceived, DataReceived)) and e.stream_ended:
                self.answer(e.stream_id)

    def answer(self, stream):
        head, body = self.requests.pop(stream)
        peer = self._quic._network_paths[0].addr[0]
        status, headers, content = respond(
            "h3", head[b":method"].decode(), head[b":path"].decode(), peer, bytes(body), None)
        fields = [(b":status", str(status).encode()), (b"content-length", str(len(content)).encode())]
        fields += [(k.encode(), v.encode()) for k, v in headers.items()]
        self.http.send_headers(stream, fields)
        self.http.send_data(stream, content, end_stream=True)
        self.transmit()


class Http2:
    """One HTTP/2 connection on asyncio streams."""

    def __init__(self, reader, writer, alt_svc):
        self.reader, self.writer, self.alt_svc = reader, writer, alt_svc
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.requests, self.outgoing = {}, {}

    async def run(self):
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(1 << 24)
        self.writer.write(self.h2.data_to_send())
        while data := await self.reader.read(65536):
            for event in self.h2.receive_data(data):
                self.handle(event)
            self.pump()
            await self.writer.drain()

    def handle(self, event):
        if isinstance(event, RequestReceived):
            self.requests[event.stream_id] = (dict(event.headers), bytearray())
        elif isinstance(event, H2Data):
            self.requests[event.stream_id][1].extend(event.data)
            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, StreamEnded):
            self.answer(event.stream_id)
        elif isinstance(event, StreamReset):
            self.outgoing.pop(event.stream_id, None)
        elif isinstance(event, ConnectionTerminated):
            self.writer.close()

    def answer(self, stream):
        head, body = self.requests.pop(stream)
        peer = self.writer.get_extra_info("peername")[0]
        status, headers, content = respond("h2", head[":method"], head[":path"], peer, bytes(body), self.alt_svc)
        fields = [(":status", str(status)), ("content-length", str(len(content))), *headers.items()]
        self.h2.send_headers(stream, fields)
        self.outgoing[stream] = memoryview(content)

    def pump(self):
        for stream, rest in list(self.outgoing.items()):
            while True:
                room = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size)
                if rest and room <= 0:
                    break
                last = len(rest) <= room
                self.h2.send_data(stream, bytes(rest[:room]), end_stream=last)
                rest = rest[room:]
                if last:
                    del self.outgoing[stream]
                    break
            if stream in self.outgoing:
                self.outgoing[stream] = rest
        self.writer.write(self.h2.data_to_send())


async def http1(reader, writer, alt_svc):
    while line := await reader.readline():
        method, path, _ = line.decode().split(" ", 2)
        headers = {}
        while (line := (await reader.readline()).strip()):
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        path = urllib.parse.urlsplit(path).path if path.startswith("http") else path
        peer = writer.get_extra_info("peername")[0]
        status, out, content = respond("http/1.1", method, path, peer, body, alt_svc)
        out["content-length"] = str(len(content))
        writer.write(f"HTTP/1.1 {status} OK\r\n".encode())
        writer.write("".join(f"{k}: {v}\r\n" for k, v in out.items()).encode() + b"\r\n")
        writer.write(content)
        await writer.drain()


async def on_connection(reader, writer, alt_svc=None, only=None):
    try:
        tls = writer.get_extra_info("ssl_object")
        if tls and tls.selected_alpn_protocol() == "h2":
            await Http2(reader, writer, alt_svc).run()
        else:
            await http1(reader, writer, alt_svc)
    except (OSError, asyncio.IncompleteReadError, ValueError):
        pass
    finally:
        writer.close()


def udp_echo(host, port):
    """A UDP echo; asyncio's own transport would swallow empty datagrams."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    echo = socket.socket(family, socket.SOCK_DGRAM)
    echo.bind((host, port))
    echo.setblocking(False)

    def ready():
        with contextlib.suppress(OSError):
            while True:
                data, peer = echo.recvfrom(65536)
                say(event="udp", size=len(data), peer=peer[0])
                echo.sendto(data, peer)

    asyncio.get_running_loop().add_reader(echo, ready)
    return echo.getsockname()[1]


class Dns(asyncio.DatagramProtocol):
    """Answers A, AAAA and TXT (the name itself) for the names that it was given, NXDOMAIN for the rest. Names of `hints` have HTTPS records with
    their addresses; an alias is answered with a CNAME before the other name's addresses."""

    def __init__(self, names, aliases=(), hints=False):
        self.names, self.aliases, self.hints = names, dict(aliases), hints

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, peer):
        ident, _, questions = struct.unpack("!HHH", data[:6])
        labels, at = [], 12
        while length := data[at]:
            labels.append(data[at + 1:at + 1 + length].decode())
            at += 1 + length
        kind = struct.unpack("!H", data[at + 1:at + 3])[0]
        name = ".".join(labels).lower()
        say(event="dns", name=name, kind=kind, peer=peer[0])
        question = data[12:at + 5]
        answers = [self.raw(a) for a in self.names.get(name, []) if (":" in a) == (kind == 28)] if kind in (1, 28) else []
        if kind == 16 and name in self.names:
            answers = [bytes([len(name)]) + name.encode()]
        if kind == 65 and self.hints:
            answers = [self.hint(a) for a in self.names.get(name, [])]
        code = 0 if name in self.names else 3
        owner, alias = b"\xc0\x0c", b""
        if name in self.aliases:
            owner = b"".join(bytes([len(label)]) + label.encode() for label in self.aliases[name].split(".")) + b"\0"
            alias = struct.pack("!HHHIH", 0xC00C, 5, 1, 5, len(owner)) + owner
        reply = struct.pack("!HHHHHH", ident, 0x8580 | code, 1, len(answers) + bool(alias), 0, 0) + question + alias
        for raw in answers:
            reply += owner + struct.pack("!HHIH", kind, 1, 5, len(raw)) + raw
        self.transport.sendto(reply, peer)

    def hint(self, address):
        """An HTTPS record (RFC 9460): priority 1, the name itself, ipv4hint or ipv6hint."""
        raw = self.raw(address)
        return struct.pack("!HBHH", 1, 0, 4 if len(raw) == 4 else 6, len(raw)) + raw

    @staticmethod
    def raw(address):
        import ipaddress
        return ipaddress.ip_address(address).packed


async def main():
    p = argparse.ArgumentParser()
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--cert", required=True)
    p.add_argument("--key", required=True)
    p.add_argument("--tls-port", type=int, default=0, help="HTTPS on TCP and HTTP/3 on UDP")
    p.add_argument("--http-port", type=int, default=0)
    p.add_argument("--echo-port", type=int, default=0)
    p.add_argument("--alias", action="append", default=[], help="NAME=OTHER: a CNAME for the DNS")
    p.add_argument("--hints", action="store_true", help="names have HTTPS records with their addresses")
    p.add_argument("--dns-port", type=int, default=0)
    p.add_argument("--dns-host", help="default: --host")
    p.add_argument("--name", action="append", default=[], help="NAME=ADDRESS[,ADDRESS] for the DNS")
    p.add_argument("--alt-svc", action="store_true", help="advertise HTTP/3")
    args = p.parse_args()
    loop = asyncio.get_running_loop()

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(args.cert, args.key)
    tls.set_alpn_protocols(["h2", "http/1.1"])
    only1 = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    only1.load_cert_chain(args.cert, args.key)
    only1.set_alpn_protocols(["http/1.1"])

    quic = QuicConfiguration(alpn_protocols=H3_ALPN, is_client=False, max_data=1 << 24, max_stream_data=1 << 24)
    quic.load_cert_chain(args.cert, args.key)

    # TCP first: an ephemeral TCP port that is free on UDP too is found by trying.
    for _ in range(20):
        https = await asyncio.start_server(on_connection, args.host, args.tls_port, ssl=tls)
        port = https.sockets[0].getsockname()[1]
        try:
            await serve(args.host, port, configuration=quic, create_protocol=Http3)
            break
        except OSError:
            https.close()
    if args.alt_svc:
        https.close()
        await https.wait_closed()
        handler = functools.partial(on_connection, alt_svc=f'h3=":{port}"; ma=3600')
        https = await asyncio.start_server(handler, args.host, port, ssl=tls, reuse_address=True)
    http = await asyncio.start_server(on_connection, args.host, args.http_port)
    https1 = await asyncio.start_server(on_connection, args.host, 0, ssl=only1)
    echo = udp_echo(args.host, args.echo_port)
    names = {k: v.split(",") for k, v in (n.split("=") for n in args.name)}
    aliases = [n.split("=") for n in args.alias]
    names |= {name: names[other] for name, other in aliases}
    dns, _ = await loop.create_datagram_endpoint(lambda: Dns(names, aliases, args.hints), (args.dns_host or args.host, args.dns_port))
    say(https=port, http=http.sockets[0].getsockname()[1], https1=https1.sockets[0].getsockname()[1],
        echo=echo, dns=dns.get_extra_info("sockname")[1])
    await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit(0)
