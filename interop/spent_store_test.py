"""Relays that mark spent tokens with a real PostgreSQL and a real Redis: two processes with one store, and what becomes of tokens when it fails.

The servers are private ones in a folder of this test, on loopback and Unix sockets; the system's own are left alone. Tokens are made here, by
RFC 9578 §6 without the blinding, so that their keys may have any age; clients speak HTTP/1.1 over TLS.
"""

import base64
import contextlib
import glob
import hashlib
import json
import os
import pathlib
import pwd
import re
import resource
import secrets
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from common import HOPLITE, TOKEN, Checks, Lab, Missing, free_port, port_open, wait_for

ISSUER, ORIGIN = "issuer.test", "fleet.test"
PASSWORD = "a password of this test"
IN_URL = PASSWORD.replace(" ", "%20")
# The algorithm of RFC 9578 §6.5: RSASSA-PSS, SHA-384, a salt of 48 bytes.
RSASSA_PSS = bytes.fromhex("303d06092a864886f70d01010a3030a00d300b0609608648016503040202a11a301806092a864886f70d010108"
                           "300b0609608648016503040202a203020130")
ROUNDS, MONTH = 40, 30 * 24 * 3600


# Tokens.

class Key:
    """An issuer's key, as its directory lists it, and the tokens that it signs."""

    def __init__(self, not_before):
        self.secret, self.not_before = rsa.generate_private_key(65537, 2048), not_before
        public = self.secret.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.PKCS1)
        bits = b"\x03\x82" + struct.pack("!H", len(public) + 1) + b"\0" + public
        self.spki = b"\x30\x82" + struct.pack("!H", len(RSASSA_PSS) + len(bits)) + RSASSA_PSS + bits

    def listed(self):
        key = base64.urlsafe_b64encode(self.spki).decode()
        return {"token-type": 2, "token-key": key, "not-before": self.not_before}

    def token(self):
        names = [struct.pack("!H", len(name)) + name.encode() for name in (ISSUER, ORIGIN)]
        challenge = struct.pack("!H", 2) + names[0] + b"\0" + names[1]
        signed = b"\0\x02" + secrets.token_bytes(32) + b"".join(hashlib.sha256(x).digest() for x in (challenge, self.spki))
        pss = padding.PSS(padding.MGF1(hashes.SHA384()), 48)
        return base64.urlsafe_b64encode(signed + self.secret.sign(signed, pss, hashes.SHA384())).decode()


def directory(*keys):
    return json.dumps({"issuer-request-uri": "/token-request", "token-keys": [key.listed() for key in keys]})


def mark_of(token):
    """What stores know it by: eight bytes of its key's id, sixteen of its nonce."""
    token = base64.urlsafe_b64decode(token)
    return token[66:74] + token[2:18]


# Stores.

class Postgres:
    """A cluster of this test's own, run by a user without rights: on loopback, or on a host of network namespaces."""

    name = "PostgreSQL"
    programs = sorted(glob.glob("/usr/lib/postgresql/*/bin")) or [""]

    @classmethod
    def missing(cls):
        return None if shutil.which("postgres", path=cls.programs[-1]) else Missing("no PostgreSQL: postgresql")

    def __init__(self, lab, folder, user, host=None):
        self.lab, self.folder, self.user, self.port = lab, folder, user, free_port()
        self.address, self.prefix = (host.v4, host.prefix()) if host else ("127.0.0.1", ())
        self.program = pathlib.Path(self.programs[-1])
        self.data = folder / "data"
        secret = folder / "secret"
        secret.write_text(PASSWORD)
        own(secret, user)
        subprocess.run([*as_user(user), self.program / "initdb", "-D", self.data, "-U", "admin", "-A", "scram-sha-256", "--pwfile",
                        secret, "--no-sync"], check=True, capture_output=True, cwd=folder)
        leaf = lab.authority.leaf("postgres", ["localhost"])
        for name, source in (("server.crt", leaf.cert), ("server.key", leaf.key)):
            (self.data / name).write_bytes(source.read_bytes())
            own(self.data / name, user)
        (self.data / "pg_hba.conf").write_text(
            "local all all scram-sha-256\nhostssl all all 127.0.0.1/32 scram-sha-256\nhost all plain 127.0.0.1/32 scram-sha-256\n"
            "host all admin 127.0.0.1/32 scram-sha-256\nhost tokens plain 10.77.0.0/16 scram-sha-256\n")
        self.start()
        # The owner of its database may make the table there; the other one cannot.
        self.sql(f"CREATE ROLE owner LOGIN PASSWORD '{PASSWORD}'; CREATE ROLE plain LOGIN PASSWORD '{PASSWORD}'")
        self.sql("CREATE DATABASE tokens OWNER owner")
        self.urls = {
            "PostgreSQL by TLS": f"postgres://owner:{IN_URL}@localhost:{self.port}/tokens?sslmode=require",
            "PostgreSQL by password": f"postgres://plain:{IN_URL}@{self.address}:{self.port}/tokens",
            "PostgreSQL by a Unix socket": f"postgres://owner:{IN_URL}@/tokens?host={folder}&port={self.port}",
        }
        self.url = self.urls["PostgreSQL by password"]

    def start(self):
        command = [self.program / "postgres", "-D", self.data, "-c", f"listen_addresses=127.0.0.1,{self.address}", "-c", f"port={self.port}",
                   "-c", f"unix_socket_directories={self.folder}", "-c", "fsync=off", "-c", "ssl=on", "-c", "shared_buffers=16MB"]
        self.process = self.lab.run("postgres", command, prefix=[*self.prefix, *as_user(self.user)])
        wait_for("PostgreSQL", lambda: self.answers() or not self.process.alive(), 60)

    def answers(self):
        try:
            return self.sql("SELECT 1", "postgres") == "1"
        except subprocess.CalledProcessError:
            return False

    def sql(self, text, database=None):
        database = database or ("postgres" if "ROLE" in text or "DATABASE" in text else "tokens")
        place = f"host=127.0.0.1 port={self.port} user=admin dbname={database} connect_timeout=5"
        return subprocess.run([*self.prefix, self.program / "psql", "-XAtqc", text, place], check=True, capture_output=True, text=True,
                              cwd="/", env={**os.environ, "PGPASSWORD": PASSWORD}).stdout.strip()

    def prepare(self):
        """What an operator does whose relays may not make the table: docs/tokens.md has the same."""
        self.sql("GRANT INSERT, SELECT, DELETE ON hoplite_spent TO plain")

    def marks(self):
        return int(self.sql("SELECT count(*) FROM hoplite_spent"))

    def until(self, token):
        told = self.sql(f"SELECT until FROM hoplite_spent WHERE mark = '\\x{mark_of(token).hex()}'")
        return int(told) if told else None

    def processes(self):
        parent = self.process.child.pid
        return [parent, *map(int, pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split())]

    def freeze(self, frozen=True):
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if frozen else signal.SIGCONT)

    def kill(self):
        self.process.stop(signal.SIGQUIT)  # at once, as in a crash

    def wipes(self):
        yield "TRUNCATE", lambda: self.sql("TRUNCATE hoplite_spent")
        yield "DROP TABLE", lambda: (self.sql("DROP TABLE hoplite_spent; GRANT CREATE ON SCHEMA public TO plain"))

    def rotate(self, password):
        self.sql(f"ALTER ROLE plain PASSWORD '{password}'")
        self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'plain'")

    @staticmethod
    def is_mark(burst):
        # Bind, Execute and Sync of the prepared statement.
        return burst[:1] == b"B"


class Redis:
    """A server of this test's own."""

    name = "Redis"

    @classmethod
    def missing(cls):
        return None if shutil.which("redis-server") and shutil.which("redis-cli") else Missing("no redis-server")

    def __init__(self, lab, folder, user):
        self.lab, self.folder, self.user, self.port, self.tls_port = lab, folder, user, free_port(), free_port()
        leaf = lab.authority.leaf("redis", ["localhost"])
        for name, source in (("server.crt", leaf.cert), ("server.key", leaf.key), ("ca.crt", lab.authority.ca)):
            (folder / name).write_bytes(source.read_bytes())
            own(folder / name, user)
        # "relay" may do no more than docs/tokens.md says.
        (folder / "redis.conf").write_text(
            f"bind 127.0.0.1\nport {self.port}\ntls-port {self.tls_port}\ntls-auth-clients no\ntls-cert-file {folder}/server.crt\n"
            f"tls-key-file {folder}/server.key\ntls-ca-cert-file {folder}/ca.crt\nunixsocket {folder}/redis.sock\n"
            f"dir {folder}\nsave \"\"\nappendonly yes\nappendfsync always\nrequirepass \"{PASSWORD}\"\n"
            f"user relay on >{IN_URL} ~hoplite:spent:* +set +ping +info\n")
        own(folder / "redis.conf", user)
        self.start()
        self.urls = {
            "Redis by TLS": f"rediss://:{IN_URL}@localhost:{self.tls_port}",
            "Redis by password": f"redis://:{IN_URL}@127.0.0.1:{self.port}",
            "Redis by a Unix socket, as a user without rights":
                f"redis+unix://{folder}/redis.sock?user=relay&pass={IN_URL.replace('%', '%25')}",
        }
        self.url = self.urls["Redis by password"]

    def start(self):
        command = [shutil.which("redis-server"), self.folder / "redis.conf"]
        self.process = self.lab.run("redis", command, prefix=as_user(self.user))
        wait_for("Redis", lambda: self.ask("PING") == "PONG" or not self.process.alive(), 60)

    def ask(self, *words):
        command = ["redis-cli", "-s", self.folder / "redis.sock", *words]
        env = {**os.environ, "REDISCLI_AUTH": PASSWORD}
        return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60).stdout.strip()

    def prepare(self):
        pass

    def marks(self):
        return int(self.ask("DBSIZE"))

    def until(self, token):
        with socket.create_connection(("127.0.0.1", self.port), 20) as connection:
            name = b"hoplite:spent:" + mark_of(token)
            for words in ((b"AUTH", PASSWORD.encode()), (b"EXPIRETIME", name)):
                connection.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
                answer = connection.makefile("rb", 0).readline()
        end = int(answer[1:])
        return end if end > 0 else None

    def freeze(self, frozen=True):
        self.process.child.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def kill(self):
        self.process.stop(signal.SIGKILL)

    def wipes(self):
        yield "FLUSHALL", lambda: self.ask("FLUSHALL")

    def rotate(self, password):
        self.ask("CONFIG", "SET", "requirepass", password)
        # This one was let in by the old password.
        with contextlib.suppress(subprocess.SubprocessError):
            subprocess.run(["redis-cli", "-s", self.folder / "redis.sock", "CLIENT", "KILL", "TYPE", "normal"], check=False,
                           capture_output=True, env={**os.environ, "REDISCLI_AUTH": password}, timeout=60)

    @staticmethod
    def is_mark(burst):
        return b"SET\r\n" in burst


def as_user(user):
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"] if os.geteuid() == 0 else []


def own(path, user):
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, user.pw_uid, user.pw_gid)


# Relays and their clients.

class Fleet(Lab):
    """Relays of one name, a target, and clients that count in no thread but their own."""

    def __init__(self):
        super().__init__()
        now = int(time.time())
        self.keys = [Key(now - 1000), Key(now + 600_000)]
        (self.folder / "keys.json").write_text(directory(*self.keys))
        self.target = socket.create_server(("127.0.0.1", 0), backlog=512)
        threading.Thread(target=self.serve, daemon=True).start()
        self.tls = ssl.create_default_context(cafile=self.authority.ca)
        self.tls.set_alpn_protocols(["http/1.1"])
        self.number = 0
        # The server's user reads nothing of ours.
        self.places = []

    def __exit__(self, kind, *more):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.child.send_signal(signal.SIGCONT)
        super().__exit__(kind, *more)
        for place in self.places:
            shutil.rmtree(place, ignore_errors=True)

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                self.target.accept()[0].close()

    def store(self, kind):
        user = pwd.getpwuid(os.geteuid())
        if os.geteuid() == 0:
            try:
                user = pwd.getpwnam({Postgres: "postgres", Redis: "redis"}[kind])
            except KeyError:
                user = pwd.getpwnam("nobody")
        place = pathlib.Path(tempfile.mkdtemp(prefix="hoplite-store-", dir="/tmp"))
        self.places.append(place)
        if os.geteuid() == 0:
            os.chown(place, user.pw_uid, user.pw_gid)
        return kind(self, place, user)

    def member(self, url, keys="keys.json", deadline=20, connections=2, more=""):
        """A relay with this store; a bearer token admits beside it."""
        self.number += 1
        name, metrics = f"relay{self.number}", free_port()
        file = self.folder / f"{name}.url"
        file.write_text(url + "\n")
        file.chmod(0o600)
        relay = self.relay(name, extra=f"""
[metrics]
listen = "127.0.0.1:{metrics}"

[auth.private_tokens]
issuer = "{ISSUER}"
origin = "{ORIGIN}"
keys = "{keys}"
deadline = {deadline}
{more}
[auth.private_tokens.store]
url_file = "{file.name}"
ca = "{self.authority.ca}"
connections = {connections}
""")
        relay.metrics, relay.url_file = metrics, file
        return relay

    def number_of(self, relay, metric):
        with socket.create_connection(("127.0.0.1", relay.metrics), 20) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            text = connection.makefile("rb").read().decode()
        assert " 200 " in text.partition("\r\n")[0], text
        found = re.search(rf"^hoplite_relay_{re.escape(metric)} (\S+)$", text, re.MULTILINE)
        return int(float(found[1])) if found else 0

    def failures(self, relay):
        causes = ("file", "full", "late", "server")
        return {cause: n for cause in causes if (n := self.number_of(relay, f'spent_store_failures_total{{cause="{cause}"}}'))}

    def connect(self, relay):
        raw = socket.create_connection(("127.0.0.1", relay.port), 60)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.tls.wrap_socket(raw, server_hostname="localhost")

    def request(self, credentials):
        host = f"127.0.0.1:{self.target.getsockname()[1]}"
        return f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\nProxy-Authorization: {credentials}\r\n\r\n".encode()

    def ask(self, relay, credentials):
        """The status of a CONNECT to the target."""
        stream = self.connect(relay)
        stream.sendall(self.request(credentials))
        return status_of(stream)

    def show(self, relay, token):
        return self.ask(relay, f'PrivateToken token="{token}"')

    def fresh(self, relay):
        return self.show(relay, self.keys[0].token())

    def beside(self, body):
        answer = {}
        thread = threading.Thread(target=lambda: answer.update(status=body()), daemon=True)
        thread.start()
        return thread, answer


def status_of(stream):
    with stream:
        line = stream.makefile("rb", 0).readline()
    return int(line.split(b" ")[1]) if line else 0


def until_admits(fleet, relay):
    """Shows fresh tokens until one admits."""
    return wait_for("a token is taken again", lambda: fleet.fresh(relay) == 200, 60)


# What is checked.

def race(fleet, relays, token, many):
    """One token, at both relays at once, by so many connections each that are open already. The statuses, and within what time it was shown."""
    streams = [fleet.connect(relay) for _ in range(many) for relay in relays]
    request = fleet.request(f'PrivateToken token="{token}"')
    begun = time.monotonic()
    for stream in streams:
        stream.sendall(request)
    passed = time.monotonic() - begun
    return sorted(status_of(stream) for stream in streams), passed


def spent_once(fleet, checks, store):
    first = None
    for way, url in store.urls.items():
        relays = [fleet.member(url) for _ in range(2)]
        if first is None:
            checks.check(f"{way}: a token admits", fleet.fresh(relays[0]) == 200)
            store.prepare()
            first = relays
        before, spreads, wrong = store.marks(), [], []
        for number in range(ROUNDS):
            answers, spread = race(fleet, relays, fleet.keys[0].token(), 1 + number % 3)
            spreads.append(spread * 1000)
            if answers != [200] + [407] * (len(answers) - 1):
                wrong.append(answers)
        near = sum(spread < 1 for spread in spreads)
        checks.check(f"{way}: of a token that both relays are shown at once one connection is admitted, {ROUNDS} times "
                     f"({near} of them within a millisecond)", not wrong, wrong[:3])
        checks.check(f"{way}: each has left one mark", store.marks() == before + ROUNDS, (before, store.marks()))
        token = fleet.keys[0].token()
        answers = [fleet.show(relay, token) for relay in (*relays, *first, relays[1])]
        checks.check(f"{way}: what is spent at one is refused at the others", answers == [200] + [407] * 4, answers)
        key, following = fleet.keys
        end = key.not_before + 2 * (following.not_before - key.not_before) + MONTH
        checks.check(f"{way}: the mark ends a month after its key's tokens", store.until(token) == end, (store.until(token), end))
        for relay in relays:
            if relay not in first:
                relay.stop()
    spent = [fleet.number_of(relay, 'token_refusals_total{cause="spent"}') for relay in first]
    checks.check(f"{store.name}: double spending is counted at both relays", all(spent), spent)
    for relay in first:
        relay.stop()


def one_round_trip(fleet, checks, store):
    """A proxy between relay and store sees how often either waits for the other."""
    port, bursts, marks = free_port(), [], 20
    listener = socket.create_server(("127.0.0.1", port))

    def copy(source, sink, is_client):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                bursts.append((is_client, data))
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def serve():
        with contextlib.suppress(OSError):
            while True:
                inner, outer = listener.accept()[0], socket.create_connection(("127.0.0.1", store.port))
                for stream in (inner, outer):
                    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for one in ((inner, outer, True), (outer, inner, False)):
                    threading.Thread(target=copy, args=one, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    relay = fleet.member(store.url.replace(f":{store.port}", f":{port}"), connections=1)
    until_admits(fleet, relay)
    bursts.clear()
    answers = [fleet.fresh(relay) for _ in range(marks)]
    asked = [data for is_client, data in list(bursts) if is_client]
    # The rest are the questions, every five seconds, whether the server is there.
    sent = [data for data in asked if store.is_mark(data)]
    others = [data for data in asked if not store.is_mark(data) and len(data) > 40]
    checks.check(f"{store.name}: a connect costs one round trip to the store, {marks} times",
                 answers == [200] * marks and len(sent) == marks and not others, (answers, len(sent), others[:1]))
    relay.stop()
    listener.close()


def outage(fleet, checks, store):
    strict, lenient = fleet.member(store.url), fleet.member(store.url, more="unchecked = 5")
    both = (strict, lenient)
    checks.check(f"{store.name}: is up", [fleet.fresh(r) for r in both] == [200] * 2
                 and [fleet.number_of(r, "spent_store_up") for r in both] == [1, 1])
    spent = fleet.keys[0].token()
    fleet.show(strict, spent)
    store.kill()
    # A connection may have to notice first; then nobody waits.
    answers = [fleet.fresh(strict) for _ in range(5)]
    checks.check(f"{store.name} is killed: nobody is let in", answers == [500] * 5, answers)
    checks.check(f"{store.name} is killed: it is told by metrics",
                 fleet.number_of(strict, "spent_store_up") == 0 and fleet.failures(strict) == {"server": 5},
                 fleet.failures(strict))
    refused = fleet.number_of(strict, 'token_refusals_total{cause="store_down"}')
    checks.check(f"{store.name} is killed: refusals are counted as such", refused == 5, refused)
    begun = time.monotonic()
    answers = [fleet.fresh(lenient) for _ in range(40)]
    passed, admitted = time.monotonic() - begun, answers.count(200)
    unchecked = fleet.number_of(lenient, "tokens_unchecked_total")
    checks.check(f"{store.name} is killed: `unchecked` lets so many in and no more ({admitted} of 40 in {passed:.1f} s)",
                 0 < admitted <= 5 * (passed + 1) + 1 and set(answers) == {200, 500} and unchecked == admitted,
                 (answers, unchecked))
    checks.check(f"{store.name} is killed: bearer tokens are taken", fleet.ask(strict, f"Bearer {TOKEN}") == 200)
    forged = spent[:-12] + secrets.token_urlsafe(6) + spent[-4:]
    checks.check(f"{store.name} is killed: what is forged is not let in unchecked", fleet.show(lenient, forged) == 407)
    store.start()
    for relay in both:
        checks.attempt(f"{store.name} is back: tokens are taken, without a restart of {relay.name}",
                       lambda relay=relay: until_admits(fleet, relay))
    checks.check(f"{store.name} is back: what was spent before is spent",
                 [fleet.show(relay, spent) for relay in both] == [407, 407])
    checks.attempt(f"{store.name} is back: it is told by metrics",
                   lambda: wait_for("up", lambda: all(fleet.number_of(r, "spent_store_up") == 1 for r in both), 60))
    log = strict.text()
    told = (log.count("nobody knows which tokens are spent"), log.count("the store of spent tokens answers"))
    checks.check(f"{store.name}: the log has the outage once, and no password", told == (1, 2) and PASSWORD not in log
                 and IN_URL not in log, told)
    for relay in both:
        relay.stop()


def slow(fleet, checks, store):
    relay = fleet.member(store.url, deadline=8, more="queue = 4")
    until_admits(fleet, relay)
    tokens = [fleet.keys[0].token() for _ in range(10)]
    store.freeze()
    try:
        waiting = [fleet.beside(lambda token=token: fleet.show(relay, token)) for token in tokens]
        still = lambda: sum(thread.is_alive() for thread, _ in waiting)
        wait_for("more than the queue are told at once", lambda: still() <= 4)
        bearer, after = fleet.ask(relay, f"Bearer {TOKEN}"), still()
        checks.check(f"{store.name} hangs: a bearer token is taken while private ones wait", bearer == 200 and after == 4,
                     (bearer, after))
        for thread, _ in waiting:
            thread.join(60)
        answers = [answer.get("status") for _, answer in waiting]
        checks.check(f"{store.name} hangs: who waits is told when the deadline is over, and more than the queue at once",
                     answers == [500] * 10 and fleet.failures(relay) == {"full": 6, "late": 4}, (answers, fleet.failures(relay)))
        checks.check(f"{store.name} hangs: it is told by metrics", fleet.number_of(relay, "spent_store_up") == 0)
    finally:
        store.freeze(False)
    checks.attempt(f"{store.name} goes on: tokens are taken, without a restart", lambda: until_admits(fleet, relay))
    answers = [fleet.show(relay, token) for token in tokens]
    checks.check(f"{store.name} goes on: tokens that it was asked for are spent, those that were above the queue are not",
                 sorted(answers) == [200] * 6 + [407] * 4, answers)
    relay.stop()


def wiped(fleet, checks, store):
    relays = [fleet.member(store.url) for _ in range(2)]
    for way, wipe in store.wipes():
        token = fleet.keys[0].token()
        checks.check(f"{way}: before, a token is spent", [fleet.show(r, token) for r in relays] == [200, 407])
        wipe()
        for relay in relays:
            checks.attempt(f"{way}: {relay.name} goes on", lambda relay=relay: until_admits(fleet, relay))
        answers = [fleet.show(relay, token) for relay in (*relays, *relays)]
        checks.check(f"{way}: a token of before admits once more, and once alone", answers == [200] + [407] * 3, answers)
        store.prepare()
    for relay in relays:
        relay.stop()


def expiry(fleet, checks, store):
    # The first key's tokens were taken until a month ago, but for some seconds.
    end, epoch = int(time.time()) + 8, 1000
    old = Key(end - MONTH - 2 * epoch)
    (fleet.folder / "old.json").write_text(directory(Key(old.not_before + epoch), old))
    relay = fleet.member(store.url, keys="old.json")
    token = old.token()
    answers = [fleet.show(relay, token), fleet.show(relay, token)]
    checks.check(f"{store.name}: a mark is kept to its end", answers == [200, 407] and store.until(token) == end,
                 (answers, store.until(token), end))
    before = store.marks()
    if isinstance(store, Postgres):
        # As of relays that ran long ago: more than are forgotten at once.
        store.sql("INSERT INTO hoplite_spent SELECT int8send(n::int8), 1000 + n FROM generate_series(1, 2500) n")
        store.sql("INSERT INTO hoplite_spent VALUES ('\\x00', NULL)")
        before += 2501
    wait_for("the end", lambda: time.time() > end, 60)
    checks.check(f"{store.name}: after it the token is refused, as its mark may be gone", fleet.show(relay, token) == 407)
    second = fleet.member(store.url)
    gone = 2501 if isinstance(store, Postgres) else 1
    checks.attempt(f"{store.name}: what has ended is forgotten, and nothing else",
                   lambda: wait_for(f"{before - gone} marks", lambda: store.until(token) is None
                                    and store.marks() == before - gone, 30))
    for one in (relay, second):
        one.stop()


def rotated(fleet, checks, store):
    relay = fleet.member(store.url)
    until_admits(fleet, relay)
    store.rotate("another one")
    answers = wait_for("the old password is refused", lambda: (status := fleet.fresh(relay)) != 200 and status, 60)
    checks.check(f"{store.name}, another password: the old one admits nobody", answers == 500, answers)
    relay.url_file.write_text(store.url.replace(IN_URL, "another%20one"))
    relay.child.send_signal(signal.SIGHUP)
    checks.attempt(f"{store.name}, another password: SIGHUP reads the file again", lambda: until_admits(fleet, relay))
    relay.child.send_signal(signal.SIGHUP)
    answers = [fleet.fresh(relay) for _ in range(20)]
    checks.check(f"{store.name}: a reload refuses nobody", answers == [200] * 20, answers)
    relay.url_file.write_text("redis://:secret")
    relay.child.send_signal(signal.SIGHUP)
    checks.attempt(f"{store.name}: a wrong file is told without its text, and what was stays",
                   lambda: wait_for("a word", lambda: "url_file" in relay.text(), 20) and fleet.fresh(relay) == 200
                   and "secret" not in relay.text())
    relay.stop()


HOSTILE = {
    "closes at once": (b"", True),
    "says nothing": (b"", False),
    "speaks HTTP": (b"HTTP/1.1 400 Bad Request\r\n\r\n", True),
    "says OK to everything before it is asked": (b"+OK\r\n" * 3000, False),
    "announces a gigabyte": (b"$1000000000\r\n", False),
    "nests without end": (b"*1\r\n" * 20000, False),
    "lets everybody in and announces a gigabyte": (b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05ID\x3f\xff\xff\xff", False),
    "says random bytes": (secrets.token_bytes(50000), True),
}


def hostile(fleet, checks):
    """Whatever it says, and without end: nobody is let in, and the relay stands."""
    state = {}

    def answer(stream):
        says, closes = state["says"], state["closes"]
        with contextlib.suppress(OSError):
            stream.sendall(says)
            while not closes and says and state["says"] is says:
                stream.sendall(says if says.startswith(b"*") else bytes(65536))
            if not closes:
                while stream.recv(65536):
                    pass
            stream.close()

    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    state.update(says=b"", closes=True)
    threading.Thread(target=serve, daemon=True).start()
    place = f"127.0.0.1:{listener.getsockname()[1]}"
    for scheme, url in (("PostgreSQL", f"postgres://a:b@{place}/c"), ("Redis", f"redis://:b@{place}"), ("Redis's TLS", f"rediss://:b@{place}")):
        relay = fleet.member(url, deadline=1)
        wrong = {}
        for what, (says, closes) in HOSTILE.items():
            state.update(says=says, closes=closes)
            answers = [fleet.fresh(relay) for _ in range(3)] + [fleet.ask(relay, f"Bearer {TOKEN}")]
            if answers != [500] * 3 + [200]:
                wrong[what] = answers
        checks.check(f"what is no {scheme} admits nobody, whatever it says ({len(HOSTILE)} ways), and a bearer token is taken", not wrong, wrong)
        memory = int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{relay.child.pid}/status").read_text())[1])
        checks.check(f"what is no {scheme} takes little of the relay's memory ({memory >> 10} MiB at most)", memory < 256 << 10, memory)
        checks.check(f"what is no {scheme}: nothing panics", "panicked" not in relay.text())
        relay.stop()
    listener.close()


def main():
    checks = Checks("spent_store")
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    with Fleet() as fleet:
        for kind in (Postgres, Redis):
            if why := kind.missing():
                checks.skip(kind.name, why)
                continue
            store = fleet.store(kind)
            for part in (spent_once, one_round_trip, outage, slow, wiped, expiry, rotated):
                try:
                    part(fleet, checks, store)
                except Exception as e:  # noqa: BLE001: the other parts say more
                    checks.check(f"{kind.name}: {part.__name__}", False, f"{type(e).__name__}: {e}")
            store.process.stop(signal.SIGQUIT if kind is Postgres else signal.SIGTERM)
        hostile(fleet, checks)
        if checks.failed:
            fleet.show_logs()
    checks.done()


if __name__ == "__main__":
    main()
