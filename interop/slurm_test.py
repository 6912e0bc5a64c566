"""A campaign over a real Slurm: `deploy/lab/slurm-array.sh` as it stands, shards as tasks of an array, one of them killed and requeued by Slurm,
one killed behind its back and submitted again; all joined, and held against one machine that ran the whole campaign alone.

Slurm's controller, its nodes and munge are this test's own, in a folder of its own and on loopback, each started by hand; the machine's are left
alone. Needs root, as slurmd does.
"""

import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time

from common import HERE, HOPLITE, Checks, Missing, Process, free_port, wait_for

LAB = pathlib.Path(os.environ.get("HOPLITE_LAB", HOPLITE.parent / "hoplite-lab")).resolve()
SCRIPT = HERE.parent / "deploy/lab/slurm-array.sh"
NODES, REPETITIONS = 3, 4
# Times that only the scenario knows: by turns one shard would get most of the long ones.
CASES, SUBJECTS = {"200ms": 0.2, "1s": 1.0, "3s": 3.0}, 2
RUNS = len(CASES) * SUBJECTS * REPETITIONS

SCENARIO = f"""
name = "over-slurm"
summary = "a test"
repetitions = {REPETITIONS}
seed = 11
[sysctl]
"net.ipv4.tcp_congestion_control" = false
[gate]
late_us_p99 = 100000
late_us_max = 10000000
steal = "100%"
cpu_pressure = 1
[matrix]
time = {json.dumps(list(CASES))}
[[host]]
name = "client"
[[host]]
name = "server"
[[link]]
ends = ["client", "server"]
rate = "5Mbit"
delay = "2ms"
[[subject]]
use = "native"
[[subject]]
use = "native"
label = "again"
[[workload]]
name = "download"
kind = "download"
from = "client"
to = "server"
time = "{{time}}"
"""


class Slurm:
    """munge, a controller and nodes."""

    programs = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge"}
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])

    @classmethod
    def missing(cls):
        wanted = [package for program, package in cls.programs.items() if not shutil.which(program, path=cls.path)]
        return Missing(f"no Slurm: {', '.join(wanted)}") if wanted else None

    def __init__(self, folder):
        self.folder, self.processes = folder, []
        folder.chmod(0o755)
        for name in ("state", "munge"):
            (folder / name).mkdir(mode=0o755)
        self.conf = folder / "slurm.conf"
        self.env = {**os.environ, "PATH": self.path, "SLURM_CONF": str(self.conf)}
        host, nodes = socket.gethostname().split(".")[0], []
        for number in range(1, NODES + 1):
            (folder / f"spool-n{number}").mkdir()
            nodes.append(f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=1 State=UNKNOWN")
        # A task that is requeued waits as long as its credential would live; one that is killed, for KillWait.
        self.conf.write_text(f"""
ClusterName=hoplite
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/linear
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=3
MinJobAge=3600
SchedulerParameters=sched_interval=2,batch_sched_delay=0
{chr(10).join(nodes)}
PartitionName=lab Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""")

    def begin(self):
        self.munge()
        self.start("slurmctld", ["slurmctld", "-D", "-f", self.conf])
        for number in range(1, NODES + 1):
            self.start(f"n{number}", ["slurmd", "-D", "-N", f"n{number}", "-f", self.conf])

    def start(self, name, command):
        command[0] = shutil.which(command[0], path=self.path)
        process = Process(name, command, self.folder, env=self.env)
        self.processes.append(process)
        return process

    def munge(self):
        place = self.folder / "munge"
        (place / "key").write_bytes(secrets.token_bytes(128))
        (place / "key").chmod(0o600)
        daemon = self.start("munged", ["munged", "--foreground", "--force", f"--key-file={place}/key", f"--socket={place}/socket",
                                       f"--pid-file={place}/pid", f"--log-file={place}/log", f"--seed-file={place}/seed"])
        wait_for("munge", lambda: (place / "socket").exists() or not daemon.alive())

    def ask(self, *command, **more):
        done = subprocess.run([str(word) for word in command], env={**self.env, **more}, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(f"{command[0]}: exit {done.returncode}: {done.stderr}")
        return done.stdout

    def up(self):
        try:
            states = self.ask("sinfo", "-h", "-N", "-o", "%N %t").split("\n")
        except RuntimeError:
            return False  # the controller is on its way
        return sorted(line.strip() for line in states if line.strip()) == [f"n{n} idle" for n in range(1, NODES + 1)]

    def state(self, job):
        """Of a job or a task (`7_2`), and how often Slurm began it again."""
        told = self.ask("scontrol", "show", "job", job)
        return re.search(r"JobState=(\S+)", told)[1], int(re.search(r"Restarts=(\d+)", told)[1])

    def until(self, job, *states, seconds=120):
        return wait_for(f"job {job} is {'/'.join(states)}", lambda: self.state(job)[0] in states and self.state(job)[0], seconds)

    def stop(self):
        for process in reversed(self.processes):
            process.stop(patience=10)

    def show_logs(self):
        for process in self.processes:
            print(f"----- {process.name} (last lines)")
            print("\n".join(process.text().splitlines()[-25:]))


def lab(*command, check=True):
    done = subprocess.run([str(word) for word in (LAB, *command)], capture_output=True, text=True, timeout=300)
    if check and done.returncode:
        raise AssertionError(f"{command[0]}: exit {done.returncode}: {done.stderr[-2000:]}")
    return done


def over(out):
    """Repetitions of a directory that are over."""
    try:
        with sqlite3.connect(f"file:{out}/results.sqlite?mode=ro", uri=True, timeout=30) as database:
            return [run for run, in database.execute("SELECT id FROM run")]
    except sqlite3.Error:
        return []


def results(out):
    """What must not depend on who ran it: every repetition with its place, seed and verdict, its figures' names, its samples."""
    with sqlite3.connect(f"file:{out}/results.sqlite?mode=ro", uri=True) as database:
        runs = sorted(database.execute("SELECT id, parameters, subject, repetition, place, seed, verdict FROM run"))
        figures = sorted(database.execute("SELECT run, coalesce(workload, ''), coalesce(transfer, 0), name, count(*) FROM metric GROUP BY 1, 2, 3, 4"))
        planned = database.execute("SELECT planned, repetitions, seed, fingerprints FROM campaign").fetchone()
    return runs, figures, planned, sorted(path.name for path in (out / "samples").iterdir())


def counts(out):
    """n of each case and subject, as the report tells."""
    rows = map(json.loads, lab("report", out, "--json").stdout.splitlines())
    return {(row["case"]["time"], row["subject"]): row["n"] for row in rows if row["metric"] == "goodput_bps" and "median" in row}


def even(checks, scenario):
    """What each shard expects to take, before anything runs."""
    plans = []
    for number in range(1, NODES + 1):
        said = lab("run", scenario, "--dry-run", "--json", "--shard", f"{number}/{NODES}").stdout
        plans.append([json.loads(line) for line in said.splitlines()])
    loads = [sum(line["expected_s"] for line in plan) for plan in plans]
    ids = [line["id"] for plan in plans for line in plan]
    longest = SUBJECTS * max(line["expected_s"] for plan in plans for line in plan)
    print(f"     expected of the shards: {', '.join(f'{load:.1f} s' for load in loads)}")
    checks.check("the shards have every repetition, each once", len(ids) == len(set(ids)) == RUNS, (len(ids), len(set(ids))))
    checks.check("and come out even: no two differ by more than the longest case takes", max(loads) - min(loads) <= longest, loads)


def campaign(checks, slurm, folder, scenario):
    out, shared = folder / "over-slurm", folder / "shared"
    shared.mkdir()
    shards = [pathlib.Path(f"{out}.shards/{n}") for n in range(1, NODES + 1)]
    env = {"SCENARIO": str(scenario), "OUT": str(out), "SHARDS": str(NODES), "LAB": str(LAB)}
    command = ("bash", SCRIPT, "submit", "--to", shared)
    array, join = re.search(r"shards: job (\d+), join: job (\d+)", slurm.ask(*command, **env)).groups()

    # Shard 2 is killed and begun again by Slurm itself, as after the loss of a node.
    wait_for("shard 2 has begun", lambda: len(over(shards[1])) >= 2, 60)
    before = over(shards[1])
    slurm.ask("scontrol", "requeue", f"{array}_2")
    # Shard 3's lab is killed behind Slurm's back.
    wait_for("shard 3 has begun", lambda: over(shards[2]), 60)
    pid = int((shards[2] / "lock").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    checks.check("a shard whose lab is killed has failed", slurm.until(f"{array}_3", "FAILED", "COMPLETED") == "FAILED")
    state = slurm.until(f"{array}_2", "COMPLETED", "FAILED")
    restarts = slurm.state(f"{array}_2")[1]
    checks.check("a shard that Slurm requeued comes to its end", (state, restarts) == ("COMPLETED", 1), (state, restarts))
    went_on = over(shards[1])
    checks.check("it went on where it was", before and set(before) <= set(went_on), (before, went_on))
    log = "".join(path.read_text() for path in sorted(folder.glob(f"over-slurm.{array}-2.log")))
    ran = [json.loads(line)["id"] for line in log.splitlines() if '"event":"run"' in line]
    checks.check("and ran no repetition twice", len(ran) == len(set(ran)) and set(ran) <= set(went_on), ran)
    slurm.until(f"{array}_1", "COMPLETED")
    checks.check("the join does not come while a shard is missing", slurm.until(join, "CANCELLED", "COMPLETED") == "CANCELLED" and not out.exists())

    # That shard alone, submitted again: it goes on, too.
    there = over(shards[2])
    array, join = re.search(r"shards: job (\d+), join: job (\d+)", slurm.ask(*command, TASKS="3", **env)).groups()
    checks.check("the shard that failed is submitted again, and the join comes after it", slurm.until(join, "COMPLETED", "FAILED", "CANCELLED") == "COMPLETED",
                 "".join(path.read_text() for path in folder.glob(f"over-slurm.{join}.log")))
    checks.check("it went on where it was killed", there and set(there) <= set(over(shards[2])), (there, over(shards[2])))
    for shard in shards:
        said = lab("run", scenario, "--out", shard, "--resume", "--json", "--shard", f"{shard.name}/{NODES}").stdout
        checks.check(f"`run --resume` finds nothing left to do in shard {shard.name}", '"event":"run"' not in said, said[-500:])
    elsewhere = lab("run", scenario, "--out", folder / "not-mounted", "--resume", check=False)
    checks.check("`run --resume` begins nothing where there is nothing", elsewhere.returncode == 1 and "no results" in elsewhere.stderr
                 and not (folder / "not-mounted").exists(), elsewhere.stderr)
    return out, shared


def same_as_alone(checks, folder, scenario, out):
    alone = folder / "alone"
    lab("run", scenario, "--out", alone, "--json")
    (runs, figures, planned, samples), expected = results(out), results(alone)
    print(f"     joined: {len(runs)} repetitions of {planned[0]} planned, {len(figures)} figures, {len(samples)} files of samples")
    checks.check("joined, it has the repetitions of one machine alone: same cases, places, seeds, all ok",
                 runs == expected[0] and len(runs) == RUNS and {run[-1] for run in runs} == {"ok"}, (len(runs), len(expected[0])))
    checks.check("the same figures, each as often", figures == expected[1], (len(figures), len(expected[1])))
    checks.check("the same plan and samples", (planned, samples) == expected[2:], (planned, expected[2]))
    n = counts(out)
    checks.check(f"every n is as asked: {REPETITIONS} of each case and subject", n == counts(alone) and set(n.values()) == {REPETITIONS}
                 and len(n) == len(CASES) * SUBJECTS, n)


def handed_in(checks, shared, out):
    """Shards hand in by themselves (`--to`), two of them more than once."""
    try:
        import duckdb
    except ImportError:
        return checks.skip("DuckDB reads what the shards have handed in", Missing("no duckdb: interop/requirements.txt"))
    rows = duckdb.sql(f"""
        SELECT parameters->>'time', subject, count(*), count(DISTINCT repetition), sum(n) FROM '{shared}/part/*/*/run.parquet' run
        JOIN (SELECT campaign, run, count(*) AS n FROM '{shared}/part/*/*/sample.parquet' GROUP BY ALL) sample
        ON run.campaign = sample.campaign AND run.id = sample.run WHERE verdict = 'ok' GROUP BY ALL""").fetchall()
    expected = {(case, subject): (REPETITIONS, REPETITIONS, REPETITIONS) for case in CASES for subject in ("native", "again")}
    found = {(case, subject): (n, distinct, int(samples)) for case, subject, n, distinct, samples in rows}
    checks.check("DuckDB reads what the shards have handed in: every repetition, each once", found == expected, found)
    again = json.loads(lab("hand-in", out, "--to", shared, "--json").stdout)
    checks.check("the joined campaign adds nothing", (again["added"], again["replaced"], again["there"]) == (0, 0, RUNS), again)


def main():
    checks = Checks("slurm")
    if why := Slurm.missing():
        checks.skip("a campaign over Slurm", why)
        checks.done()
    if os.geteuid() != 0:
        checks.skip("a campaign over Slurm", "slurmd and munge need root")
        checks.done()
    with tempfile.TemporaryDirectory(prefix="hoplite-slurm-") as temp:
        folder = pathlib.Path(temp)
        slurm = Slurm(folder)
        try:
            slurm.begin()
            wait_for("all nodes are up", slurm.up, 60)
            scenario = folder / "over-slurm.toml"
            scenario.write_text(SCENARIO)
            even(checks, scenario)
            out, shared = campaign(checks, slurm, folder, scenario)
            same_as_alone(checks, folder, scenario, out)
            handed_in(checks, shared, out)
        except Exception as e:  # noqa: BLE001: whatever went wrong is the finding
            checks.check("a campaign over Slurm", False, f"{type(e).__name__}: {e}")
        finally:
            slurm.stop()
            # What slurmd had started ends with it; its shells would write on here.
            time.sleep(0.5)
        if checks.failed:
            slurm.show_logs()
            for log in sorted(folder.glob("over-slurm.*.log")):
                print(f"----- {log.name}\n" + "\n".join(log.read_text().splitlines()[-15:]))
    checks.done()


if __name__ == "__main__":
    main()
