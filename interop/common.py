"""What the interop tests share: certificates, processes of ours, ok/FAIL lines. Used by every *_test.py beside it."""

import datetime
import hashlib
import ipaddress
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

HERE = pathlib.Path(__file__).resolve().parent
HOPLITE = pathlib.Path(os.environ.get("HOPLITE", HERE.parent / "target/release/hoplite")).resolve()
TOKEN = "correct-horse-battery"


class Missing(str):
    """Why something cannot be tried, where a package would help: `.ci/run packages` installs it."""


class Checks:
    """Counts and prints results; `done` ends the process with the verdict."""

    def __init__(self, title):
        self.title, self.passed, self.failed, self.skipped = title, 0, 0, 0
        print(f"# {title}", flush=True)

    def check(self, what, ok, detail=""):
        self.passed, self.failed = self.passed + bool(ok), self.failed + (not ok)
        print(f"{'ok  ' if ok else 'FAIL'} {what}" + (f": {detail}" if detail and not ok else ""), flush=True)
        return bool(ok)

    def attempt(self, what, body):
        """A check whose body may raise; it returns None or True when fine, else what is wrong."""
        try:
            wrong = body()
        except Exception as e:  # noqa: BLE001: whatever went wrong is the finding
            wrong = f"{type(e).__name__}: {e}"
        return self.check(what, wrong is None or wrong is True, wrong)

    def skip(self, what, why):
        """What cannot be tried here. With CI=true in the environment, what is only not installed fails instead."""
        if isinstance(why, Missing) and os.environ.get("CI") == "true":
            return self.check(what, False, why)
        self.skipped += 1
        print(f"skip {what}: {why}", flush=True)
        return None

    def done(self):
        print(f"{self.title}: {self.passed} passed, {self.failed} failed, {self.skipped} skipped", flush=True)
        sys.exit(1 if self.failed else 0)


class Authority:
    """A test CA; leaves are written as PEM files below `folder`."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Hoplite interop CA")])
        self.cert = (self._builder(self.name, self.key)
                     .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
                     .add_extension(x509.KeyUsage(True, False, False, False, False, True, True, False, False), True)
                     .sign(self.key, hashes.SHA256()))
        self.ca = self.folder / "ca.pem"
        self.ca.write_bytes(self.cert.public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject, key):
        now = datetime.datetime.now(datetime.timezone.utc)
        return (x509.CertificateBuilder().subject_name(subject).issuer_name(self.name)
                .public_key(key.public_key()).serial_number(x509.random_serial_number())
                .not_valid_before(now - datetime.timedelta(days=1))
                .not_valid_after(now + datetime.timedelta(days=30)))

    def leaf(self, stem, names):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
        cert = (self._builder(subject, key)
                .add_extension(x509.SubjectAlternativeName([general_name(n) for n in names]), critical=False)
                .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
                .add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
                .sign(self.key, hashes.SHA256()))
        pem, keyfile = self.folder / f"{stem}.pem", self.folder / f"{stem}.key"
        pem.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        keyfile.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                              serialization.NoEncryption()))
        keyfile.chmod(0o600)
        spki = key.public_key().public_bytes(serialization.Encoding.DER,
                                             serialization.PublicFormat.SubjectPublicKeyInfo)
        return Leaf(pem, keyfile, hashlib.sha256(spki).digest())


class Leaf:
    def __init__(self, cert, key, digest):
        import base64
        self.cert, self.key = cert, key
        self.pin = "sha256:" + base64.b64encode(digest).decode()


def general_name(name):
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class Process:
    """A child whose output is kept in a file; stopped by its own id."""

    def __init__(self, name, command, folder, prefix=(), env=None):
        self.name = name
        self.log = pathlib.Path(folder) / f"{name}.log"
        self.out = self.log.open("ab")
        self.child = subprocess.Popen([*prefix, *map(str, command)], stdin=subprocess.DEVNULL, stdout=self.out,
                                      stderr=self.out, env={**os.environ, **(env or {})})

    def text(self):
        return self.log.read_text(errors="replace")

    def lines(self):
        """The JSON lines of the log."""
        return [json.loads(line) for line in self.text().splitlines() if line.startswith("{")]

    def alive(self):
        return self.child.poll() is None

    def stop(self, how=signal.SIGTERM, patience=10):
        if self.alive():
            self.child.send_signal(how)
            try:
                self.child.wait(patience)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
        self.out.close()
        return self.child.returncode


def wait_for(what, condition, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.05)
    raise TimeoutError(f"{what} after {seconds} s")


def port_open(host, port):
    try:
        with socket.create_connection((host, port), 0.5):
            return True
    except OSError:
        return False


def free_port(host="127.0.0.1"):
    """A port free for TCP and UDP just now, below those that the system gives away to whoever asks for any."""
    for _ in range(200):
        port = random.randrange(10000, 32000)
        if port in given:
            continue
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            try:
                tcp.bind((host, port))
                udp.bind((host, port))
            except OSError:
                continue
        given.add(port)
        return port
    raise RuntimeError("no free port")


given = set()


class Lab:
    """One test's folder, certificates, target servers, relays and clients on loopback; a context manager."""

    def __init__(self):
        self.temp = tempfile.TemporaryDirectory(prefix="hoplite-interop-")
        self.folder = pathlib.Path(self.temp.name)
        self.authority = Authority(self.folder / "tls")
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        for p in reversed(self.processes):
            p.stop(patience=3)
        if kind or os.environ.get("HOPLITE_INTEROP_LOGS"):
            self.show_logs()
        self.temp.cleanup()

    def show_logs(self):
        for p in self.processes:
            print(f"----- {p.name} (last lines)")
            print("\n".join(p.text().splitlines()[-40:]))

    def run(self, name, command, **more):
        process = Process(name, command, self.folder, **more)
        self.processes.append(process)
        return process

    def targets(self, names=("target.test",), **more):
        """The target servers; adds `.ports`. `names`: those that their DNS knows, perhaps with addresses."""
        names = names if isinstance(names, dict) else dict.fromkeys(names, "127.0.0.1")
        leaf = self.authority.leaf("target", ["localhost", "127.0.0.1", "::1", *names])
        command = [sys.executable, HERE / "servers.py", "--cert", leaf.cert, "--key", leaf.key]
        for name, addresses in names.items():
            command += ["--name", f"{name}={addresses}"]
        for key, value in more.items():
            flag = "--" + key.replace("_", "-")
            command += [flag] if value is True else [flag, value]
        server = self.run("targets", command)
        wait_for("the target servers", lambda: server.lines() or not server.alive())
        server.ports = server.lines()[0]
        return server

    def relay(self, name, roles=("ingress", "egress"), allow=("127.0.0.0/8", "::1/128"), dns=None, extra="",
              tokens=(TOKEN,), port=None, relays=(), names=("localhost", "127.0.0.1")):
        """A relay of ours on loopback; adds `.port` and `.pin`."""
        leaf = self.authority.leaf(name, list(names))
        port = port or free_port()
        onward = [f"127.0.0.1:{r.port}" for r in relays]
        config = relay_config(name, f"127.0.0.1:{port}", roles, leaf, allow, dns, tokens, onward, extra)
        path = self.folder / f"{name}.toml"
        path.write_text(config)
        relay = self.run(name, [HOPLITE, "relay", "--config", path])
        relay.port, relay.pin, relay.leaf, relay.config = port, leaf.pin, leaf, path
        wait_for(f"relay {name}", lambda: " is up" in relay.text() or not relay.alive())
        if not relay.alive():
            raise RuntimeError(f"relay {name} ended: {relay.text()}")
        return relay

    def client(self, relays, name="client", extra="", token=TOKEN):
        """A client of ours through `relays`, in order; adds `.socks` and `.http` ports."""
        socks, http = free_port(), free_port()
        entries = [(r.name, f"127.0.0.1:{r.port}", r.pin, None) for r in relays]
        path = self.folder / f"{name}.toml"
        path.write_text(client_config(entries, f"127.0.0.1:{socks}", f"127.0.0.1:{http}", token, extra))
        client = self.run(name, [HOPLITE, "client", "--config", path])
        client.socks, client.http = socks, http
        wait_for("the client", lambda: port_open("127.0.0.1", socks) or not client.alive())
        if not client.alive():
            raise RuntimeError(f"the client ended: {client.text()}")
        return client


def quoted(items):
    return "[" + ", ".join(json.dumps(str(i)) for i in items) + "]"


def relay_config(name, listen, roles, leaf, allow, dns, tokens, relays=(), extra=""):
    text = f'name = "{name}"\nlisten = ["{listen}"]\nroles = {quoted(roles)}\n'
    text += f'\n[tls]\ncert = "{leaf.cert}"\nkey = "{leaf.key}"\n'
    text += f"\n[egress]\nallow = {quoted(allow)}\n"
    if dns:
        text += f"resolver = {quoted([dns])}\n"
    if relays:
        text += f"\n[ingress]\nrelays = {quoted(relays)}\n"
    for i, token in enumerate(tokens):
        text += f'\n[[auth.token]]\nname = "user{i}"\ntoken = "{token}"\n'
    return text + extra


def client_config(relays, socks, http, token, extra=""):
    """`relays`: (name, address, pin, roles or None) in the order of the path."""
    text = f"path = {quoted(r[0] for r in relays)}\n"
    if token:
        text += f'token = "{token}"\n'
    text += f'\n[socks]\nlisten = "{socks}"\n\n[http]\nlisten = "{http}"\n'
    for name, address, pin, roles in relays:
        text += f'\n[[relay]]\nname = "{name}"\naddress = "{address}"\npin = "{pin}"\n'
        if roles:
            text += f"roles = {quoted(roles)}\n"
    return text + extra


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def in_thread(body):
    """Runs `body` beside; returns (thread, box) with the result or the exception in the box."""
    box = {}

    def run():
        try:
            box["result"] = body()
        except Exception as e:  # noqa: BLE001
            box["error"] = e
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, box
