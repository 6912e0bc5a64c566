"""Results of several machines in one place: `hoplite-lab hand-in` and `run --to` into a real PostgreSQL, and into Parquet files that DuckDB reads.

Again and again, two at once, killed in the middle, with the database away, its disk full, a login that is wrong, storage that is full or not
there: nothing is lost, nothing is there twice or in part, and each failure says what to do. The database is a private one in a folder of this
test; what takes a small disk needs root.
"""

import collections
import json
import os
import pathlib
import pwd
import random
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time

from common import Checks, Lab, Missing, Process, wait_for
from lab_test import LAB, Scratch
from spent_store_test import IN_URL, PASSWORD, Postgres

CAMPAIGN = """
repetitions = 4
seed = 5
[sysctl]
"net.ipv4.tcp_congestion_control" = false
[[host]]
name = "client"
[[host]]
name = "server"
[[link]]
ends = ["client", "server"]
delay = "1ms"
[matrix]
size = ["1kB", "5kB"]
[[subject]]
use = "native"
[[subject]]
use = "moody"
[[workload]]
name = "download"
kind = "download"
from = "client"
to = "server"
bytes = "{size}"
count = 40
[[workload]]
name = "echo"
kind = "udp-echo"
from = "client"
to = "server"
size = 100
count = 20
interval = "2ms"
"""
# Comes up only where the file MOOD is. Its log has what a text of PostgreSQL cannot have.
MOODY = """
[[step]]
name = "mood"
host = "client"
command = ["sh", "-c", 'printf "a log with\\\\000 NUL, \\\\\\\\N and a\\\\ttab\\\\n"; test -e MOOD || exit 3; echo up; sleep 1000']
ready = [{ log = "up" }]
"""
RUNS, TABLES = 2 * 2 * 4, ("run", "attempt", "metric", "process", "link")


class Database(Postgres):
    """PostgreSQL with a database for results, owned by the user `owner`."""

    def __init__(self, lab, folder, user):
        super().__init__(lab, folder, user)
        self.lab = lab
        hba = self.data / "pg_hba.conf"
        hba.write_text("host results guest 127.0.0.1/32 scram-sha-256\n" + hba.read_text())
        self.sql("CREATE ROLE guest LOGIN PASSWORD '" + PASSWORD + "'")
        self.fresh()
        self.sql("SELECT pg_reload_conf()", "postgres")

    def fresh(self):
        self.sql("DROP DATABASE IF EXISTS results WITH (FORCE)")
        self.sql("CREATE DATABASE results OWNER owner")
        self.place = f"postgres://owner:{IN_URL}@/results?host={self.folder}&port={self.port}"
        self.by_tls = f"postgres://owner@localhost:{self.port}/results?sslmode=require&sslrootcert={self.lab.authority.ca}"
        self.guest = f"postgres://guest:{IN_URL}@127.0.0.1:{self.port}/results"

    def rows(self, sql):
        return [line.split("|") for line in self.sql(sql, "results").splitlines()]

    def number(self, sql):
        return int(self.sql(sql, "results"))

    def counts(self):
        return {table: self.number(f"SELECT count(*) FROM hoplite_lab.{table}") for table in TABLES}

    def verdicts(self):
        rows = self.rows("SELECT verdict, count(*) FROM hoplite_lab.run GROUP BY 1")
        return {verdict: int(n) for verdict, n in rows}

    def sound(self):
        """Every repetition once, and nothing that belongs to none."""
        doubled = self.number("SELECT count(*) FROM (SELECT 1 FROM hoplite_lab.run GROUP BY campaign, parameters, subject, repetition"
                              " HAVING count(*) > 1) AS x")
        halves = self.number("SELECT count(*) FROM hoplite_lab.run WHERE verdict = 'ok' AND"
                             " (SELECT count(*) FROM hoplite_lab.sample s WHERE s.campaign = run.campaign AND s.run = run.id) <> 41")
        return doubled == halves == 0


def hand_in(*dirs, to, patience=60, check=True, env=None):
    command = [LAB, "hand-in", *dirs, "--to", to, "--json", "--patience", patience]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, env={**os.environ, **(env or {})})
    if check and done.returncode:
        raise AssertionError(f"hand-in: exit {done.returncode}: {done.stderr[-2000:]}")
    done.lines = [json.loads(line) for line in done.stdout.splitlines()]
    done.counts = [(line["added"], line["replaced"], line["there"]) for line in done.lines]
    return done


def stored(out):
    """How many rows of each table a campaign's directory has, for repetitions that are over."""
    with sqlite3.connect(f"file:{out}/results.sqlite?mode=ro", uri=True) as database:
        only = {"run": "", "attempt": " WHERE run IN (SELECT id FROM run)"}
        return {table: database.execute(f"SELECT count(*) FROM {table}{only.get(table, '')}").fetchone()[0] for table in TABLES}


def figures(out):
    with sqlite3.connect(f"file:{out}/results.sqlite?mode=ro", uri=True) as database:
        return sorted(database.execute("SELECT run, coalesce(workload, ''), coalesce(transfer, 0), name, value FROM metric"))


def fill(path, leave=0):
    """Fills a disk but for so many bytes."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(1024)) == 1024:
                pass
        except OSError:
            pass
        file.truncate(max(0, file.tell() - leave))


def taken(disk):
    """The bytes of a disk that are in use."""
    there = os.statvfs(disk)
    return (there.f_blocks - there.f_bfree) * there.f_frsize


def campaigns(scratch):
    """Two shards of a campaign, in the first of which one subject never came up; the first one again with that mended; both joined."""
    mood = scratch.path / "mood"
    scratch.subject("moody", MOODY.replace("MOOD", str(mood)))
    scenario = scratch.scenario("handed-in", CAMPAIGN)
    out = [scratch.path / name for name in ("one", "two", "mended", "all")]
    for number, place in ((1, out[0]), (2, out[1])):
        if number == 2:
            mood.touch()
        subprocess.run([LAB, "run", scenario, "--shard", f"{number}/2", "--out", place], capture_output=True, timeout=300)
    shutil.copytree(out[0], out[2])
    for command in (["run", scenario, "--shard", "1/2", "--out", out[2], "--retry"], ["merge", out[2], out[1], "--out", out[3]]):
        subprocess.run([LAB, *command], check=True, capture_output=True, timeout=300)
    return out


# --- PostgreSQL --------------------------------------------------------------------------------------------------------------------------


def into_postgres(checks, database, one, two, mended, whole):
    first = hand_in(one, to=database.place)
    failed = database.verdicts().get("failed", 0)
    checks.check("a shard is handed in by a Unix socket, also what failed", first.counts == [(RUNS // 2, 0, 0)] and failed == RUNS // 4, (first.counts, failed))
    checks.check("with every row that it has", database.counts() == stored(one), (database.counts(), stored(one)))
    log = database.rows("SELECT DISTINCT replace(log, chr(10), ' ') FROM hoplite_lab.attempt WHERE verdict = 'failed'")
    checks.check("and logs with all that a program writes", len(log) == 1 and "a log with\ufffd NUL, \\N and a\ttab" in log[0][0], log)
    second = hand_in(two, to=database.by_tls, env={"PGPASSWORD": PASSWORD})
    checks.check("another by TLS, with the password of PGPASSWORD", second.counts == [(RUNS // 2, 0, 0)], second.counts)
    again = hand_in(one, two, to=database.place)
    checks.check("again adds nothing", again.counts == [(0, 0, RUNS // 2)] * 2, again.counts)
    better = hand_in(mended, to=database.place)
    checks.check("what is ok takes the place of what failed", better.counts == [(0, RUNS // 4, RUNS // 4)] and database.verdicts() == {"ok": RUNS},
                 (better.counts, database.verdicts()))
    worse = hand_in(one, to=database.place)
    checks.check("and never the other way", worse.counts == [(0, 0, RUNS // 2)] and database.verdicts() == {"ok": RUNS}, worse.counts)
    joined = hand_in(whole, to=database.place)
    checks.check("the joined shards add nothing", joined.counts == [(0, 0, RUNS)], joined.counts)
    checks.check("the database has what they have, row by row", database.counts() == stored(whole) and database.sound(), (database.counts(), stored(whole)))
    there = sorted((run, workload, int(transfer), name, float(value)) for run, workload, transfer, name, value in database.rows(
        "SELECT run, coalesce(workload, ''), coalesce(transfer, 0), name, value FROM hoplite_lab.metric"))
    checks.check(f"and every figure to the last bit ({len(there)})", there == figures(whole))
    campaign = database.number("SELECT count(*) FROM hoplite_lab.campaign")
    checks.check("all of it is one campaign", campaign == 1 and len({done.lines[0]["campaign"] for done in (first, second, joined)}) == 1, campaign)
    by_case = database.rows("SELECT parameters->>'size', subject, count(*) FROM hoplite_lab.run WHERE verdict = 'ok' GROUP BY 1, 2")
    checks.check("n of each case is as asked", len(by_case) == 4 and {n for *_, n in by_case} == {"4"}, by_case)


def at_once(checks, database, shards):
    database.fresh()
    running = [subprocess.Popen([LAB, "hand-in", shard, "--to", database.place, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
               for shard in shards * 3]
    said = [process.communicate(timeout=120) for process in running]
    added = sum(json.loads(out)["added"] for out, _ in said if out)
    checks.check(f"{len(running)} that hand in at once wait for each other: each repetition comes once",
                 added == RUNS and not any(p.returncode for p in running) and database.verdicts() == {"ok": RUNS} and database.sound(),
                 (added, [err for _, err in said if err]))


def away(checks, database, one, two):
    database.fresh()
    hand_in(one, to=database.place)
    before = database.counts()
    database.kill()
    done = hand_in(two, to=database.place, patience=1, check=False)
    checks.check("a database that is away is told with what to do", done.returncode == 1 and "see that the database is there" in done.stderr
                 and f"hoplite-lab hand-in {two} --to" in done.stderr and PASSWORD not in done.stderr and IN_URL not in done.stderr, done.stderr)
    waiting = subprocess.Popen([LAB, "hand-in", two, "--to", database.place, "--json", "--patience", "120"], stdout=subprocess.PIPE, text=True)
    time.sleep(1)
    still = waiting.poll() is None
    database.start()
    out, _ = waiting.communicate(timeout=120)
    checks.check("and waited for: when it is back, all is handed in", still and json.loads(out)["added"] == RUNS // 2, out)

    # The same in the middle of a transaction: it waits there for a lock that is somebody else's.
    database.fresh()
    hand_in(one, to=database.place)
    lock = "SELECT pg_advisory_lock(29395926223778918); SELECT pg_sleep(600)"
    place = f"host=127.0.0.1 port={database.port} user=admin dbname=results"
    held = Process("held", [database.program / "psql", "-XAtqc", lock, place], database.folder, env={"PGPASSWORD": PASSWORD})
    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    wait_for("the lock is held", lambda: database.number("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"))
    late = hand_in(two, to=database.place, patience=1, check=False)
    checks.check("who waits too long for another is told so", late.returncode == 1 and "wait for the other one" in late.stderr, late.stderr)
    waiting = subprocess.Popen([LAB, "hand-in", two, "--to", database.place, "--json", "--patience", "120"], stdout=subprocess.PIPE, text=True)
    wait_for("it waits in its transaction", lambda: database.number(waits))
    database.kill()
    held.stop()
    database.start()
    out, _ = waiting.communicate(timeout=120)
    checks.check("a database that dies in the middle loses nothing and doubles nothing",
                 json.loads(out)["added"] == RUNS // 2 and database.sound() and database.counts()["run"] == RUNS, out)
    database.fresh()
    hand_in(one, to=database.place)
    checks.check("(before the other shard it had the first one's rows alone)", database.counts() == before, (database.counts(), before))


def killed(checks, database, whole):
    database.fresh()
    begun = time.monotonic()
    hand_in(whole, to=database.place)
    takes = time.monotonic() - begun
    database.fresh()
    chance, kills = random.Random(7), 0
    for _ in range(12):
        running = subprocess.Popen([LAB, "hand-in", whole, "--to", database.place], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            running.wait(chance.uniform(0, takes))
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGKILL)
            kills += 1
        running.wait()
        # What it left is whole: none of its rows, or all.
        exists = database.sql("SELECT to_regclass('hoplite_lab.run') IS NOT NULL", "results") == "t"
        if exists and (database.counts()["run"] not in (0, RUNS) or not database.sound()):
            return checks.check("hand-ins that are killed leave all or nothing", False, database.counts())
    hand_in(whole, to=database.place)
    checks.check(f"hand-ins that are killed ({kills} of 12) leave all or nothing, and the last one completes it",
                 kills and database.counts() == stored(whole) and database.sound(), (kills, database.counts()))


def refused(checks, database, one):
    database.fresh()

    def told(what, words, to, **more):
        done = hand_in(one, to=to, patience=5, check=False, **more)
        checks.check(f"{what} is told with what to do", done.returncode in (1, 2) and words in done.stderr and IN_URL not in done.stderr
                     and PASSWORD not in done.stderr, done.stderr)

    told("a wrong password", "see to the user and the password", database.place.replace(IN_URL, "another"))
    told("no password", "PGPASSWORD", database.by_tls, env={"PGPASSWORD": ""})
    told("a database that does not exist", "make the database", database.place.replace("results", "nowhere"))
    told("a user who may make no schema", "let the user make the schema", database.guest)
    told("an authority that did not sign the certificate", "see that sslrootcert is the authority", database.by_tls.replace(
        str(database.lab.authority.ca), str(database.other_ca)), env={"PGPASSWORD": PASSWORD})
    told("a file that is no certificate", "name a PEM file", database.by_tls.replace(str(database.lab.authority.ca), "/etc/hostname"),
         env={"PGPASSWORD": PASSWORD})
    hand_in(one, to=database.place)
    grants = "GRANT USAGE ON SCHEMA hoplite_lab TO guest; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA hoplite_lab TO guest"
    database.sql(grants, "results")
    done = hand_in(one, to=database.guest)
    checks.check("with the rights that docs/results.md lists it may", done.counts == [(0, 0, RUNS // 2)], done.counts)
    database.sql("UPDATE hoplite_lab.campaign SET format = 2", "results")
    told("a result of another version", "another version of hoplite-lab", database.place)
    database.sql("UPDATE hoplite_lab.campaign SET format = 1; ALTER TABLE hoplite_lab.campaign DROP COLUMN gate", "results")
    told("tables of another version", "use another database", database.place)
    database.fresh()
    hand_in(one, to=database.place)
    database.sql("ALTER TABLE hoplite_lab.sample DROP COLUMN tls_us", "results")
    database.sql("DELETE FROM hoplite_lab.run", "results")
    hand_in(one, to=database.place)
    made = database.number("SELECT count(*) FROM hoplite_lab.sample WHERE tls_us IS NULL")
    checks.check("a column of samples that is not there yet is made", made > 0, made)


def full_database(checks, database, one, two):
    """A tablespace on a disk of a few hundred kilobytes."""
    disk = database.folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=777", "none", disk], capture_output=True, text=True)
    if mounted.returncode:
        return checks.skip("the database's disk is full", f"no small disk to be had: {mounted.stderr.strip()}")
    try:
        os.chown(disk, database.user.pw_uid, database.user.pw_gid)
        database.fresh()
        database.sql(f"CREATE TABLESPACE small LOCATION '{disk}'", "postgres")
        database.sql("GRANT CREATE ON TABLESPACE small TO owner", "postgres")
        database.sql("ALTER DATABASE results SET default_tablespace = small", "postgres")
        hand_in(one, to=database.place)
        before = database.counts()
        filler = disk / "filler"
        fill(filler)
        done = hand_in(two, to=database.place, patience=5, check=False)
        checks.check("a full disk of the database is told with what to do", done.returncode == 1 and "free some space on the database's disk" in done.stderr,
                     done.stderr)
        checks.check("and nothing of it is there", database.counts() == before and database.sound(), (before, database.counts()))
        filler.unlink()
        done = hand_in(two, to=database.place)
        checks.check("given room, all is", done.counts == [(RUNS // 2, 0, 0)] and database.sound(), done.counts)
        database.sql("DROP DATABASE results WITH (FORCE)")
        database.sql("DROP TABLESPACE small", "postgres")
    finally:
        subprocess.run(["umount", "-l", disk], check=False)


# --- Parquet on shared storage -----------------------------------------------------------------------------------------------------------


class Dataset:
    """Reads a directory as a researcher would, by DuckDB."""

    def __init__(self, path):
        import duckdb
        self.path, self.duckdb = path, duckdb

    def rows(self, sql):
        """`{table}` is all files of a table."""
        tables = {table: f"read_parquet('{self.path}/part/*/*/{table}.parquet', union_by_name = true)" for table in (*TABLES, "sample")}
        whole = {table: f"read_parquet('{self.path}/{table}/*.parquet')" for table in ("campaign", "machine")}
        return self.duckdb.sql(sql.format(**tables, **whole)).fetchall()

    def counts(self):
        return {table: self.rows(f"SELECT count(*) FROM {{{table}}}")[0][0] for table in TABLES}

    def sound(self):
        doubled = self.rows("SELECT 1 FROM {run} GROUP BY campaign, parameters, subject, repetition HAVING count(*) > 1")
        halves = self.rows("""SELECT run.id FROM {run} run LEFT JOIN {sample} s ON s.campaign = run.campaign AND s.run = run.id
                              WHERE run.verdict = 'ok' GROUP BY run.id HAVING count(s.run) <> 41""")
        return not doubled and not halves


def into_parquet(checks, scratch, one, two, mended, whole):
    place = scratch.path / "shared"
    missing = hand_in(one, to=place, check=False)
    checks.check("storage that is not there is told, and not made", missing.returncode == 1 and "mount the shared storage" in missing.stderr
                 and not place.exists(), missing.stderr)
    place.mkdir()
    dataset = Dataset(place)
    counts = [hand_in(*dirs, to=place).counts for dirs in ((one,), (two,), (one, two), (mended,), (one,), (whole,))]
    half, quarter = RUNS // 2, RUNS // 4
    expected = [[(half, 0, 0)], [(half, 0, 0)], [(0, 0, half)] * 2, [(0, quarter, quarter)], [(0, 0, half)], [(0, 0, RUNS)]]
    checks.check("Parquet: added, again, mended, never the other way, joined: as in PostgreSQL", counts == expected, counts)
    checks.check("DuckDB reads what the directory has, row by row", dataset.counts() == stored(whole) and dataset.sound(), (dataset.counts(), stored(whole)))
    there = sorted(dataset.rows("SELECT run, coalesce(workload, ''), coalesce(transfer, 0), name, value FROM {metric}"))
    checks.check(f"and every figure to the last bit ({len(there)})", there == figures(whole))
    own_files = dataset.duckdb.sql(f"SELECT run, number, connection, workload, last_byte_us, round_trips_us FROM '{whole}/samples/*.parquet' ORDER BY ALL")
    samples = dataset.rows("SELECT run, number, connection, workload, last_byte_us, round_trips_us FROM {sample} ORDER BY ALL")
    checks.check(f"and every sample ({len(samples)})", samples == own_files.fetchall() and len(samples) == 41 * RUNS)
    medians = dataset.rows("""SELECT parameters->>'size', subject, count(*), median(value) FROM {run} run JOIN {metric} metric
                              ON metric.campaign = run.campaign AND metric.run = run.id
                              WHERE verdict = 'ok' AND name = 'ttlb_s' GROUP BY ALL""")
    checks.check("the query of docs/results.md gives a median of each case and subject", len(medians) == 4 and {n for _, _, n, _ in medians} == {160}, medians)
    machine = dataset.rows("SELECT count(*), max(cores) FROM {machine} JOIN {attempt} attempt ON attempt.machine = id")[0]
    checks.check("each attempt has its machine", machine == (dataset.counts()["attempt"], os.cpu_count()), machine)


def parquet_killed(checks, scratch, one, two):
    place = scratch.path / "killed"
    place.mkdir()
    dataset, chance, outcome = Dataset(place), random.Random(3), collections.Counter()
    (scratch.path / "timed").mkdir()
    begun = time.monotonic()
    hand_in(one, two, to=scratch.path / "timed")
    takes = time.monotonic() - begun
    for _ in range(15):
        running = subprocess.Popen([LAB, "hand-in", one, two, "--to", place], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            running.wait(chance.uniform(0, takes))
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGKILL)
            outcome["killed"] += 1
        running.wait()
        if list(place.glob("part/*/*/run.parquet")) and not dataset.sound():
            return checks.check("hand-ins that are killed leave nothing in part", False, dataset.counts())
    running = [subprocess.Popen([LAB, "hand-in", shard, "--to", place], stdout=subprocess.DEVNULL) for shard in (one, two) * 2]
    codes = [process.wait(60) for process in running]
    checks.check(f"hand-ins that are killed ({outcome['killed']} of 15) leave nothing in part, and four at once complete it",
                 outcome["killed"] and not any(codes) and dataset.sound() and dataset.counts()["run"] == RUNS, (outcome, codes, dataset.counts()))


def parquet_full(checks, scratch, one, two):
    disk = scratch.path / "small"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", disk], capture_output=True, text=True)
    if mounted.returncode:
        return checks.skip("shared storage that is full", f"no small disk to be had: {mounted.stderr.strip()}")
    try:
        tried = disk / "tried"
        tried.mkdir()
        hand_in(one, to=tried)
        room = taken(disk)
        hand_in(two, to=tried)
        room = taken(disk) - room
        shutil.rmtree(tried)
        place, dataset = disk / "shared", Dataset(disk / "shared")
        place.mkdir()
        hand_in(one, to=place)
        before = dataset.counts()
        for share in (0, 0.1, 0.6):
            fill(disk / "filler", int(room * share))
            done = hand_in(two, to=place, check=False)
            checks.check(f"storage with {share:.0%} of the room that it takes is told with what to do, and nothing of it is there",
                         done.returncode == 1 and "free some space there" in done.stderr and dataset.counts() == before and dataset.sound(),
                         (done.stderr, before, dataset.counts()))
        (disk / "filler").unlink()
        done = hand_in(two, to=place)
        checks.check("given room, all is", done.counts == [(RUNS // 2, 0, 0)] and dataset.sound() and not list((place / "aside").iterdir()), done.counts)
    finally:
        subprocess.run(["umount", "-l", disk], check=False)


def main():
    checks = Checks("hand_in")
    if not LAB.exists():
        checks.check(f"{LAB} is built", False)
        checks.done()
    scratch = Scratch()
    try:
        shards = campaigns(scratch)
    except Exception as e:  # noqa: BLE001
        checks.check("a campaign of two shards", False, f"{type(e).__name__}: {e}")
        checks.done()
    one, two, mended, whole = shards
    with Lab() as lab:
        if why := Postgres.missing():
            checks.skip("PostgreSQL", why)
        else:
            from common import Authority
            user = pwd.getpwnam("postgres") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
            folder = pathlib.Path(tempfile.mkdtemp(prefix="hoplite-hand-in-", dir="/tmp"))
            folder.chmod(0o755)
            if os.geteuid() == 0:
                os.chown(folder, user.pw_uid, user.pw_gid)
            try:
                database = Database(lab, folder, user)
                database.other_ca = Authority(lab.folder / "other").ca
                for part, arguments in ((into_postgres, shards), (at_once, ([mended, two],)), (away, (one, two)), (killed, (whole,)),
                                        (refused, (one,)), (full_database, (one, two))):
                    checks.attempt(part.__name__, lambda part=part, arguments=arguments: part(checks, database, *arguments) and None)
                database.process.stop(signal.SIGQUIT)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        try:
            import duckdb  # noqa: F401
        except ImportError:
            checks.skip("DuckDB", Missing("no duckdb: interop/requirements.txt"))
        else:
            checks.attempt("into_parquet", lambda: into_parquet(checks, scratch, *shards) and None)
            for part in (parquet_killed, parquet_full):
                checks.attempt(part.__name__, lambda part=part: part(checks, scratch, one, two) and None)
    if not checks.failed:
        shutil.rmtree(scratch.path, ignore_errors=True)
    checks.done()


if __name__ == "__main__":
    main()
