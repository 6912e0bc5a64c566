"""Circuits of ours followed by others: `stem` (1.8) at a client's control socket hears each hop of a circuit and the stream of a program; and
`hoplite-lab monitor` through the same client, whose day has the times of each transfer's hops.

Needs Python's `stem`.
"""

import json
import subprocess

from client_test import fetch
from common import HOPLITE, Checks, Lab, free_port, port_open, quoted, wait_for
from lab_test import LAB

# 2026-11-01 00:00 UTC.
NOVEMBER = 1_793_491_200


def relay(lab, name):
    """A relay of circuits, and its entry in a client's file."""
    made = subprocess.run([HOPLITE, "--json", "keygen", "--out", lab.folder / name], check=True, capture_output=True)
    port, file = free_port(), lab.folder / f"{name}.toml"
    file.write_text(f'listen = ["127.0.0.1:{port}"]\nidentity = "{name}"\nauth.open = true\n[egress]\nallow = ["127.0.0.0/8"]\n'
                    "[onion]\nenabled = true\n")
    running = lab.run(name, [HOPLITE, "relay", "--config", file])
    wait_for(name, lambda: " is up" in running.text())
    return f'[[relay]]\nname = "{name}"\naddress = "127.0.0.1:{port}"\nonion = "{json.loads(made.stdout)["onion"]}"\n'


def client(lab):
    """A client over three relays, which can be followed; adds `.socks` and `.control`."""
    names = ["amber", "birch", "cedar"]
    relays, socks, file = [relay(lab, name) for name in names], free_port(), lab.folder / "client.toml"
    file.write_text(f'overlay = "onion"\npath = {quoted(names)}\nsocks.listen = "127.0.0.1:{socks}"\nhttp.listen = "off"\n'
                    f'[onion]\ncontrol = "control"\nahead = 0\n{"".join(relays)}')
    running = lab.run("client", [HOPLITE, "client", "--config", file])
    wait_for("the client", lambda: port_open("127.0.0.1", socks))
    running.socks, running.control = socks, lab.folder / "control"
    return running


def by_stem(checks, ours, targets):
    """What stem makes of what it hears."""
    from stem import CircStatus, StreamStatus
    from stem.control import Controller, EventType
    circuits, streams = [], []
    with Controller.from_socket_file(str(ours.control)) as controller:
        controller.authenticate()
        checks.check("stem knows what speaks to it", "hoplite" in str(controller.get_version()), controller.get_version())
        controller.add_event_listener(circuits.append, EventType.CIRC)
        controller.add_event_listener(streams.append, EventType.STREAM)
        fetched = fetch(ours, "127.0.0.1", targets.ports["http"], 100_000)
        checks.check("a program fetches meanwhile", fetched is True, fetched)
        wait_for("the stream's end", lambda: any(event.status == StreamStatus.CLOSED for event in streams))
    steps = [(event.status, len(event.path)) for event in circuits]
    wanted = [(CircStatus.LAUNCHED, 0), *((CircStatus.EXTENDED, hops) for hops in (1, 2, 3)), (CircStatus.BUILT, 3)]
    checks.check("stem hears a circuit hop by hop", steps[:5] == wanted, steps)
    new, on = streams[0], {event.circ_id for event in streams} - {None, "0"}
    checks.check("and the stream of a program, by its port and its circuit", new.status == StreamStatus.NEW and new.source_port
                 and new.target_port == targets.ports["http"] and on == {circuits[0].id}, [str(event) for event in streams])


def by_monitor(checks, lab, ours):
    """A day of the monitor through the client."""
    port, kept = free_port(), lab.folder / "kept" / "default"
    file = lab.folder / "monitor.toml"
    file.write_text(f'directory = "kept"\nserver = {{ host = "127.0.0.1", port = {port} }}\n'
                    f'subject = {{ label = "circuits", socks = "127.0.0.1:{ours.socks}", control = "unix:control" }}\n'
                    'schedule = { profile = "one-megabyte", every = 3600, stall = 10, timeout = 30 }\nbudget = { bytes_per_month = 9_000_000_000 }\n'
                    f'[serve]\nlisten = ["127.0.0.1:{port}"]\n')
    lab.run("server", [LAB, "monitor", "serve", file])
    # An hour each half second.
    lab.run("monitor", [LAB, "monitor", "run", "--pace", 7200, "--at", NOVEMBER, file])
    days = lambda: sorted(kept.glob("*.onionperf.analysis.json"))  # noqa: E731
    wait_for("a day that is over", lambda: len(days()) > 1, 90)
    for source in json.loads(days()[1].read_text())["data"].values():
        transfers, tor = source["tgen"]["streams"].values(), source["tor"]
        good = [one for one in transfers if one["is_success"]]
        checks.check("the monitor's transfers arrive", len(good) > 5, f"{len(good)} of {len(transfers)}")
        ports = {stream["source"].rsplit(":", 1)[1] for stream in tor["streams"].values()}
        theirs = {one["transport_info"]["local"].rsplit(":", 1)[1] for one in good}
        checks.check("each is a stream that it was told of", theirs <= ports, f"{theirs - ports}")
        circuits = tor["circuits"]
        on = {stream["circuit_id"] for stream in tor["streams"].values()}
        built = [circuits[circuit] for circuit in on if circuit in circuits]
        checks.check("whose circuit has the time of each hop", built and all(rises(one) for one in built),
                     json.dumps(built)[:500])


def rises(circuit):
    """Three hops, one after the other, and then it is built."""
    times = [hop[1] for hop in circuit["path"]]
    return len(times) == 3 and times == sorted(times) and times[0] > 0 and circuit["buildtime_seconds"] >= times[-1]


def main():
    checks = Checks("control sockets")
    with Lab() as lab:
        targets, ours = lab.targets(), client(lab)
        checks.attempt("stem", lambda: by_stem(checks, ours, targets))
        checks.attempt("the monitor", lambda: by_monitor(checks, lab, ours))
    checks.done()


if __name__ == "__main__":
    main()
