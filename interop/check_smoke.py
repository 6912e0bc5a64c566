"""Reads `hoplite-lab report --json` of the smoke scenario: every subject's transfers are there, none failed."""

import json
import sys

rows = [json.loads(line) for line in sys.stdin]
rows = [row for row in rows if "median" in row]
subjects = {row["subject"] for row in rows if row["metric"] == "ttlb_s" and row["n"] > 0}
assert "native" in subjects and len(subjects) >= 3, subjects
assert not any(row.get("failed") for row in rows), [row for row in rows if row.get("failed")]
cpu = {row["metric"] for row in rows if row["metric"].startswith("cpu_s_per_gb:relay")}
assert cpu, "no relay's processor time"
print(f"smoke: {len(rows)} rows, subjects {sorted(subjects)}")
