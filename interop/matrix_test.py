"""A few rows of matrix.py, once each: a device's traffic comes back after what happens to its network, and goes over what it should. Needs root.

usage: matrix_test.py [PATH…]: 1, circuits
"""

import json
import sys

import matrix
from common import Checks
from device import DeviceLab, usable

# What each row is asked for at least: whether the open connection lives on, and what everything goes over at the end.
WANTED = {
    "1": {
        "the NAT forgets, and gives other ports": ("open", "QUIC"),
        "from a network with IPv4 alone to one with IPv6 alone": ("open", "QUIC"),
        # New flows are back on QUIC, the flow of datagrams stays where it went.
        "UDP is dead for 8 s": (None, "QUIC and TLS"),
        "only TCP's port 443 passes": ("open", "TLS"),
    },
    "circuits": {"UDP is dead for 8 s": (None, "QUIC and TLS")},
}
# Seconds: times stand in docs/measurements; here it matters that they end.
PATIENCE = 15


def main():
    checks, chosen = Checks("matrix"), sys.argv[1:] or list(WANTED)
    if why := usable():
        checks.skip("network namespaces", why)
        checks.done()
    for path in chosen:
        with DeviceLab() as lab:
            matrix.set_up(lab, path)
            for row in (row for row in matrix.ROWS if row.name in WANTED[path]):
                checks.attempt(f"{path}: {row.name}", lambda: wrong(matrix.run(lab, row), *WANTED[path][row.name]))
            if checks.failed:
                lab.show_logs()
    checks.done()


def wrong(result, stream, way):
    """None, or what is not as it should be."""
    again = result.get("again", {None: None})
    late = any(seconds is None or seconds > PATIENCE for kind, seconds in again.items() if stream or kind != "stream")
    other = stream and result["stream"] != stream or result.get("stream") == "other bytes"
    return json.dumps(result) if late or other or result["over"][0] != way else None


if __name__ == "__main__":
    main()
