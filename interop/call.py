"""A call over UDP, as two programs that know nothing of Hoplite: each sends 50 datagrams a second of 160 to 200 bytes, numbered and with the time.

usage: call.py answer HOST PORT    takes calls, says a JSON line for each when it is over
       call.py call HOST PORT SECONDS    calls; says a JSON line with what it has heard
Both ends are on one machine, so they share a clock, and delays are of one way.
"""

import json
import socket
import struct
import sys
import threading
import time

from programs import content

EVERY, PATIENCE = 0.02, 2
HEAD = struct.Struct("!Id")
HELLO = b"hello"


def say(**line):
    print(json.dumps(line), flush=True)


def datagram(number):
    """As compressed sound: no two have to be of one length."""
    head = HEAD.pack(number, time.monotonic())
    return head + content(number, 160 + number % 41 - len(head))


def talk(s, peer, seconds):
    """Sends what one says in a call; how many datagrams."""
    began, number = time.monotonic(), 0
    while (due := number * EVERY) < seconds:
        time.sleep(max(0, began + due - time.monotonic()))
        s.sendto(datagram(number), peer)
        number += 1
    return number


class Heard:
    """What has come of the other end's datagrams."""

    def __init__(self):
        self.numbers, self.delays, self.changed = [], [], 0

    def take(self, data):
        number, sent = HEAD.unpack(data[:HEAD.size])
        self.numbers.append(number)
        self.delays.append((time.monotonic() - sent) * 1000)
        self.changed += data[HEAD.size:] != content(number, 160 + number % 41 - HEAD.size)

    def told(self, sent):
        """Of so many: how many were lost, came twice, changed, or overtook others, and how late they were, in milliseconds."""
        delays, numbers = sorted(self.delays), self.numbers
        at = lambda share: delays[min(len(delays) - 1, int(share * len(delays)))] if delays else None  # noqa: E731
        return {"sent": sent, "lost": sent - len(set(numbers)), "doubled": len(numbers) - len(set(numbers)), "changed": self.changed,
                "overtaken": sum(a > b for a, b in zip(numbers, numbers[1:])), "median_ms": at(0.5), "p99_ms": at(0.99), "most_ms": at(1)}


def listen(s, heard, until):
    """Until nothing has come for some time, or `until` says so; the caller has set the socket's timeout."""
    while not until():
        try:
            data = s.recv(2000)
        except TimeoutError:
            continue
        except OSError:
            return
        if data != HELLO:
            heard.take(data)


def call(host, port, seconds):
    """The first datagrams wait for a circuit: it says hello until it is answered, and then talks."""
    family, _, _, _, peer = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.connect(peer)
    s.settimeout(1)
    seconds = float(seconds)
    for _ in range(60):
        s.send(HELLO)
        try:
            if s.recv(2000) == HELLO:
                break
        except OSError:
            time.sleep(0.1)
    else:
        return say(event="call", error="nobody answers")
    s.settimeout(0.2)
    while True:  # answers to further hellos
        try:
            s.recv(2000)
        except TimeoutError:
            break
    s.send(struct.pack("!d", seconds))
    heard, over = Heard(), []
    ear = threading.Thread(target=listen, args=(s, heard, lambda: over))
    ear.start()
    sent = talk(s, peer, seconds)
    time.sleep(PATIENCE)
    over.append(True)
    ear.join()
    s.close()
    say(event="call", sent=sent, heard=heard.told(int(seconds / EVERY)))


def answer(host, port):
    """One thread for each caller: what it says comes through a queue of its own."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((host, int(port)))
    say(event="up")
    calls = {}
    while True:
        data, peer = s.recvfrom(2000)
        if data == HELLO:
            s.sendto(HELLO, peer)
        elif len(data) == 8:
            seconds, = struct.unpack("!d", data)
            calls[peer] = heard = Heard()
            threading.Thread(target=answered, args=(s, peer, seconds, heard), daemon=True).start()
        elif peer in calls:
            calls[peer].take(data)


def answered(s, peer, seconds, heard):
    sent = talk(s, peer, seconds)
    time.sleep(PATIENCE)
    say(event="answered", peer=peer[0], sent=sent, heard=heard.told(sent))


if __name__ == "__main__":
    try:
        {"call": call, "answer": answer}[sys.argv[1]](*sys.argv[2:])
    except KeyboardInterrupt:
        sys.exit(0)
