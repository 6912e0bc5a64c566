"""Every relative link, its anchor, every `path` and every `code::path` in backquotes of the Markdown files leads
somewhere; the names of the map and the tests of the threat model are there. No line of prose is longer than 120
characters. The changelog and the dated measurements may name code of their time.

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


# What a path of code begins with that is not ours.
FOREIGN = {"std", "core", "alloc", "tokio", "quinn", "quinn_proto", "rustls", "rustix", "libc", "parking_lot", "clippy"}
DEFINED = r"""(?x) \b(?:fn|struct|enum|trait|type|const|static|mod|macro_rules!)\s+(\w+)
    | ^\s+([A-Z]\w*)[,({]  # a variant
    | \bimpl\b.*?\b([A-Z]\w*)(?:<[^{]*>)?\s+(?:\{|where|$)"""
FIELD = r"^\s+(?:pub(?:\([^)]*\))?\s+)?([a-z]\w*):\s"


def places():
    """Of each Rust file: the crate, folders and module that it is, and the names and fields that are defined there."""
    found = {}
    for path in output("git", "ls-files", "crates/*.rs").split():
        crate, _, rest = path.removeprefix("crates/").partition("/")
        found[path] = ([crate, *rest.removesuffix(".rs").split("/")], set(), set())
    wanted = r"(fn|struct|enum|trait|type|const|static|mod|macro_rules!|impl)\b|^\s+(pub(\([^)]*\))?\s+)?\w+[:,({]"
    for line in output("git", "grep", "-E", wanted, "--", "crates/*.rs").splitlines():
        path, code = line.split("//")[0].split(":", 1)
        found[path][1].update(name for names in re.findall(DEFINED, code) for name in names if name)
        found[path][2].update(re.findall(FIELD, code))
    for parts, names, _ in found.values():
        parts[:] = [part for part in parts if part not in ("src", "lib", "main", "mod")]
        names.update(parts)
    return found.values()


def resolves(path, files):
    """Whether its modules are those of a file, one inside the other, from a crate on if it begins with one, and the
    rest, a type and what it has or a single name, is defined in that file."""
    segments = path.removeprefix("hoplite_").split("::")
    if segments[0] in FOREIGN:
        return True
    crates = {parts[0] for parts, *_ in files}
    for parts, names, fields in files:
        for at in range(1 if segments[0] in crates else len(parts)):
            there = 0
            while there < len(segments) and parts[at + there : at + there + 1] == [segments[there]]:
                there += 1
            rest = segments[there:]
            if len(rest) > 2 or not there and rest[0].islower():
                continue
            if names.issuperset(rest) or len(rest) == 2 and rest[0] in names and rest[1] in fields:
                return True
    return False


bad = []
files = list(places())
for name in output("git", "ls-files", "*.md").split():
    page = pathlib.Path(name)
    text = page.read_text()
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
    if name != "CHANGELOG.md" and page.parent.name != "measurements":
        code = re.findall(r"`((?:[A-Za-z_]\w*::)+[A-Za-z_]\w*)(?:\(.*?\))?`", text)
        bad += [f"{name}: no {path} in the code" for path in code if not resolves(path, files)]
single = re.findall(r"`([A-Z]\w*[a-z]\w*|[a-z]+(?:_[a-z]+)+)`", pathlib.Path("docs/architecture.md").read_text())
defined = set().union(*(names for _, names, _ in files))
bad += [f"docs/architecture.md: no {name} in the code" for name in single if name not in defined]
tests = re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+){4,})`", pathlib.Path("docs/threat-model.md").read_text())
there = output("git", "grep", "-hoE", "(fn|def) [a-z0-9_]+").split()
bad += [f"docs/threat-model.md: no test {test}" for test in sorted(set(tests) - set(there))]
print("\n".join(sorted(set(bad))) or "all links lead somewhere")
sys.exit(bool(bad))
