"""Programs that do what no program should, and one that is merely unlucky: run inside a namespace by device_storms.py, each prints a JSON line.

usage: hostile.py NAME ARGUMENT...: `syn-flood`, `dns-storm`, `blast`, `never-read`, `never-written`, `deaf-server`, `rubbish`, `overlap`, `connects`, `with-options`.
"""

import contextlib
import errno
import json
import random
import select
import socket
import struct
import sys
import time

from programs import content, digest, say

OWN4, OWN6 = "198.18.0.1", "fd68:6f70:6c69:7465::1"
FIN, SYN, RST, PSH, ACK, URG = 1, 2, 4, 8, 16, 32
IP, IP6 = 0x0800, 0x86dd


# --- packets by hand -------------------------------------------------------------------------------------------------------------------------


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def packed(address):
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def ipv4(source, target, protocol, payload, options=b"", fragment=0x4000, ident=0, ttl=64):
    """`fragment`: flags and offset as they stand in the header."""
    words = 5 + len(options) // 4
    head = struct.pack("!BBHHHBBH4s4s", 0x40 | words, 0, 4 * words + len(payload), ident, fragment, ttl, protocol, 0, packed(source), packed(target)) + options
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload


def ipv6(source, target, protocol, payload):
    return struct.pack("!IHBB16s16s", 6 << 28, len(payload), protocol, 64, packed(source), packed(target)) + payload


def summed(source, target, protocol, payload, at):
    """With the checksum at byte `at` of the payload."""
    payload = payload[:at] + b"\0\0" + payload[at + 2:]
    pseudo = packed(source) + packed(target) + struct.pack("!IHBB", len(payload), 0, 0, protocol)
    return payload[:at] + struct.pack("!H", checksum(pseudo + payload)) + payload[at + 2:]


def tcp(source, target, ports, sequence, acknowledgment, flags, payload=b"", options=b"", window=65535):
    words = 5 + len(options) // 4
    head = struct.pack("!HHIIBBHHH", *ports, sequence & 0xffffffff, acknowledgment & 0xffffffff, words << 4, flags, window, 0, 0)
    return summed(source, target, 6, head + options + payload, 16)


def udp(source, target, ports, payload, length=None):
    head = struct.pack("!HHHH", *ports, 8 + len(payload) if length is None else length, 0)
    return summed(source, target, 17, head + payload, 6)


class Wire:
    """The kernel's side of the interface: what is sent here, the device reads, as it is."""

    def __init__(self, name):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
        self.name, self.sent, self.refused = name, 0, 0

    def send(self, packet, kind=None):
        kind = kind or (IP6 if packet[:1] and packet[0] >> 4 == 6 else IP)
        for _ in range(200):
            try:
                self.socket.sendto(packet, (self.name, kind))
                self.sent += 1
                return
            except OSError as e:
                if e.errno != errno.ENOBUFS:  # a packet that not even the kernel takes
                    break
                time.sleep(0.001)
        self.refused += 1


# --- floods ------------------------------------------------------------------------------------------------------------------------------------


def syn_flood(target, first, count, rate):
    """SYNs without an end from one program, to ports and from ports of every number; what comes back it does not look at."""
    count, first, rate = int(count), int(first), float(rate)
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    began, sent = time.monotonic(), 0
    for number in range(count):
        ports = (1024 + number % 60000, first + number % 5000)
        with contextlib.suppress(OSError):
            s.sendto(ipv4(OWN4, target, 6, tcp(OWN4, target, ports, number * 7919, 0, SYN)), (target, 0))
            sent += 1
        if (wait := began + number / rate - time.monotonic()) > 0.01:
            time.sleep(wait)
    say(event="syn-flood", sent=sent, seconds=time.monotonic() - began)


def dns_storm(server, count, label):
    """Questions for names that nobody asked before, as fast as they are answered, 500 at a time; says the answers' codes and how many addresses differ."""
    count, asked, codes, seen = int(count), 0, {}, set()
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    s.connect((server, 53))
    s.setblocking(False)
    began, heard, last = time.monotonic(), 0, time.monotonic()
    while heard < count and time.monotonic() - last < 2:
        while asked < count and asked - heard < 500:
            name = f"{label}{asked}".encode()
            question = struct.pack("!HHHHHH", asked & 0xffff, 0x100, 1, 0, 0, 0) + bytes([len(name)]) + name + b"\x05storm\x04test\0" + b"\0\1\0\1"
            try:
                s.send(question)
            except OSError:
                break
            asked += 1
        select.select([s], [], [], 0.2)
        with contextlib.suppress(OSError):
            while True:
                answer = s.recv(4096)
                heard, last = heard + 1, time.monotonic()
                code = answer[3] & 15
                codes[code] = codes.get(code, 0) + 1
                if code == 0 and answer[7]:
                    seen.add(answer[-4:])
    say(event="dns-storm", asked=asked, heard=heard, codes=codes, addresses=len(seen), seconds=time.monotonic() - began)


def blast(target, port, count):
    """Datagrams as fast as the kernel takes them, each on one of some sockets; nobody reads what comes back."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(50)]
    sent, full = 0, 0
    for s in sockets:
        s.setblocking(False)
        s.connect((target, int(port)))
    for number in range(int(count)):
        try:
            sockets[number % len(sockets)].send(content(number, 1000))
            sent += 1
        except OSError:
            full += 1
    say(event="blast", sent=sent, full=full)


def never_read(target, port, count, seconds):
    """Opens connections to somebody who talks without an end, and reads nothing."""
    held = [socket.create_connection((target, int(port)), 20) for _ in range(int(count))]
    say(event="held", count=len(held))
    time.sleep(float(seconds))


def never_written(target, port, count, seconds):
    """Sends much on many connections to somebody who reads nothing, as far as it is taken."""
    held = []
    for _ in range(int(count)):
        s = socket.create_connection((target, int(port)), 20)
        s.setblocking(False)
        held.append(s)
    say(event="held", count=len(held))
    until = time.monotonic() + float(seconds)
    while time.monotonic() < until:
        for s in held:
            with contextlib.suppress(BlockingIOError):
                while True:
                    s.send(bytes(65536))
        time.sleep(0.1)


def deaf_server(host, port, *talks):
    """Takes connections and never reads; `talks`: it writes without an end, as much as is taken."""
    server, held = socket.create_server((host, int(port)), backlog=1024), []
    server.settimeout(0.05)
    say(event="up")
    while True:
        with contextlib.suppress(TimeoutError):
            while True:
                s, _ = server.accept()
                s.setblocking(False)
                held.append(s)
        for s in held if talks else []:
            with contextlib.suppress(OSError):
                while True:
                    s.send(bytes(65536))


# --- rubbish -----------------------------------------------------------------------------------------------------------------------------------


def whole_packets(target4, target6):
    """Packets as they should be, to begin with: they are changed below."""
    chance = random.Random(1)
    port = lambda: chance.randrange(1, 65536)  # noqa: E731
    return [
        lambda: ipv4(OWN4, target4, 6, tcp(OWN4, target4, (port(), 80), port(), 0, SYN, options=b"\x02\x04\x05\xb4\x01\x03\x03\x07")),
        lambda: ipv4(OWN4, target4, 6, tcp(OWN4, target4, (port(), 80), port(), port(), ACK | PSH, b"GET / HTTP/1.1\r\n\r\n")),
        lambda: ipv4(OWN4, target4, 17, udp(OWN4, target4, (port(), 7), b"rubbish" * 20)),
        lambda: ipv4(OWN4, target4, 1, struct.pack("!BBHHH", 8, 0, 0, 1, 1) + b"p" * 40),
        lambda: ipv4(OWN4, "198.18.0.2", 17, udp(OWN4, "198.18.0.2", (port(), 53), b"\0\1\1\0\0\1\0\0\0\0\0\0\6target\4test\0\0\1\0\1")),
        lambda: ipv6(OWN6, target6, 6, tcp(OWN6, target6, (port(), 80), port(), 0, SYN)),
        lambda: ipv6(OWN6, target6, 17, udp(OWN6, target6, (port(), 7), b"rubbish")),
        lambda: ipv6(OWN6, target6, 58, struct.pack("!BBHHH", 128, 0, 0, 1, 1) + b"p" * 40),
    ]


def spoilt(packet, chance):
    """A packet with bytes changed, cut off, or added."""
    packet = bytearray(packet)
    for _ in range(chance.choice((1, 1, 2, 5, 40))):
        packet[chance.randrange(min(len(packet), chance.choice((12, 40, 80))))] = chance.choice((0, 1, 0x7f, 0x80, 0xff, chance.randrange(256)))
    match chance.randrange(5):
        case 0:
            del packet[chance.randrange(len(packet)):]
        case 1:
            packet += chance.randbytes(chance.randrange(1400 - min(len(packet), 1300)))
    return bytes(packet)


def believable(target4, chance):
    """Rubbish behind headers that are right: questions of DNS and segments."""
    length = chance.randrange(1, 300)
    if chance.random() < 0.5:
        question = bytearray(b"\0\1\1\0\0\1\0\0\0\0\0\0\6target\4test\0\0\1\0\1")
        for _ in range(chance.randrange(1, 6)):
            question[chance.randrange(len(question))] = chance.randrange(256)
        return ipv4(OWN4, "198.18.0.2", 17, udp(OWN4, "198.18.0.2", (chance.randrange(1, 65536), 53), bytes(question[:chance.randrange(len(question) + 1)])))
    head = struct.pack("!HHIIBBHHH", chance.randrange(1, 65536), chance.choice((80, 443, 7001)), chance.getrandbits(32), chance.getrandbits(32),
                       chance.choice((5, 6, 10, 15)) << 4, chance.randrange(256), chance.randrange(65536), 0, chance.randrange(65536))
    return ipv4(OWN4, target4, 6, summed(OWN4, target4, 6, head + chance.randbytes(length), 16))


def odd(target4, target6):
    """(what it is, packet): each of them is to be dropped, refused or answered, and none to do harm."""
    ports, all_ones, foreign = (4000, 7), b"\xff" * 1400, "203.0.113.77"
    datagram = udp(OWN4, target4, ports, b"x" * 64)
    syn = tcp(OWN4, target4, (4001, 80), 1, 0, SYN)
    yield "empty", b""
    yield "one byte", b"\x45"
    yield "an IPv4 header and no more", ipv4(OWN4, target4, 17, b"")
    yield "an IPv6 header and no more", ipv6(OWN6, target6, 17, b"")
    yield "a header longer than the packet", b"\x4f" + ipv4(OWN4, target4, 17, b"")[1:]
    yield "total length 0", ipv4(OWN4, target4, 17, datagram)[:2] + b"\0\0" + ipv4(OWN4, target4, 17, datagram)[4:]
    yield "total length 65535", ipv4(OWN4, target4, 17, datagram)[:2] + b"\xff\xff" + ipv4(OWN4, target4, 17, datagram)[4:]
    yield "version 5", b"\x55" + ipv4(OWN4, target4, 17, datagram)[1:]
    yield "a UDP length of 0", ipv4(OWN4, target4, 17, udp(OWN4, target4, ports, b"x", 0))
    yield "a UDP length beyond the end", ipv4(OWN4, target4, 17, udp(OWN4, target4, ports, b"x", 2000))
    yield "a wrong UDP checksum", ipv4(OWN4, target4, 17, datagram[:6] + b"\x12\x34" + datagram[8:])
    yield "a wrong TCP checksum", ipv4(OWN4, target4, 6, syn[:16] + b"\x12\x34" + syn[18:])
    yield "port 0", ipv4(OWN4, target4, 17, udp(OWN4, target4, (0, 7), b"x"))
    yield "a TCP header of 4 bytes", ipv4(OWN4, target4, 6, syn[:12] + b"\x10" + syn[13:])
    yield "a TCP header of 60 bytes that are not there", ipv4(OWN4, target4, 6, syn[:12] + b"\xf0" + syn[13:])
    for flags in (0, SYN | FIN, SYN | RST, SYN | FIN | RST | PSH | ACK | URG, FIN | PSH | URG, 0xff):
        yield f"TCP flags {flags:#x}", ipv4(OWN4, target4, 6, tcp(OWN4, target4, (4002, 80), 1, 1, flags, b"x"))
    yield "TCP options of length 0", ipv4(OWN4, target4, 6, tcp(OWN4, target4, (4003, 80), 1, 0, SYN, options=b"\x02\x00\x03\x00"))
    yield "TCP options that end beyond the header", ipv4(OWN4, target4, 6, tcp(OWN4, target4, (4003, 80), 1, 0, SYN, options=b"\x02\xff\x03\xff"))
    yield "a segment size of 0", ipv4(OWN4, target4, 6, tcp(OWN4, target4, (4004, 80), 1, 0, SYN, options=b"\x02\x04\x00\x00"))
    yield "a window scale of 255", ipv4(OWN4, target4, 6, tcp(OWN4, target4, (4005, 80), 1, 0, SYN, options=b"\x01\x03\x03\xff"))
    yield "a SYN with data, and of no window", ipv4(OWN4, target4, 6, tcp(OWN4, target4, (4006, 80), 1, 0, SYN, b"x" * 1400, window=0))
    yield "IPv4 options", ipv4(OWN4, target4, 17, datagram, options=b"\x07\x27\x04" + b"\0" * 37)
    yield "a source route", ipv4(OWN4, target4, 17, datagram, options=b"\x83\x07\x04" + packed(target4) + b"\0")
    yield "options of length 0", ipv4(OWN4, target4, 17, datagram, options=b"\x07\x00\x00\x00")
    for offset, more in ((0, 0x2000), (1, 0x2000), (1, 0), (3, 0x2000), (0x1fff, 0)):
        yield "fragments that overlap", ipv4(OWN4, target4, 17, datagram, fragment=more | offset, ident=7)
    yield "hop-by-hop options", ipv6(OWN6, target6, 0, struct.pack("!BBIH", 17, 0, 0x01040000, 0) + udp(OWN6, target6, ports, b"x"))
    yield "a chain of extension headers", ipv6(OWN6, target6, 60, (b"\x3c\0\1\4\0\0\0\0" * 150)[:-8] + b"\x11\0\1\4\0\0\0\0")
    yield "an extension header that never ends", ipv6(OWN6, target6, 60, b"\x3c\xff" + b"\0" * 60)
    for offset in (0, 8, 1, 0xfff8):
        yield "IPv6 fragments", ipv6(OWN6, target6, 44, struct.pack("!BBHI", 17, 0, offset | 1, 9) + udp(OWN6, target6, ports, b"x" * 16))
    yield "IPv6 without a next header", ipv6(OWN6, target6, 59, b"x" * 20)
    yield "a source that is not ours", ipv4(foreign, target4, 17, udp(foreign, target4, ports, b"x"))
    yield "a SYN from somebody else", ipv4(foreign, target4, 6, tcp(foreign, target4, (4007, 80), 1, 0, SYN))
    yield "the target's own address as source", ipv4(target4, target4, 6, tcp(target4, target4, (80, 80), 1, 0, SYN))
    yield "our own address as target", ipv4(OWN4, OWN4, 17, udp(OWN4, OWN4, ports, b"x"))
    for to in ("224.0.0.1", "255.255.255.255", "127.0.0.1", "0.0.0.0", "169.254.1.1", "240.0.0.1"):
        yield "a target that is nobody", ipv4(OWN4, to, 17, udp(OWN4, to, ports, b"x"))
    for to in ("ff02::1", "::1", "::", "fe80::1", "::ffff:10.0.0.1"):
        yield "a target that is nobody", ipv6(OWN6, to, 17, udp(OWN6, to, ports, b"x"))
    for source in ("255.255.255.255", "224.0.0.1", "0.0.0.0", "127.0.0.1"):
        yield "a source that is nobody", ipv4(source, target4, 17, udp(source, target4, ports, b"x"))
    yield "an ICMP error about nothing", ipv4(OWN4, target4, 1, b"\x03\x01\xfc\xfe\0\0\0\0")
    yield "an ICMP error that quotes itself", ipv4(OWN4, target4, 1, b"\x03\x04\0\0\0\0\0\1" + ipv4(target4, OWN4, 1, b"\x03\x04"))
    yield "an echo of no byte", ipv4(OWN4, target4, 1, b"\x08")
    yield "the largest packet of rubbish", all_ones
    for protocol in (2, 4, 41, 47, 50, 103, 132, 255):
        yield "other protocols", ipv4(OWN4, target4, protocol, b"\0" * 40)


def rubbish(device, target4, target6, count, seed):
    """Everything that a packet must not be, then `count` packets that were right before chance spoilt them."""
    wire, chance = Wire(device), random.Random(int(seed))
    kinds = [(what, packet) for _ in range(3) for what, packet in odd(target4, target6)]
    for _, packet in kinds:
        wire.send(packet)
    makers, began = whole_packets(target4, target6), time.monotonic()
    for number in range(int(count)):
        wire.send(believable(target4, chance) if number % 4 == 0 else spoilt(chance.choice(makers)(), chance))
        if number % 16 == 15:
            time.sleep(0.001)  # so that the queue is not what drops them
    say(event="rubbish", kinds=len({what for what, _ in kinds}), sent=wire.sent, refused=wire.refused, seconds=time.monotonic() - began)


# --- a connection by hand, whose segments overlap ------------------------------------------------------------------------------------------------


def overlap(device, target, port, size, seed):
    """An order to programs.py's flow server whose bytes come in pieces of any size, in any order, several times and overlapping; in between
    other bytes in the place of those that were acknowledged long since. The server's checksum says what arrived. The kernel must be kept
    from resetting what it does not know: the caller drops what comes for ports 61000 to 61999, which are nobody else's."""
    chance, ports, size = random.Random(int(seed)), (61000 + int(seed) % 1000, int(port)), int(size)
    wire, ear = Wire(device), socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(IP))
    ear.bind((device, IP))
    ear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    order = json.dumps({"id": 31337, "kind": "whole", "down": 10, "up": size}).encode() + b"\n"
    body = content(31338, size)
    stream, isn = order + body, 0xfffff000  # the numbers run over in the middle
    theirs = acked = None
    got = b""

    def send(sequence, flags, payload=b""):
        wire.send(ipv4(OWN4, target, 6, tcp(OWN4, target, ports, isn + sequence, theirs or 0, flags, payload)))

    def listen(seconds):
        """What has been acknowledged of the stream; also keeps what comes."""
        nonlocal theirs, acked, got
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and select.select([ear], [], [], left)[0]:
            packet = ear.recv(70000)
            at = 4 * (packet[0] & 15)
            if packet[9] != 6 or packet[12:16] != packed(target) or packet[at:at + 4] != struct.pack("!HH", ports[1], ports[0]):
                continue
            sequence, acknowledgment = struct.unpack("!II", packet[at + 4:at + 12])
            flags, data = packet[at + 13], packet[at + 4 * (packet[at + 12] >> 4):]
            if flags & RST:
                return say(event="overlap", error=f"reset after {acked} of {len(stream)}") or sys.exit()
            if flags & SYN:
                theirs, acked = (sequence + 1) & 0xffffffff, 0
            else:
                acked = max(acked or 0, (acknowledgment - isn - 1) & 0xffffffff)
                if data and sequence == theirs:
                    got, theirs = got + data, (theirs + len(data)) & 0xffffffff
            return
    for _ in range(20):
        send(0, SYN)
        listen(1)
        if theirs:
            break
    else:
        return say(event="overlap", error="no answer to the SYN")
    send(1, ACK)
    ended, pieces = time.monotonic() + 30, 0
    while acked < len(stream) and time.monotonic() < ended:
        places = [acked, *(acked + chance.randrange(30000) for _ in range(6))]
        chance.shuffle(places)
        for place in places:
            piece = stream[place:place + chance.choice((1, 7, 500, 1400))]
            if piece:
                send(1 + place, ACK | PSH, piece)
                pieces += 1
        if acked > 3000:
            send(1 + acked - 3000, ACK, b"\xee" * 1400)  # other bytes in an old place: they came first, and stay
        listen(0.05)
        while select.select([ear], [], [], 0)[0]:
            listen(0.001)
    send(1 + len(stream), ACK | FIN)
    while b"\n" not in got and time.monotonic() < ended:
        listen(0.5)
    send(2 + len(stream), RST)
    said = got.split(b"\n")[0].decode(errors="replace")
    say(event="overlap", pieces=pieces, acked=acked, of=len(stream), right=said == digest(body), said=said)


# --- what connect() says -------------------------------------------------------------------------------------------------------------------------


def connects(*places):
    """For each HOST,PORT: the error that connect() gives, or what comes after it."""
    for place in places:
        host, port = place.rsplit(",", 1)
        began, end, where = time.monotonic(), None, "connect"
        try:
            family, _, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
            with socket.socket(family, socket.SOCK_STREAM) as s:
                s.settimeout(20)
                s.connect(address)
                where = "later"
                s.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                end = "answer" if s.recv(1) else "end"
        except OSError as e:
            end = errno.errorcode.get(e.errno, type(e).__name__)
        say(event="connects", place=place, where=where, end=end, seconds=time.monotonic() - began)


def with_options(host, port, echo):
    """TCP and UDP with IPv4 options (no-operations, which change nothing) in every packet."""
    options = b"\x01\x01\x01\x00"
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as s:
        s.setsockopt(socket.IPPROTO_IP, 4, options)  # IP_OPTIONS
        s.settimeout(3)
        try:
            s.connect((host, int(port)))
            s.sendall(b"GET /peer HTTP/1.1\r\nHost: x\r\n\r\n")
            found["tcp"] = s.recv(8).decode()
        except OSError as e:
            found["tcp"] = type(e).__name__
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.setsockopt(socket.IPPROTO_IP, 4, options)
        s.settimeout(2)
        try:
            s.connect((host, int(echo)))
            s.send(b"options")
            found["udp"] = s.recv(100).decode()
        except OSError as e:
            found["udp"] = type(e).__name__
    say(event="with-options", **found)


def main(name, *arguments):
    {f.__name__.replace("_", "-"): f for f in (syn_flood, dns_storm, blast, never_read, never_written, deaf_server, rubbish, overlap, connects, with_options)}[name](*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
