"""Programs that know nothing of Hoplite: run inside a namespace by device_test.py, each prints JSON lines. usage: programs.py NAME ARGUMENT...

Servers: `flow-server`, `git-server`. Clients: `flows`, `hold`, `wait-ends`, `arrive`, `questions`, `trips`, `video`, `http3`, `resolve`, `ask`, `sizes`, `dressed`, `refused`,
`chatter`, `poker`.
"""

import asyncio
import collections
import contextlib
import hashlib
import http.server
import json
import os
import random
import resource
import selectors
import socket
import struct
import subprocess
import sys
import time

from servers import BLOCK

DOUBLE = BLOCK + BLOCK
LONGEST = len(BLOCK)


def say(**line):
    print(json.dumps(line), flush=True)


def content(seed, size):
    """Bytes that differ from flow to flow."""
    at = seed * 4099 % LONGEST
    return DOUBLE[at:at + size]


def digest(data):
    return hashlib.sha256(data).hexdigest()


# --- TCP flows of every kind, against a checksum ------------------------------------------------------------------------------------------

KINDS = ("whole", "early", "pieces", "slow", "empty", "reset-by-client", "reset-by-server", "idle")


def reset(writer):
    """Closes with RST."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def serve_flow(reader, writer):
    """One flow at the target; what kind it is, its first line says."""
    order, got, end = {}, b"", "eof"
    try:
        if line := await reader.readline():  # nothing comes on an empty flow
            order = json.loads(line)
            got = await SERVE.get(order["kind"], serve_whole)(reader, writer, order)
    except ConnectionResetError:
        end = "reset"
    except (OSError, asyncio.IncompleteReadError, ValueError) as e:
        end = type(e).__name__
    finally:
        writer.close()
    say(event="flow", id=order.get("id"), kind=order.get("kind"), bytes=len(got), sha256=digest(got), end=end, peer=writer.get_extra_info("peername")[0])


async def serve_whole(reader, writer, order):
    got = await reader.read(-1)
    writer.write(digest(got).encode() + b"\n" + content(order["id"], order["down"]))
    await writer.drain()
    return got


async def serve_early(reader, writer, order):
    """The server is the first that closes its side."""
    writer.write(content(order["id"], order["down"]))
    writer.write_eof()
    return await reader.read(-1)


async def serve_pieces(reader, writer, order):
    for size in order["pieces"]:
        writer.write(await reader.readexactly(size))
        await writer.drain()
    return b""


async def serve_reset(reader, writer, order):
    """Reset by the server, when the client has said that it has read something."""
    writer.write(content(order["id"], order["down"]))
    await reader.readexactly(1)
    reset(writer)
    return b""


async def serve_until_reset(reader, writer, order):
    await reader.readexactly(order["up"])
    writer.write(b"x")
    await reader.read(-1)
    return b""


SERVE = {"early": serve_early, "pieces": serve_pieces, "idle": serve_pieces,
         "reset-by-server": serve_reset, "reset-by-client": serve_until_reset}


async def flow_server(host, port):
    server = await asyncio.start_server(serve_flow, host, int(port), backlog=4096)
    say(event="up", host=host)
    async with server:
        await server.serve_forever()


async def flow(places, order, chance):
    """One flow of a program; raises when something is not as it must be."""
    host, port = places[order["id"] % len(places)]
    reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), 60)
    try:
        if order["kind"] != "empty":
            writer.write(json.dumps(order).encode() + b"\n")
            await CLIENT[order["kind"]](reader, writer, order, chance)
    finally:
        writer.close()


async def send_all(writer, order, chance):
    """In pieces of any size."""
    data, at = content(order["id"] + 1, order["up"]), 0
    while at < len(data):
        size = chance.choice((1, 100, 1460, 20000, 65536))
        writer.write(data[at:at + size])
        at += size
        await writer.drain()
    return data


def must(what, ok):
    if not ok:
        raise AssertionError(what)


async def whole(reader, writer, order, chance):
    data = await send_all(writer, order, chance)
    writer.write_eof()
    line = await reader.readline()
    must("what the server got", line.decode().strip() == digest(data))
    must("what the client got", await reader.read(-1) == content(order["id"], order["down"]))


async def slow(reader, writer, order, chance):
    writer.write_eof()
    await reader.readline()
    got = b""
    while piece := await reader.read(chance.randrange(1, 60000)):
        got += piece
        await asyncio.sleep(0.01)
    must("what the slow client got", got == content(order["id"], order["down"]))


async def early(reader, writer, order, chance):
    must("what came before the server closed", await reader.read(-1) == content(order["id"], order["down"]))
    await asyncio.sleep(chance.random() / 10)
    await send_all(writer, order, chance)  # the server's log has its checksum


async def pieces(reader, writer, order, chance):
    for size in order["pieces"]:
        data = content(order["id"], size)
        writer.write(data)
        must("an echo", await reader.readexactly(size) == data)
        if order["kind"] == "idle":
            await asyncio.sleep(0.5)


async def reset_by_client(reader, writer, order, chance):
    await send_all(writer, order, chance)
    must("the server's word", await reader.readexactly(1) == b"x")
    reset(writer)


async def reset_by_server(reader, writer, order, chance):
    got = await reader.readexactly(min(order["down"], 100))
    writer.write(b"y")
    try:
        got += await reader.read(-1)
    except ConnectionResetError:
        return
    must(f"the server's reset: it looked like an end after {len(got)} bytes", False)


CLIENT = {"whole": whole, "slow": slow, "early": early, "pieces": pieces, "idle": pieces,
          "reset-by-client": reset_by_client, "reset-by-server": reset_by_server}


def order_of(number, chance):
    size = lambda: int(10 ** chance.uniform(0, 5.3)) if chance.random() > 0.1 else 0  # noqa: E731
    kind = KINDS[number % len(KINDS)]
    order = {"id": number, "kind": kind, "up": size(), "down": max(size(), 200 if kind == "reset-by-server" else 0)}
    if kind in ("pieces", "idle"):
        order["pieces"] = [chance.randrange(1, 5000) for _ in range(4 if kind == "idle" else 20)]
    if kind == "slow":
        order |= {"up": 0, "down": 600_000}
    return order


async def flows(count, at_once, seed, *places):
    """`count` flows, so many at once, over the places HOST:PORT in turn."""
    chance, wrong, first, room = random.Random(int(seed)), collections.Counter(), {}, asyncio.Semaphore(int(at_once))
    places = [(place.rpartition(":")[0], int(place.rpartition(":")[2])) for place in places]
    orders = [order_of(number, chance) for number in range(int(count))]
    chance.shuffle(orders)

    async def one(order):
        async with room:
            try:
                await asyncio.wait_for(flow(places, order, random.Random(order["id"])), 90)
            except Exception as e:  # noqa: BLE001: counted
                wrong[f"{order['kind']}: {type(e).__name__}"] += 1
                first.setdefault(order["kind"], f"{order['id']}: {e}")

    began = time.monotonic()
    await asyncio.gather(*map(one, orders))
    sums = {o["id"]: digest(content(o["id"] + 1, o["up"])) for o in orders if o["kind"] == "early"}
    say(event="flows", count=len(orders), wrong=wrong, first=first, early=sums, seconds=time.monotonic() - began,
        resets=[o["id"] for o in orders if o["kind"] == "reset-by-client"])


# --- what flows cost: for device_bench.py ---------------------------------------------------------------------------------------------------


def many():
    """As many sockets as the machine allows."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


async def exchange(reader, writer):
    writer.write(b"x")
    must("an echo", await reader.readexactly(1) == b"x")


async def opened(host, port, number, exchanges):
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(json.dumps({"id": number, "kind": "pieces", "pieces": [1] * exchanges}).encode() + b"\n")
    await exchange(reader, writer)
    return reader, writer


async def hold(host, port, count, seconds):
    """So many flows open at once, each used when it is opened and once more at the end; a line when all are open."""
    many()
    room, failed, held, began = asyncio.Semaphore(200), collections.Counter(), [], time.monotonic()

    async def one(number):
        async with room:
            try:
                held.append(await asyncio.wait_for(opened(host, port, number, 2), 60))
            except Exception as e:  # noqa: BLE001: counted
                failed[type(e).__name__] += 1
    await asyncio.gather(*map(one, range(int(count))))
    say(event="held", count=len(held), failed=failed, seconds=time.monotonic() - began)
    await asyncio.sleep(float(seconds))
    answers = await asyncio.gather(*(asyncio.wait_for(exchange(*pair), 60) for pair in held), return_exceptions=True)
    say(event="answered", count=sum(a is None for a in answers))


async def wait_ends(host, port, count):
    """So many flows that do nothing, a line when all are open, and one when all have been ended by somebody else: how, and after how long."""
    many()
    room, began = asyncio.Semaphore(200), time.monotonic()

    async def one(number):
        async with room:
            return await asyncio.wait_for(opened(host, port, number, 2), 60)
    held = await asyncio.gather(*map(one, range(int(count))))
    say(event="held", count=len(held), seconds=time.monotonic() - began)
    ends = await asyncio.gather(*(reader.read(1) for reader, _ in held), return_exceptions=True)
    say(event="ends", count=len(ends), kinds=collections.Counter(type(end).__name__ for end in ends), seconds=time.monotonic() - began)


async def arrive(host, port, rate, seconds):
    """New flows at a rate, whatever becomes of those before; each does one exchange and closes."""
    many()
    failed, done, tasks, began = collections.Counter(), [], [], time.monotonic()

    async def one(number):
        started = time.monotonic()
        try:
            _, writer = await asyncio.wait_for(opened(host, port, number, 1), 20)
            done.append(time.monotonic() - started)
            writer.close()
        except Exception as e:  # noqa: BLE001: counted
            failed[type(e).__name__] += 1
    for number in range(int(float(rate) * float(seconds))):
        if (wait := began + number / float(rate) - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(one(number)))
    sent = time.monotonic() - began
    await asyncio.gather(*tasks)
    done.sort()
    say(event="arrive", count=len(done), failed=failed, rate=len(tasks) / sent, median_ms=1000 * done[len(done) // 2] if done else None,
        p99_ms=1000 * done[len(done) * 99 // 100] if done else None)


def trips(kind, host, port, count):
    """Round trips of one byte, one after the other, on one flow."""
    count, took = int(count), []
    s = udp(host, port) if kind == "udp" else socket.create_connection((host, int(port)))
    s.settimeout(5)
    if kind == "tcp":
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        s.sendall(json.dumps({"id": 1, "kind": "pieces", "pieces": [1] * (count + 20)}).encode() + b"\n")
    for number in range(count + 20):
        began = time.perf_counter()
        s.send(b"x")
        s.recv(1)
        if number >= 20:
            took.append(time.perf_counter() - began)
    took.sort()
    say(event="trips", kind=kind, median_ms=1000 * took[count // 2], p10_ms=1000 * took[count // 10], p90_ms=1000 * took[count * 9 // 10])


# --- UDP ------------------------------------------------------------------------------------------------------------------------------------


def udp(host, port):
    family, _, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.connect(address)
    return s


def questions(host, port, rate, seconds, patience=3):
    """New UDP flows at a rate: each asks an echo once, is answered, and is asked nothing more. What is not answered in time was dropped."""
    many()
    rate, total = float(rate), int(float(rate) * float(seconds))
    waiting, took, sent = {}, [], 0
    began = time.monotonic()
    with selectors.DefaultSelector() as selector:
        while sent < total or waiting:
            while sent < total and began + sent / rate <= time.monotonic():
                s = udp(host, port)
                s.send(sent.to_bytes(8))
                selector.register(s, selectors.EVENT_READ, (sent, time.monotonic()))
                waiting[s] = time.monotonic()
                sent += 1
            for key, _ in selector.select(0.0005 if sent < total else 0.1):
                with contextlib.suppress(OSError):
                    number, asked = key.data
                    if key.fileobj.recv(100) == number.to_bytes(8):
                        took.append(time.monotonic() - asked)
                selector.unregister(key.fileobj)
                waiting.pop(key.fileobj)
                key.fileobj.close()
            while waiting and time.monotonic() - (oldest := next(iter(waiting.items())))[1] > patience:
                selector.unregister(oldest[0])
                waiting.pop(oldest[0])
                oldest[0].close()
    took.sort()
    say(event="questions", count=len(took), dropped=total - len(took), rate=total / (time.monotonic() - began),
        median_ms=1000 * took[len(took) // 2] if took else None, p99_ms=1000 * took[len(took) * 99 // 100] if took else None)


def video(host, port, seconds, rate=2_500_000):
    """As a call sends: frames of several datagrams, 30 a second, each echoed; says what came back, in order or not, and its round trips."""
    s, frames, each = udp(host, port), int(float(seconds) * 30), 1100
    s.setblocking(False)
    sent, back, wrong, number, size = {}, [], 0, 0, max(1, int(rate) // 8 // 30 // each)
    began = time.monotonic()

    def collect(until):
        nonlocal wrong
        while (left := until - time.monotonic()) > 0:
            try:
                data = s.recv(65536)
            except BlockingIOError:
                time.sleep(min(left, 0.001))
                continue
            except OSError:
                continue
            which, = struct.unpack("!I", data[:4])
            wrong += data != struct.pack("!I", which) + content(which, each - 4)
            back.append((which, time.monotonic() - sent[which]))

    for frame in range(frames):
        for _ in range(size):
            sent[number] = time.monotonic()
            with contextlib.suppress(OSError):
                s.send(struct.pack("!I", number) + content(number, each - 4))
            number += 1
        collect(began + (frame + 1) / 30)
    collect(time.monotonic() + 0.5)
    order = [which for which, _ in back]
    trips = sorted(trip for _, trip in back)
    say(event="video", sent=number, back=len(set(order)), doubled=len(order) - len(set(order)), wrong=wrong,
        overtaken=sum(a > b for a, b in zip(order, order[1:])), median_ms=trips[len(trips) // 2] * 1000 if trips else None)


def sizes(host, port):
    """What a program that looks for the path's MTU meets: (asked for, came back), and what the kernel has learnt."""
    s = udp(host, port)
    six = s.family == socket.AF_INET6
    level, discover, mtu = (socket.IPPROTO_IPV6, 23, 24) if six else (socket.IPPROTO_IP, 10, 14)  # IPV6_MTU_DISCOVER, IPV6_MTU; IP_…
    headers = 48 if six else 28
    s.setsockopt(level, discover, 2)  # do not fragment, tell
    s.settimeout(2)

    def echoed(size):
        for _ in range(3):
            try:
                s.send(content(size, size))
                return len(s.recv(65536))
            except OSError as e:
                last = e.strerror or str(e)
        return last
    steps, learnt = {}, s.getsockopt(level, mtu)
    steps[learnt - headers] = echoed(learnt - headers)
    learnt = s.getsockopt(level, mtu)
    steps[learnt - headers] = echoed(learnt - headers)
    for size in (0, 1, 1200 if learnt >= 1250 else 1000):
        steps[size] = echoed(size)
    say(event="sizes", mtu=learnt, largest=learnt - headers, steps=steps)


# --- names, failures --------------------------------------------------------------------------------------------------------------------------


def resolve(*names):
    """What programs learn of names by getaddrinfo."""
    for name in names:
        began = time.monotonic()
        try:
            found = sorted({a[4][0] for a in socket.getaddrinfo(name, 80, type=socket.SOCK_STREAM)})
        except OSError as e:
            found = str(e)
        say(event="resolve", name=name, found=found, ms=(time.monotonic() - began) * 1000)


def ask(server, name, kind, over="udp"):
    """A DNS question; says the answer's code and how many records, and the bytes."""
    labels = b"".join(bytes([len(p)]) + p.encode() for p in name.split(".")) + b"\0"
    query = struct.pack("!HHHHHH", 0x4d2, 0x100, 1, 0, 0, 0) + labels + struct.pack("!HH", int(kind), 1)
    try:
        if over == "udp":
            with udp(server, 53) as s:
                s.settimeout(8)
                s.send(query)
                answer = s.recv(65536)
        else:
            with socket.create_connection((server, 53), 8) as s, s.makefile("rb") as f:
                s.sendall(struct.pack("!H", len(query)) + query)
                answer = f.read(struct.unpack("!H", f.read(2))[0])
    except OSError as e:
        return say(event="ask", error=str(e))
    ident, flags, _, count = struct.unpack("!HHHH", answer[:8])
    say(event="ask", mine=ident == 0x4d2, code=flags & 15, answers=count, truncated=bool(flags & 0x200), bytes=answer.hex())


def refused(kind, host, port):
    """How a program learns that it cannot go there, and how soon."""
    began, end = time.monotonic(), None
    try:
        if kind == "tcp":
            with socket.create_connection((host, int(port)), 15) as s:
                s.sendall(b"hello")
                end = f"{len(s.recv(1))} bytes"
        else:
            with udp(host, port) as s:
                s.settimeout(2)
                for _ in range(5):
                    s.send(b"hello")
                    with contextlib.suppress(TimeoutError):
                        end = f"{len(s.recv(100))} bytes"
    except OSError as e:
        end = type(e).__name__ + (f" {e.errno}" if e.errno else "")
    say(event="refused", end=end, seconds=time.monotonic() - began)


def http3(name, port, path, ca):
    from masque_client import http3_get
    status, body = asyncio.run(http3_get((name, int(port)), ca, name, path, seconds=60))
    say(event="http3", status=status, bytes=len(body), sha256=digest(body))


# --- one program in two dresses --------------------------------------------------------------------------------------------------------------


def dressed(host, tcp_port, udp_port, tos, hops, segment, buffer, own_port=0):
    """The same exchange with one kind of settings or another: what differs is header fields only."""
    tos, hops, segment, buffer = int(tos), int(hops), int(segment), int(buffer)
    six = ":" in host
    family, level = (socket.AF_INET6, socket.IPPROTO_IPV6) if six else (socket.AF_INET, socket.IPPROTO_IP)
    options = {67: tos, 16: hops} if six else {1: tos, 2: hops}  # IPV6_TCLASS, IPV6_UNICAST_HOPS; IP_TOS, IP_TTL
    with socket.socket(family, socket.SOCK_STREAM) as s:
        for option, value in options.items():
            s.setsockopt(level, option, value)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        s.settimeout(20)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("", int(own_port)))
        s.connect((host, int(tcp_port)))
        s.sendall(b"GET /bytes/20000 HTTP/1.1\r\nHost: x\r\n\r\n")
        got = 0
        while got < 20000 and (piece := s.recv(65536)):
            got += len(piece)
        s.send(b"!", socket.MSG_OOB)  # urgent data is a header field too
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        for option, value in options.items():
            s.setsockopt(level, option, value)
        s.settimeout(5)
        s.bind(("", int(own_port)))
        s.connect((host, int(udp_port)))
        back = 0
        for size in (1, 100, 1000):
            with contextlib.suppress(TimeoutError):
                s.send(b"d" * size)
                back += len(s.recv(2000))
    say(event="dressed", bytes=got, datagrams=back)


# --- those who never stop to talk ---------------------------------------------------------------------------------------------------------------


MULTICAST = "224.0.0.251"
QUESTION = bytes.fromhex("04d20100000100000000000006") + b"target\x04test" + bytes.fromhex("0000010001")


def quietly(attempt, *arguments, **more):
    with contextlib.suppress(OSError):
        return attempt(*arguments, **more)


def chatter(device, own4, own6, target4, target6, neighbour4, resolver):
    """Sends whatever a device sends, by every way that a program may choose, ten times a second, until it is stopped. All of it must stay inside."""
    bound = device.encode() + b"\0"

    def datagram(family, address, data=b"chatter target.test", to_device=False, source=None):
        with socket.socket(family, socket.SOCK_DGRAM) as s:
            s.setblocking(False)
            if to_device:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, bound)
            if source:
                s.bind((source, 0))
            s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            if address[0] == MULTICAST:
                s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(own4))
            s.sendto(data, address)

    def stream(family, address, to_device=False, source=None):
        s = socket.socket(family, socket.SOCK_STREAM)
        s.setblocking(False)
        if to_device:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, bound)
        if source:
            s.bind((source, 0))
        s.connect_ex(address)
        streams.append(s)

    def raw(family, protocol, address, data, to_device=False):
        with socket.socket(family, socket.SOCK_RAW, protocol) as s:
            if to_device:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, bound)
            s.setblocking(False)
            s.sendto(data, address)

    four, six, streams = socket.AF_INET, socket.AF_INET6, collections.deque()
    echo = b"\x08\x00\xf7\xfd\x00\x01\x00\x01"
    while True:
        for to_device in (False, True):
            quietly(datagram, four, (target4, 7), b"chatter target.test", to_device)
            quietly(datagram, six, (target6, 7), b"chatter target.test", to_device)
            quietly(datagram, four, (target4, 7), b"x" * 4000, to_device)
            quietly(datagram, four, (resolver, 53), QUESTION, to_device)
            quietly(datagram, four, ("9.9.9.9", 53), QUESTION, to_device)
            quietly(datagram, four, (neighbour4, 9), b"neighbour", to_device)
            quietly(datagram, four, (MULTICAST, 5353), b"mdns", to_device)
            quietly(datagram, four, ("255.255.255.255", 1900), b"broadcast", to_device)
            quietly(datagram, four, (neighbour4.rpartition(".")[0] + ".255", 1900), b"broadcast", to_device)
            quietly(datagram, six, ("ff02::fb%" + device, 5353), b"mdns", to_device)
            quietly(stream, four, (target4, 80), to_device)
            quietly(stream, six, (target6, 80), to_device)
            quietly(raw, four, 1, (target4, 0), echo, to_device)
            quietly(raw, four, 47, (target4, 0), b"\0\0\x08\0" + b"gre", to_device)
            quietly(raw, six, 58, (target6, 0, 0, 0), b"\x80\x00\x00\x00\x00\x01\x00\x01", to_device)
        quietly(datagram, four, (target4, 7), b"chatter target.test", False, own4)
        quietly(datagram, six, (target6, 7), b"chatter target.test", False, own6)
        quietly(stream, four, (target4, 80), False, own4)
        while len(streams) > 40:
            streams.popleft().close()
        time.sleep(0.1)


def poker(*addresses):
    """At the target: asks the device for answers that would show its address: echo, a closed port, a datagram, an open port (22)."""
    while True:
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with socket.socket(family, socket.SOCK_DGRAM) as s:
                quietly(s.sendto, b"poke", (address, 9))
            for port in (22, 9):
                with socket.socket(family, socket.SOCK_STREAM) as s:
                    s.setblocking(False)
                    quietly(s.connect_ex, (address, port))
                    time.sleep(0.05)
            quietly(subprocess.run, ["ping", "-c", "1", "-W", "0.1", address], capture_output=True)
        time.sleep(0.2)


# --- git by its smart protocol over HTTP --------------------------------------------------------------------------------------------------------


class Git(http.server.BaseHTTPRequestHandler):
    """CGI for git-http-backend."""

    root = ""

    def do_GET(self):
        path, _, query = self.path.partition("?")
        length = int(self.headers.get("content-length") or 0)
        environment = {**os.environ, "GIT_PROJECT_ROOT": self.root, "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path, "QUERY_STRING": query,
                       "REQUEST_METHOD": self.command, "CONTENT_TYPE": self.headers.get("content-type", ""), "CONTENT_LENGTH": str(length),
                       "GIT_PROTOCOL": self.headers.get("git-protocol", ""), "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding", "")}
        done = subprocess.run(["git", "http-backend"], input=self.rfile.read(length), env=environment, capture_output=True, check=False)
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().splitlines())
        self.send_response(int(fields.pop("Status", "200 OK").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_):
        pass


def git_server(host, port, root):
    Git.root = root
    server = http.server.ThreadingHTTPServer((host, int(port)), Git)
    say(event="up")
    server.serve_forever()


def main(name, *arguments):
    program = {f.__name__.replace("_", "-"): f for f in
               (flow_server, git_server, flows, hold, wait_ends, arrive, questions, trips, video, sizes, resolve, ask, refused, http3, dressed, chatter, poker)}[name]
    done = program(*arguments)
    if asyncio.iscoroutine(done):
        asyncio.run(done)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(0)
