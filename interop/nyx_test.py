"""nyx (2.1), the terminal that Tor's operators look at their relays and clients by, attached to a C tor client whose circuits go over relays of ours:
what its screen says of them.

Needs `tor`, `tor-gencert` and Python's `nyx` and `pyte`. The screen is a pseudo terminal's, as pyte draws it.
"""

import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import sys
import termios
import time

from client_test import fetch
from common import Checks, Lab, Missing, free_port, wait_for
from tor_relays_test import OURS, TAKEN, Ours, attempt, listed, network
from tor_services_test import program
from tor_test import targets

ROWS, COLUMNS = 70, 190
RIGHT, DOWN, ENTER = b"\x1bOC", b"\x1bOB", b"\n"
# nyx 2.1 is from before Python 3.11, which has it under its new name alone.
NYX = "import inspect; inspect.getargspec = inspect.getfullargspec; import nyx; nyx.main()"
FLAGS = {"Exit", "Fast", "Guard", "Running", "V2Dir", "Valid"}


class Screen:
    """nyx in a pseudo terminal."""

    def __init__(self, folder, port):
        import pyte
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.stream = pyte.ByteStream(self.screen)
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ |= {"TERM": "xterm", "LINES": str(ROWS), "COLUMNS": str(COLUMNS), "HOME": str(folder)}
            os.execv(sys.executable, [sys.executable, "-c", NYX, "-i", str(port)])
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

    def text(self, seconds=0.5):
        """What is on it when nothing has come for a moment."""
        while select.select([self.terminal], [], [], seconds)[0]:
            try:
                self.stream.feed(os.read(self.terminal, 1 << 16))
            except OSError:
                break
        return "\n".join(self.screen.display)

    def shows(self, words, seconds=60):
        end = time.monotonic() + seconds
        while words not in (text := self.text()):
            if time.monotonic() > end:
                raise TimeoutError(f"{words!r} is not on the screen:\n{text}")
        return text

    def press(self, key):
        os.write(self.terminal, key)
        return self.text()

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.terminal)


def details(screen, names):
    """What the details of connections say, and the descriptor behind them, line by line of the list until all of these have been there: by nickname."""
    found, end = {}, time.monotonic() + 180
    while set(names) - found.keys() and time.monotonic() < end:
        text = screen.press(DOWN)
        name = re.search(r"nickname: (\w+)", text)
        if name and name[1] in set(names) - found.keys():
            screen.press(b"d")
            found[name[1]] = text, screen.shows("Microdescriptor:")
            screen.press(b"d")
    return found


def client(lab, authorities):
    """A client whose circuits go over two of ours."""
    control = free_port()
    extra = f"ControlPort 127.0.0.1:{control}\nCookieAuthentication 0\nUseEntryGuards 0\nMiddleNodes amber,birch\nExitNodes cedar\n"
    via = program(lab, "watched", authorities, extra)
    via.control = control
    return via


def is_shown(checks, screen, mine):
    """The page of connections, a relay's details there, and its entry in the consensus with its microdescriptor."""
    screen.shows("page 1 / 5")
    screen.press(RIGHT)
    screen.shows("page 2 / 5")
    screen.shows("cedar")
    screen.press(ENTER)
    found = details(screen, OURS)
    for relay in mine:
        (text, described), rsa = found.get(relay.name, ("", "")), relay.keys()["rsa"].replace(" ", "")
        checks.check(f"nyx shows {relay.name}, and its fingerprint", rsa in text, text or screen.text())
        flags = re.search(r"flags: ([\w, ]+?)\s\s", text)
        checks.check(f"nyx shows {relay.name}'s flags", flags and FLAGS <= set(flags[1].split(", ")), flags and flags[0])
        checks.check(f"nyx shows {relay.name}'s entry in the consensus", f"({rsa})" in described and re.search(r"\bw +Bandwidth=", described), described)
        checks.check(f"nyx shows {relay.name}'s exit policy", re.search(r"\bp +reject 25\b", described), described)


def main():
    checks = Checks("nyx: relays of ours on its screen")
    if not all(map(shutil.which, ("tor", "tor-gencert"))):
        checks.skip("everything", Missing("tor or tor-gencert is not installed"))
        checks.done()
    try:
        import nyx  # noqa: F401: it runs in a terminal of its own
        import pyte  # noqa: F401
    except ImportError as e:
        checks.skip("everything", Missing(f"{e.name} is not installed"))
        checks.done()
    with Lab() as lab:
        http, resolver, names = targets(lab)
        authorities, _ = network(lab, names)
        wait_for("the authorities", lambda: len(listed(authorities[0])) >= 5 or time.sleep(0.5), 90)
        mine = [Ours(lab, name, resolver, authorities).start() for name in OURS]
        for relay in mine:
            wait_for("the authorities' answers", lambda relay=relay: relay.text().count(TAKEN) >= 3, 60)
        wait_for("our relays in the consensus", lambda: all(FLAGS <= listed(authorities[0]).get(name, set()) for name in OURS) or time.sleep(1), 120)
        via = client(lab, authorities)
        checks.attempt("a fetch over relays of ours", lambda: attempt(lambda: fetch(via, "127.0.0.1", http, 20_000)))
        screen = Screen(lab.folder, via.control)
        try:
            is_shown(checks, screen, mine)
        finally:
            screen.close()
    checks.done()


if __name__ == "__main__":
    main()
