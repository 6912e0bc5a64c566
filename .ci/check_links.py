"""Every relative link and every `path` in backquotes of the Markdown files leads somewhere, and each test that the threat model names is there.

Run by .ci/run docs."""

import pathlib
import re
import subprocess
import sys

bad = []
for name in subprocess.run(["git", "ls-files", "*.md"], capture_output=True, text=True, check=True).stdout.split():
    page = pathlib.Path(name)
    text = page.read_text()
    links = {(page.parent, t) for t in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text) if "://" not in t}
    links |= {(pathlib.Path(), t) for t in re.findall(r"`((?:crates|docs|deploy|examples|interop|fuzz|\.ci)/[\w./*-]*)`", text)}
    bad += [f"{name}: {target}" for base, target in links if not list(base.glob(target.rstrip("/")))]
tests = re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+){4,})`", pathlib.Path("docs/threat-model.md").read_text())
there = subprocess.run(["git", "grep", "-hoE", "(fn|def) [a-z0-9_]+"], capture_output=True, text=True, check=True).stdout.split()
bad += [f"docs/threat-model.md: no test {test}" for test in sorted(set(tests) - set(there))]
print("\n".join(bad) or "all links lead somewhere")
sys.exit(bool(bad))
