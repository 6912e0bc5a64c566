"""Reads `hoplite demo --json` from stdin: 0..3 hops, TCP and UDP, every line ok."""

import json
import sys

lines = [json.loads(line) for line in sys.stdin if line.startswith("{")]
seen = {(line["hops"], line["proto"]): line["ok"] for line in lines if "hops" in line}
wanted = {(hops, proto) for hops in range(4) for proto in ("tcp", "udp")}
for line in lines:
    print(json.dumps(line))
missing = sorted(wanted - seen.keys())
bad = sorted(key for key, ok in seen.items() if ok is not True)
print(f"demo: {len(seen) - len(bad)} passed, {len(bad) + len(missing)} failed")
sys.exit(f"missing {missing}, not ok {bad}" if missing or bad else 0)
