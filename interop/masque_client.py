"""An independent MASQUE client on aioquic: CONNECT and CONNECT-UDP, datagrams in either form, and raw frames for bad manners."""

import asyncio
import contextlib
import urllib.parse

from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.buffer import Buffer, encode_uint_var
from aioquic.h3.connection import H3_ALPN, H3Connection, Setting
from aioquic.h3.events import DataReceived, DatagramReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, StreamReset

DATAGRAM_CAPSULE = 0x00


class Http3(H3Connection):
    def _get_local_settings(self):
        return {**super()._get_local_settings(), Setting.H3_DATAGRAM: 1}


class Exchange:
    """One request: its answer, then what comes on the stream and as datagrams."""

    def __init__(self, client, stream):
        self.client, self.stream = client, stream
        self.head = asyncio.get_running_loop().create_future()
        self.head.add_done_callback(lambda f: f.cancelled() or f.exception())
        self.data, self.datagrams = asyncio.Queue(), asyncio.Queue()
        self.capsule_buffer, self.reset = b"", None

    async def status(self, seconds=15):
        head = await asyncio.wait_for(asyncio.shield(self.head), seconds)
        return int(head[b":status"])

    def header(self, name):
        return self.head.result().get(name.encode(), b"").decode()

    def write(self, data, end=False):
        self.client.http.send_data(self.stream, data, end)
        self.client.transmit()

    async def read(self, seconds=15):
        """The next piece of the stream; None at its end."""
        return await asyncio.wait_for(self.data.get(), seconds)

    async def read_all(self, size, seconds=60):
        out = bytearray()
        async with asyncio.timeout(seconds):
            while len(out) < size and (piece := await self.data.get()) is not None:
                out += piece
        return bytes(out)

    def send_datagram(self, payload, context=0):
        self.client.http.send_datagram(self.stream, encode_uint_var(context) + payload)
        self.client.transmit()

    def send_capsule(self, payload, context=0, kind=DATAGRAM_CAPSULE):
        value = encode_uint_var(context) + payload if kind == DATAGRAM_CAPSULE else payload
        self.write(encode_uint_var(kind) + encode_uint_var(len(value)) + value)

    async def datagram(self, seconds=5):
        """The payload of the next QUIC DATAGRAM with context 0."""
        raw = await asyncio.wait_for(self.datagrams.get(), seconds)
        return raw[1:] if raw[:1] == b"\0" else None

    async def capsule(self, seconds=5):
        """The payload of the next DATAGRAM capsule with context 0."""
        async with asyncio.timeout(seconds):
            while True:
                if capsule := self._cut():
                    kind, value = capsule
                    if kind == DATAGRAM_CAPSULE and value[:1] == b"\0":
                        return value[1:]
                    continue
                piece = await self.data.get()
                if piece is None:
                    raise EOFError("the stream ended")
                self.capsule_buffer += piece

    def _cut(self):
        buffer = Buffer(data=self.capsule_buffer)
        try:
            kind, size = buffer.pull_uint_var(), buffer.pull_uint_var()
            value = buffer.pull_bytes(size)
        except ValueError:
            return None
        self.capsule_buffer = self.capsule_buffer[buffer.tell():]
        return kind, value


class Client(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = Http3(self._quic)
        self.exchanges = {}
        self.closed = asyncio.get_running_loop().create_future()
        self.authority, self.token = "localhost", None

    def quic_event_received(self, event):
        if isinstance(event, ConnectionTerminated) and not self.closed.done():
            self.closed.set_result(event)
            for exchange in self.exchanges.values():
                exchange.data.put_nowait(None)
                if not exchange.head.done():
                    exchange.head.set_exception(ConnectionError(f"closed: {event.error_code:#x} {event.reason_phrase}"))
        if isinstance(event, StreamReset) and event.stream_id in self.exchanges:
            exchange = self.exchanges[event.stream_id]
            exchange.reset = event.error_code
            exchange.data.put_nowait(None)
            if not exchange.head.done():
                exchange.head.set_exception(ConnectionResetError(f"{event.error_code:#x}"))
        for e in self.http.handle_event(event):
            self._http_event(e)

    def _http_event(self, event):
        exchange = self.exchanges.get(getattr(event, "stream_id", None))
        if exchange is None:
            return
        if isinstance(event, HeadersReceived):
            if not exchange.head.done():
                exchange.head.set_result(dict(event.headers))
        elif isinstance(event, DataReceived):
            if event.data:
                exchange.data.put_nowait(event.data)
        elif isinstance(event, DatagramReceived):
            exchange.datagrams.put_nowait(event.data)
        if getattr(event, "stream_ended", False):
            exchange.data.put_nowait(None)

    async def settings(self, seconds=5):
        async with asyncio.timeout(seconds):
            while self.http.received_settings is None:
                await asyncio.sleep(0.02)
        return self.http.received_settings

    def request(self, fields, token="own", header="proxy-authorization", end=False):
        token = self.token if token == "own" else token
        if token:
            fields = [*fields, (header, f"Bearer {token}")]
        stream = self._quic.get_next_available_stream_id()
        exchange = self.exchanges[stream] = Exchange(self, stream)
        self.http.send_headers(stream, [(k.encode(), v.encode()) for k, v in fields], end)
        self.transmit()
        return exchange

    def connect_tcp(self, authority, **more):
        return self.request([(":method", "CONNECT"), (":authority", authority)], **more)

    def connect_udp(self, host, port, path=None, authority=None, **more):
        quoted = urllib.parse.quote(host, safe="")
        path = path or f"/.well-known/masque/udp/{quoted}/{port}/"
        return self.request([(":method", "CONNECT"), (":protocol", "connect-udp"), (":scheme", "https"),
                             (":authority", authority or self.authority), (":path", path),
                             ("capsule-protocol", "?1")], **more)

    def raw_stream(self, data, end=False, unidirectional=False):
        """Bytes on a stream of their own, as they are."""
        stream = self._quic.get_next_available_stream_id(is_unidirectional=unidirectional)
        self.exchanges[stream] = Exchange(self, stream)
        self._quic.send_stream_data(stream, data, end)
        self.transmit()
        return self.exchanges[stream]

    def raw_datagram(self, data):
        self._quic.send_datagram_frame(data)
        self.transmit()

    async def close_code(self, seconds=5):
        """The error code that the peer closed with; None when it did not."""
        try:
            return (await asyncio.wait_for(asyncio.shield(self.closed), seconds)).error_code
        except TimeoutError:
            return None


async def http3_get(address, ca, server_name, path, seconds=60):
    """A whole HTTP/3 download, no proxy: `address` may be a shim that leads through one."""
    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, cafile=str(ca), server_name=server_name,
                                      max_datagram_frame_size=65536,
                                      max_data=1 << 24, max_stream_data=1 << 24)
    async with asyncio.timeout(seconds), connect(*address, configuration=configuration, create_protocol=Client) as client:
        exchange = client.request([(":method", "GET"), (":scheme", "https"), (":authority", server_name), (":path", path)],
                                  end=True)
        body = bytearray()
        while (piece := await exchange.data.get()) is not None:
            body += piece
        return await exchange.status(), bytes(body)


@contextlib.asynccontextmanager
async def session(port, ca, token=None, host="127.0.0.1", **more):
    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, cafile=str(ca), server_name="localhost",
                                      max_datagram_frame_size=65536, max_datagram_size=1400, **more)
    async with connect(host, port, configuration=configuration, create_protocol=Client) as client:
        client.authority, client.token = f"localhost:{port}", token
        yield client
