"""`hoplite-lab load`: a relay of ours with its own server behind it, on loopback, each workload once; what fails is told with the reason.

A relay that lets too few in, a server that is not there, a wrong token, a policy that refuses it, an interrupt in the middle.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import time

from common import HOPLITE, Checks, Lab, free_port, port_open, wait_for

LAB = pathlib.Path(os.environ.get("HOPLITE_LAB", HOPLITE.parent / "hoplite-lab"))


def relay(lab, name, port, more="", allow='["127.0.0.0/8"]'):
    """A relay and the file of a client of it; its metrics answer on a port of their own."""
    folder = lab.folder / name
    command = [HOPLITE, "init", f"127.0.0.1:{port}", "--out", folder, "--listen", f"127.0.0.1:{port}"]
    url = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
    metrics = free_port()
    file = folder / "relay.toml"
    text = file.read_text().replace("[egress]\n", f"[egress]\nallow = {allow}\n")
    file.write_text(f'{text}\n[metrics]\nlisten = "127.0.0.1:{metrics}"\n[limits]\ndrain = 0.1\n{more}')
    lab.run(name, [HOPLITE, "relay", "--config", file])
    wait_for("the relay", lambda: port_open("127.0.0.1", port) and port_open("127.0.0.1", metrics))
    client = folder / "client.toml"
    subprocess.run([HOPLITE, "import", url, "--config", client], check=True, capture_output=True)
    return client, f"http://127.0.0.1:{metrics}/metrics"


def load(client, server, *more, clients="4", seconds="1"):
    command = [LAB, "load", "--config", client, "--server", server, "--clients", clients, "--seconds", seconds, *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def told(done):
    """The lines of levels, and the last one."""
    *levels, last = [json.loads(line) for line in done.stdout.splitlines()]
    return levels, last["most_served"]


def workloads(checks, client, server, metrics):
    for workload in ["web", "bulk", "datagrams", "connections"]:
        [last], most = told(load(client, server, "--workload", workload, "--metrics", metrics, "--json"))
        served = [last[key] for key in ["clients", "served", "failed"]]
        checks.check(f"{workload}: all clients are served", served == [4, 4, 0] and most == 4, last)
        checks.check(f"{workload}: goodput and the relay's cost are told",
                     last["goodput_bps"] > 10_000 and last["relay"]["cpu_s_per_gb"] > 0 and last["relay"]["memory"][1] > 1e6, last)
        opened = last["opened_per_s"]
        checks.check(f"{workload}: times are told", last["first_byte_ms"]["p99"] >= last["first_byte_ms"]["median"] > 0.2 and last["connect_ms"]["median"] > 0.2, last)
        if workload == "connections":
            checks.check("each connection is a new one", opened >= 8, opened)
        if workload == "datagrams":
            sent, lost = last["datagrams_sent"], last["datagrams_lost"]
            checks.check("datagrams are counted, 50 a second for each client", 150 <= sent <= 500 and lost < sent / 10, last)
    levels, _ = told(load(client, server, "--workload", "bulk", "--mbit", "8", "--json"))
    checks.check("--mbit holds all clients to a rate", 3e6 < levels[0]["goodput_bps"] < 9e6, levels)
    table = load(client, server, clients="1,3").stdout.splitlines()
    checks.check("a table for people has a row for each number and ends with what was served",
                 len(table) == 4 and table[-1].startswith("largest number of clients of which all were served: 3 "), table)


def failures(checks, lab, client, server):
    nobody = load(client, f"127.0.0.1:{free_port()}")
    checks.check("a server that is not there is told before anything begins",
                 nobody.returncode == 1 and "connection refused: run 'hoplite-lab load serve' there" in nobody.stderr, nobody.stderr)
    silent = load(client, f"127.0.0.1:{free_port()}", "--workload", "datagrams")
    checks.check("so is one that answers no datagram", silent.returncode == 1 and "no datagram came back" in silent.stderr, silent.stderr)
    wrong = client.with_name("wrong.toml")
    wrong.write_text("".join(line if not line.startswith("token") else 'token = "nobody"\n' for line in client.read_text().splitlines(True)))
    wrong = load(wrong, server)
    checks.check("a wrong token gets nowhere", wrong.returncode == 1 and "the relay's own token" in wrong.stderr, wrong.stderr)
    onion = client.with_name("onion.toml")
    onion.write_text('overlay = "onion"\n' + client.read_text())
    onion = load(onion, server)
    checks.check("circuits are refused", onion.returncode == 2 and "over tunnels" in onion.stderr, onion.stderr)
    many = load(client, server, clients="10001")
    checks.check("the number of clients is bounded", many.returncode == 2 and "10000" in many.stderr, many.stderr)

    strict, _ = relay(lab, "strict", free_port(), allow="[]")
    strict = load(strict, server)
    checks.check("a policy that refuses the server is told", strict.returncode == 1 and "`allow` of [egress]" in strict.stderr, strict.stderr)

    narrow, metrics = relay(lab, "narrow", free_port(), "connections_per_client = 2\n")
    done = load(narrow, server, "--workload", "bulk", "--metrics", metrics, "--json", clients="1,6")
    levels, most = told(done)
    checks.check("a relay that lets two in serves one and not six", most == 1 and levels[1]["served"] < 6 and levels[1]["failed"] > 0, levels)
    checks.check("the failures have a reason", levels[1]["failures"] and sum(levels[1]["failures"].values()) == levels[1]["failed"], levels)
    checks.check("and the keys to raise are named", "connections_per_client" in done.stderr and "the relay says" in done.stderr, done.stderr)


def interrupt(checks, client, server):
    command = [LAB, "load", "--config", client, "--server", server, "--clients", "2,3", "--seconds", "600", "--json"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    time.sleep(1.5)
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=20)
    lines = [json.loads(line) for line in out.splitlines()]
    checks.check("an interrupt ends it with what was measured", running.returncode == 0 and len(lines) == 2 and lines[0]["clients"] == 2
                 and lines[0]["seconds"] < 20 and lines[0]["goodput_bps"] > 0, out)


def amplifies(checks, server):
    host, port = server.split(":")
    with socket.socket(type=socket.SOCK_DGRAM) as strange:
        strange.settimeout(0.3)
        for said in [b"", b"who is there?", bytes(1200)]:
            strange.sendto(said, (host, int(port)))
        try:
            answer = strange.recv(2000)
        except TimeoutError:
            answer = None
    checks.check("the server answers no stranger's datagram", answer is None, answer)


def main():
    checks = Checks("load")
    with Lab() as lab:
        server = f"127.0.0.1:{free_port()}"
        lab.run("server", [LAB, "load", "serve", "--listen", server])
        wait_for("the server", lambda: port_open(*server.split(":")))
        client, metrics = relay(lab, "relay", free_port())
        workloads(checks, client, server, metrics)
        failures(checks, lab, client, server)
        interrupt(checks, client, server)
        amplifies(checks, server)
    checks.done()


main()
