"""Every relative link, its anchor, and every `path` in backquotes of the Markdown files leads somewhere, and each test
that the threat model names is there. No line of prose is longer than 120 characters; entries of the changelog may be.

Run by .ci/run docs."""

import pathlib
import re
import subprocess
import sys


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def anchors(page):
    """What the headings of a page are called in links: as GitHub does it, a number for each that was there before."""
    found, seen = set(), {}
    code = False
    for line in page.read_text().splitlines():
        code ^= line.startswith("```")
        if code or not re.match(r"#{1,6} ", line):
            continue
        heading = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip()).lower()
        name = re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if name in seen else name)
        seen[name] = seen.get(name, 0) + 1
    return found


def too_long(page):
    """The numbers of lines that are, outside tables and code."""
    code = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        code ^= line.startswith("```")
        if len(line) > 120 and not code and not line.startswith("|"):
            yield number


bad = []
for name in output("git", "ls-files", "*.md").split():
    page = pathlib.Path(name)
    text = page.read_text()
    if name != "CHANGELOG.md":
        bad += [f"{name}:{number}: longer than 120 characters" for number in too_long(page)]
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", text):
        if "://" in target or target.startswith("mailto:"):
            continue
        there = list(page.parent.glob(target.rstrip("/"))) if target else [page]
        if not there:
            bad.append(f"{name}: {target}")
        elif anchor and there[0].suffix == ".md" and anchor not in anchors(there[0]):
            bad.append(f"{name}: {target}#{anchor}")
    paths = re.findall(r"`((?:crates|docs|deploy|examples|interop|fuzz|\.ci)/[\w./*-]*)`", text)
    bad += [f"{name}: {path}" for path in paths if not list(pathlib.Path().glob(path.rstrip("/")))]
tests = re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+){4,})`", pathlib.Path("docs/threat-model.md").read_text())
there = output("git", "grep", "-hoE", "(fn|def) [a-z0-9_]+").split()
bad += [f"docs/threat-model.md: no test {test}" for test in sorted(set(tests) - set(there))]
print("\n".join(sorted(set(bad))) or "all links lead somewhere")
sys.exit(bool(bad))
