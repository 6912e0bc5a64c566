"""A small MASQUE proxy on aioquic: the other side of our client in client_test.py, and a yardstick for the tests of relays.

CONNECT and CONNECT-UDP, datagrams in the form that the client uses. No policy, no limits: for loopback only.
usage: reference_proxy.py PORT CERT KEY [--token TOKEN]; names below .test are 127.0.0.1
"""

import argparse
import asyncio
import re
import urllib.parse

from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.buffer import Buffer, encode_uint_var
from aioquic.h3.connection import H3_ALPN
from aioquic.h3.events import DataReceived, DatagramReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated, StreamReset
from masque_client import Http3

OPTIONS = argparse.Namespace(token=None)


class Tunnel:
    def __init__(self, proxy, stream, udp):
        self.proxy, self.stream, self.udp = proxy, stream, udp
        self.early, self.early_end, self.capsules, self.by_capsules = b"", False, b"", False
        self.writer = self.transport = None
        self.waiting = []

    # From the target, for CONNECT-UDP: this object is the asyncio protocol of the socket.
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, _):
        if self.by_capsules:
            self.proxy.http.send_data(self.stream, b"\0" + encode_uint_var(len(data) + 1) + b"\0" + data, False)
        else:
            self.proxy.http.send_datagram(self.stream, b"\0" + data)
        self.proxy.transmit()

    def error_received(self, _):
        pass

    def connection_lost(self, _):
        pass

    # From the client.
    def datagram(self, data):
        if data[:1] != b"\0":
            return
        if self.transport:
            self.transport.sendto(data[1:])
        elif len(self.waiting) < 16:
            self.waiting.append(data)

    def data(self, data, ended):
        if self.udp:
            self.capsules += data
            while self.transport and (capsule := self.cut()):
                if capsule[0] == 0:
                    self.by_capsules = True
                    self.datagram(capsule[1])
        elif self.writer:
            self.writer.write(data)
            if ended:
                self.writer.write_eof()
        else:
            self.early, self.early_end = self.early + data, ended

    def cut(self):
        buffer = Buffer(data=self.capsules)
        try:
            capsule = buffer.pull_uint_var(), buffer.pull_bytes(buffer.pull_uint_var())
        except ValueError:
            return None
        self.capsules = self.capsules[buffer.tell():]
        return capsule

    def close(self):
        if self.transport:
            self.transport.close()
        if self.writer:
            self.writer.close()

    async def open(self, host, port):
        host = "127.0.0.1" if host.endswith(".test") else host
        if self.udp:
            await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, remote_addr=(host, port))
            self.respond(200, (b"capsule-protocol", b"?1"))
            for data in self.waiting:
                self.datagram(data)
            self.data(b"", False)
            return
        reader, self.writer = await asyncio.open_connection(host, port)
        self.respond(200)
        self.data(self.early, self.early_end)
        while piece := await reader.read(65536):
            self.proxy.http.send_data(self.stream, piece, False)
            self.proxy.transmit()
        self.proxy.http.send_data(self.stream, b"", True)
        self.proxy.transmit()

    def respond(self, status, *more, end=False):
        self.proxy.http.send_headers(self.stream, [(b":status", str(status).encode()), *more], end)
        self.proxy.transmit()


class Proxy(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http, self.tunnels, self.tasks = None, {}, set()

    def quic_event_received(self, event):
        if isinstance(event, ProtocolNegotiated):
            self.http = Http3(self._quic)
        if isinstance(event, StreamReset) and event.stream_id in self.tunnels:
            self.tunnels.pop(event.stream_id).close()
        for e in self.http.handle_event(event) if self.http else ():
            tunnel = self.tunnels.get(getattr(e, "stream_id", None))
            if isinstance(e, HeadersReceived) and tunnel is None:
                task = asyncio.ensure_future(self.serve(e.stream_id, {k.decode(): v.decode() for k, v in e.headers}))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
            elif tunnel and isinstance(e, DataReceived):
                tunnel.data(e.data, e.stream_ended)
            elif tunnel and isinstance(e, DatagramReceived):
                tunnel.datagram(e.data)

    async def serve(self, stream, head):
        udp = head.get(":protocol") == "connect-udp"
        tunnel = self.tunnels[stream] = Tunnel(self, stream, udp)
        shown = head.get("proxy-authorization") or head.get("authorization")
        if OPTIONS.token and shown != f"Bearer {OPTIONS.token}":
            return tunnel.respond(407, (b"proxy-authenticate", b"Bearer"), end=True)
        if udp:
            match = re.search(r"/udp/([^/]+)/(\d+)/?$", head.get(":path", ""))
            host, port = (urllib.parse.unquote(match[1]), match[2]) if match else (None, None)
        else:
            host, _, port = head[":authority"].rpartition(":")
        if head[":method"] != "CONNECT" or not host:
            return tunnel.respond(400, end=True)
        try:
            await tunnel.open(host.strip("[]"), int(port))
        except OSError:
            tunnel.respond(502, end=True)


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("cert")
    parser.add_argument("key")
    parser.add_argument("--token")
    parser.parse_args(namespace=OPTIONS)
    quic = QuicConfiguration(alpn_protocols=H3_ALPN, is_client=False, max_datagram_frame_size=65536,
                             max_datagram_size=1280, max_data=1 << 24, max_stream_data=1 << 24)
    quic.load_cert_chain(OPTIONS.cert, OPTIONS.key)
    await serve("127.0.0.1", OPTIONS.port, configuration=quic, create_protocol=Proxy)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
