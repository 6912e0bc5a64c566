"""`overlay = "onion"` for the whole device: TCP and names by circuits over three relays, UDP told to be out of reach, nothing past the first relay.

A part of device_test.py, and the shortest: under 15 s.
"""

import json
import signal
import subprocess

from common import HOPLITE, TOKEN, quoted, relay_config, wait_for
from netns import RELAY_PORT

CIRCUITS = "\n[onion]\nenabled = true\nopen = true\n"


def circuits(session):
    """Circuits: TCP and names work, over QUIC and over TLS; UDP is told unreachable; nothing leaves but to the first relay."""
    lab, was = session.lab, list(session.lab.relays)
    keys = [serve(lab, relay) for relay in was]
    for channel in ("quic", "tls"):
        over(session, channel, keys)
    for relay in was:  # the next part wants them as they were
        lab.running[relay.name].stop(signal.SIGKILL)
        lab.again(relay)
    session.watch.since()


def serve(lab, relay):
    """The relay again, with circuits and an identity of its own; its key."""
    lab.running[relay.name].stop()
    identity = lab.folder / f"circuits-{relay.name}"
    made = subprocess.run([HOPLITE, "keygen", "--json", "--out", identity], check=True, capture_output=True, text=True)
    onward = [f"{r.v4}:{RELAY_PORT}" for r in lab.relays if r is not relay]
    allow = (f"{lab.target.v4}/32", f"{lab.target.v6}/128")
    text = relay_config(relay.name, f"0.0.0.0:{RELAY_PORT}", ("ingress", "egress"), lab.leaves[relay.name], allow, f"{lab.target.v4}:53", (TOKEN,), onward, CIRCUITS)
    path = lab.folder / f"circuits-{relay.name}.toml"
    path.write_text(f'identity = "{identity}"\n{text}')
    process = relay.run(f"circuits-{relay.name}", [HOPLITE, "relay", "--config", path])
    lab.running[relay.name] = process
    wait_for(process.name, lambda: " is up" in process.text() or not process.alive())
    if not process.alive():
        raise RuntimeError(f"{process.name} ended: {process.text()}")
    return json.loads(made.stdout)["onion"]


def over(session, channel, keys):
    """One `up` and `down`."""
    device, lab, checks, name = session.device, session.lab, session.checks, f"circuits over {channel}"
    text = f'overlay = "onion"\npath = {quoted(r.name for r in lab.relays)}\nonion.channel = "{channel}"\n'
    for relay, key in zip(lab.relays, keys):
        text += f'\n[[relay]]\nname = "{relay.name}"\naddress = "{relay.v4}:{RELAY_PORT}"\nonion = "{key}"\n'
    path = lab.folder / f"circuits-{channel}.toml"
    path.write_text(text)
    code, said, took = device.hoplite("up", "--config", path)
    if not checks.check(f"{name}: up returns ({took:.1f} s)", code == 0, f"exit {code}: {said[-400:]}"):
        return
    session.watch.since()
    status = device.status()
    told = (status.get("state"), status.get("channel"), status.get("connected"), status.get("path"))
    checks.check(f"{name}: status tells", told == ("up", channel, True, [r.name for r in lab.relays]), status)
    checks.attempt(f"{name}: a name and TCP work", session.carries)
    checks.attempt(f"{name}: IPv6 works", lambda: session.carries("http://target6.test/bytes/100000"))
    peer = session.seen_as(f"http://{session.target.v4}")
    checks.check(f"{name}: the target sees the last relay ({peer})", peer == lab.relays[-1].v4, peer)
    got = device.program("refused", "udp", session.target.v4, 7)
    fine = "Error" in str(got.get("end")) and "imeout" not in str(got.get("end")) and got.get("seconds", 99) < 5
    checks.check(f"{name}: UDP is told to be out of reach at once ({got.get('end')})", fine, got)
    got = device.program("refused", "tcp", "nobody.test", 80)
    checks.check(f"{name}: a name that is none is told ({got.get('end')})", "Error" in str(got.get("end")), got)
    session.state(name)
    session.downs(name)
