"""deploy/monitoring as an operator uses it: Prometheus reads a relay with its file, each query of the dashboard and of the rules is of what relays tell,
and an alert goes off when the relay is gone. When each of the others does is shown in virtual time, by promtool.

Needs Prometheus (`prometheus`, `promtool`). Grafana is not run: the dashboard's queries are asked as it asks them.
"""

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request

from client_test import fetch, udp_echo
from common import HERE, Checks, Lab, Missing, free_port, wait_for

DEPLOY = HERE.parent / "deploy" / "monitoring"
METRICS = HERE.parent / "crates" / "relay" / "src" / "metrics.rs"
# A series of these is there from the first time on that it happens.
SELDOM = {"limit_refusals", "token_refusals", "spent_store_failures"}


def queries(dashboard):
    """(panel, query) of each, as Grafana asks them where all jobs and relays are chosen."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$job", ".*").replace("$instance", ".*").replace("$__rate_interval", "30s")


def names(text):
    """The relay's metrics in a query, as the relay registers them."""
    return {re.sub("_(total|bucket|sum|count)$", "", name) for name in re.findall(r"\bhoplite_relay_(\w+)", text)}


def promtool(*arguments):
    done = subprocess.run(["promtool", *arguments], cwd=DEPLOY, capture_output=True, text=True, timeout=120)
    return done.returncode == 0, (done.stdout + done.stderr)[-1500:]


def rules_alone(checks, folder):
    checks.check("the rules are right", *promtool("check", "rules", "hoplite.rules.yml"))
    checks.check("Prometheus's file is right", *promtool("check", "config", "prometheus.yml"))
    checks.check("each alert fires when it should, and not otherwise", *promtool("test", "rules", "hoplite.rules.test.yml"))
    rules, tests = (DEPLOY / "hoplite.rules.yml").read_text(), (DEPLOY / "hoplite.rules.test.yml").read_text()
    alerts = re.findall(r"- alert: (\w+)", rules)
    untried = [name for name in alerts if name not in tests]
    checks.check("every alert is tried", alerts and not untried, untried)
    # What finds a fault is tried as well: rules whose bounds are off by far.
    wrong = folder / "wrong"
    shutil.copytree(DEPLOY, wrong)
    for name, text in (("a bound", rules.replace("> 20", "> 2000000")), ("a time", rules.replace("for: 2m", "for: 2h"))):
        (wrong / "hoplite.rules.yml").write_text(text)
        found = subprocess.run(["promtool", "test", "rules", wrong / "hoplite.rules.test.yml"], capture_output=True, timeout=120).returncode
        checks.check(f"{name} that is changed is found", found != 0 and text != rules)


class Prometheus:
    """With the file of deploy/, which asks oftener here."""

    def __init__(self, lab, metrics):
        place = lab.folder / "prometheus"
        shutil.copytree(DEPLOY, place)
        text = (place / "prometheus.yml").read_text()
        self.port = free_port()
        text = text.replace("127.0.0.1:9090", f"127.0.0.1:{metrics}").replace(" 15s", " 1s")
        (place / "prometheus.yml").write_text(text)
        self.process = lab.run("prometheus", ["prometheus", f"--config.file={place / 'prometheus.yml'}", f"--storage.tsdb.path={place / 'data'}",
                                              f"--web.listen-address=127.0.0.1:{self.port}"])
        wait_for("Prometheus", lambda: self.process.alive() and self.get("/-/ready") is not None, 60)

    def get(self, path, **words):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}?{urllib.parse.urlencode(words)}", timeout=20) as answer:
                return answer.read().decode()
        except OSError:
            return None

    def ask(self, query):
        """The series of an answer; None where the query is wrong."""
        answer = self.get("/api/v1/query", query=query)
        return json.loads(answer)["data"]["result"] if answer else None

    def alerts(self):
        return {alert["labels"]["alertname"]: alert["state"] for alert in json.loads(self.get("/api/v1/alerts") or "{}").get("data", {}).get("alerts", ())}


def check_names(checks, port, asked):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        counted = names(" ".join(re.findall(r"^# TYPE (\w+)", answer.read().decode(), re.MULTILINE)))
    registered = counted | (SELDOM & set(re.findall(r'"(\w+)"', METRICS.read_text())))
    for what, text in (("the dashboard", " ".join(query for _, query in asked)), ("the rules", (DEPLOY / "hoplite.rules.yml").read_text())):
        checks.check(f"{what} names what relays count", names(text) and names(text) <= registered, names(text) - registered)


def main():
    checks = Checks("monitoring")
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    asked = list(queries(dashboard))
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    checks.check("no panel covers another", len(set(places)) == len(places) and all(x + w <= 24 for x, _, w, _ in places), places)
    if missing := [name for name in ("prometheus", "promtool") if not shutil.which(name)]:
        checks.skip("Prometheus", Missing(f"{' and '.join(missing)} not installed"))
        checks.done()
    with Lab() as lab:
        rules_alone(checks, lab.folder)
        targets, metrics = lab.targets(), free_port()
        extra = f'\n[metrics]\nlisten = "127.0.0.1:{metrics}"\n\n[onion]\nenabled = true\nopen = true\n'
        relay = lab.relay("relay", dns=f"127.0.0.1:{targets.ports['dns']}", extra=extra)
        prometheus = Prometheus(lab, metrics)
        client = lab.client([relay])

        def busy():
            """With traffic as long as it is waited for."""
            fetched = fetch(client, "target.test", targets.ports["http"], 100_000)
            echoed = udp_echo(client, "target.test", targets.ports["echo"])
            quiet = [(title, query) for title, query in asked if not (names(query) & SELDOM) and not prometheus.ask(query)]
            return fetched is True and echoed is None and not quiet
        try:
            wait_for("an answer to every query", busy, 90)
        except TimeoutError:
            pass
        wrong = [(title, query) for title, query in asked if prometheus.ask(query) is None]
        check_names(checks, metrics, asked)
        checks.check("Prometheus understands each query of the dashboard", asked and not wrong, wrong)
        quiet = [(title, query) for title, query in asked if not (names(query) & SELDOM) and not prometheus.ask(query)]
        checks.check("each has something to show while a relay carries traffic", not quiet, quiet)
        checks.attempt("what is recorded is there", lambda: wait_for("it", lambda: prometheus.ask("hoplite:payload_bytes:rate5m > 0"), 60) and None)
        checks.check("no alert while all is well", prometheus.alerts() == {}, prometheus.alerts())
        relay.stop()
        checks.attempt("an alert waits as soon as the relay is gone", lambda: wait_for("it", lambda: "HopliteRelayDown" in prometheus.alerts(), 60) and None)
    checks.done()


if __name__ == "__main__":
    main()
