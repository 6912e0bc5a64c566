"""OnionPerf's own tools on files of the lab: a campaign's export, and days of a monitor with failures in them. Its schema, `visualize` (which loads them
by its `analysis`), and what that makes of our figures.

Only when it is named: OnionPerf is in no registry. ONIONPERF names a copy of its repository (0.8), ONIONPERF_PYTHON a Python with what it needs:
`pip install 'pandas<2' 'seaborn<0.13' 'matplotlib<3.8' 'numpy<2' lxml networkx scipy stem tgentools==1.0.0rc2 jsonschema`.
"""

import csv
import json
import os
import pathlib
import shutil
import subprocess
import time

from common import Checks, Process, free_port, wait_for
from lab_test import LAB, Scratch, two_hosts

ONIONPERF = pathlib.Path(os.environ.get("ONIONPERF", "/nonexistent"))
PYTHON = os.environ.get("ONIONPERF_PYTHON", "python3")
# 2026-11-01 00:00 UTC.
NOVEMBER = 1_793_491_200
VALIDATE = "import json, sys, jsonschema; jsonschema.validate(json.load(open(sys.argv[1])), json.load(open(sys.argv[2])))"


def campaign(scratch):
    """Its files, one for each case and subject."""
    out = scratch.run(scratch.scenario("exported", two_hosts('rate = "50Mbit"\ndelay = "5ms"\nqueue = "100kB"', """
[[subject]]
use = "native"
[[workload]]
name = "onionperf"
kind = "schedule"
count = 8
choices = [{ sendsize = 1000, recvsize = 51200, pause = "0s", weight = 1 }, { sendsize = 1000, recvsize = 5242880, pause = "0s", weight = 1 }]
""")))
    scratch.report(out)
    return list(out.glob("export/*.onionperf.analysis.json"))


def monitor(scratch):
    """Days of a monitor over loopback, straight; its server is away for a while."""
    folder, port = scratch.path / "monitor", free_port()
    folder.mkdir()
    file = folder / "monitor.toml"
    file.write_text(f'directory = "kept"\nserver = {{ host = "127.0.0.1", port = {port} }}\n'
                    'schedule = { profile = "partial", every = 3600, stall = 2, timeout = 10 }\nbudget = { bytes_per_month = 9_000_000_000 }\n'
                    f'[serve]\nlisten = ["127.0.0.1:{port}"]\n')
    kept = folder / "kept" / "default"
    samples = lambda: sum(path.read_text().count("\n") for path in kept.glob("*.jsonl") if ".tor." not in path.name)  # noqa: E731
    server = Process("server", [LAB, "monitor", "serve", file], folder)
    # An hour each 0.2 s.
    running = Process("monitor", [LAB, "monitor", "run", "--pace", 18000, "--at", NOVEMBER, file], folder)
    try:
        wait_for("transfers", lambda: samples() > 4, 60)
        server.stop()
        wait_for("failures", lambda: any('"CONNECT"' in path.read_text() for path in kept.glob("*.jsonl")), 60)
        server = Process("server-again", [LAB, "monitor", "serve", file], folder)
        wait_for("days that are over", lambda: len(list(kept.glob("*.onionperf.analysis.json"))) > 1, 60)
        time.sleep(1)
    finally:
        running.stop()
        server.stop()
    return sorted(kept.glob("*.onionperf.analysis.json"))


def reads(checks, scratch, name, files):
    """All files of one origin as one data set."""
    if not checks.check(f"{name}: there are files", files):
        return
    for file in files:
        schema = ONIONPERF / "schema/onionperf-4.0.json"
        done = subprocess.run([PYTHON, "-c", VALIDATE, file, schema], capture_output=True, text=True, timeout=120)
        checks.check(f"{name}: {file.name} is of OnionPerf's schema", done.returncode == 0, done.stderr[-500:])
    command = [PYTHON, ONIONPERF / "onionperf/onionperf", "visualize", "--prefix", scratch.path / name, "--data", *files, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": str(ONIONPERF)})
    checks.check(f"{name}: visualize ends well", done.returncode == 0, done.stderr[-1500:])
    tables, pages = list(scratch.path.glob(f"{name}.onionperf.viz.*.csv")), list(scratch.path.glob(f"{name}.onionperf.viz.*.pdf"))
    if not checks.check(f"{name}: it draws its pages and writes its table", len(tables) == len(pages) == 1 and pages[0].stat().st_size > 10_000,
                        f"{tables}, {pages}"):
        return
    compare(checks, name, files, list(csv.DictReader(tables[0].open())))


def compare(checks, name, files, rows):
    """What OnionPerf says of each stream, beside the file."""
    streams = [stream for file in files for source in json.loads(file.read_text())["data"].values() for stream in source["tgen"]["streams"].values()]
    good = [stream for stream in streams if stream["is_success"]]
    last = sorted(int(stream["time_info"]["usecs-to-last-byte-recv"]) / 1e6 for stream in good)
    theirs = [row for row in rows if not row["error_code"]]
    same = len(last) == len(theirs) and all(abs(a - b) < 1e-6 for a, b in zip(last, sorted(float(row["time_to_last_byte"]) for row in theirs)))
    errors = {row["error_code"] for row in rows} - {""}
    print(f"     {name}: {len(rows)} streams, {len(theirs)} succeeded, {sum(1 for row in rows if row['mbps'])} with a rate, errors {errors}", flush=True)
    checks.check(f"{name}: it has every stream", len(rows) == len(streams), f"{len(rows)} of {len(streams)}")
    checks.check(f"{name}: and its time to the last byte", good and same)
    large = [row for row in theirs if row["filesize_bytes"] == "5242880"]
    checks.check(f"{name}: 5 MiB have a rate", large and all(float(row["mbps"]) > 0 for row in large))
    failed = {stream["stream_info"]["error"] for stream in streams} - {"NONE"}
    checks.check(f"{name}: and failures are what they are in the file", errors == {f"TGEN/{kind}" for kind in failed}, f"{errors}, {failed}")


def main():
    checks = Checks("OnionPerf's tools")
    if not (ONIONPERF / "onionperf/onionperf").exists():
        checks.skip("everything", "ONIONPERF names no copy of OnionPerf's repository")
        checks.done()
    scratch = Scratch()
    print(f"     results in {scratch.path}", flush=True)
    checks.attempt("a campaign's export", lambda: reads(checks, scratch, "campaign", campaign(scratch)))
    checks.attempt("a monitor's days", lambda: reads(checks, scratch, "monitor", monitor(scratch)))
    if not checks.failed:
        shutil.rmtree(scratch.path, ignore_errors=True)
    checks.done()


if __name__ == "__main__":
    main()
