"""The manifests of deploy/kubernetes: right by the schema of the API, of one mind with each other, and a relay takes the file that they mount. What they
and Nomad's job scale by is what a relay counts."""

import base64
import pathlib
import re
import secrets
import socket
import ssl
import subprocess
import tempfile
import urllib.request

import kubernetes_validate
import yaml

from common import HERE, HOPLITE, Authority, Checks, Lab, free_port, wait_for

MANIFESTS = HERE.parent / "deploy" / "kubernetes"
NOMAD = HERE.parent / "deploy" / "nomad" / "relay.nomad.hcl"


def documents(name):
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def problem(manifest):
    """What the schema has against it; no key that the API does not know."""
    try:
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    except Exception as error:  # Its kinds are not all public.
        return f"{manifest['kind']}: {error}"
    return None


def check_file(place, private=False):
    """The relay's file with what the secrets hold beside it; its paths are those of the container. With private tokens what is commented is said."""
    for name in ("identity", "secrets"):
        (place / name).mkdir()
    (place / "secrets" / "fleet.key").write_text(secrets.token_hex(16))
    (place / "secrets" / "users.token").write_text(base64.b64encode(secrets.token_bytes(24)).decode())
    text = (MANIFESTS / "relay.toml").read_text()
    if private:
        (place / "secrets" / "spent-store.url").write_text("postgres://hoplite:secret@store.example.org/hoplite?sslmode=require\n")
        (place / "secrets" / "spent-store-ca.pem").write_bytes(Authority(place / "tls").ca.read_bytes())
        (place / "secrets" / "issuer-keys.json").write_text('{"issuer-request-uri": "/token-request", "token-keys": []}')
        text = re.sub(r"^# (\[auth|\w+ = )", r"\1", text, flags=re.MULTILINE)
    for file in (place / "secrets").iterdir():
        file.chmod(0o440)  # as `defaultMode` of the volume has it
    (place / "relay.toml").write_text(text.replace("/etc/hoplite/", f"{place}/"))
    return subprocess.run([HOPLITE, "check", "--config", place / "relay.toml"], capture_output=True, text=True)


def scaled_by(autoscaler):
    """The metrics that the number of relays depends on: by the autoscaler's manifest, and in the queries of Nomad's job."""
    pods = [metric["pods"]["metric"]["name"] for metric in autoscaler["metrics"] if metric["type"] == "Pods"]
    queries = " ".join(re.findall(r'^\s*query\s*=\s*"(.*)"$', NOMAD.read_text(), re.MULTILINE))
    # Functions stand before a parenthesis; labels have no underscore there.
    return pods, set(re.findall(r"\b[a-z]\w*_\w+\b(?!\s*\()", queries))


def exported(port):
    """What Prometheus reads of a relay: each metric's type, and its value with all labels summed away, as an adapter gives it for a pod."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    values = dict.fromkeys(types, 0.0)
    for name, value in re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", text, re.MULTILINE):
        values[name] = values.get(name, 0.0) + float(value)
    return types, values


def connected(lab, relay):
    """A TLS connection to a relay, over which nothing is asked."""
    context = ssl.create_default_context(cafile=str(lab.authority.ca))
    context.set_alpn_protocols(["http/1.1"])
    return context.wrap_socket(socket.create_connection(("127.0.0.1", relay.port), 30), server_hostname="localhost")


def check_metrics(checks, autoscaler):
    pods, nomad = scaled_by(autoscaler)
    with Lab() as lab:
        port = free_port()
        relay = lab.relay("relay", extra=f'\n[metrics]\nlisten = "127.0.0.1:{port}"\n')
        types, before = exported(port)
        for names, where in ((pods, "the autoscaler"), (nomad, "Nomad's job")):
            unknown = [name for name in names if name not in types]
            checks.check(f"{where} scales by what a relay counts", names and not unknown, unknown or "no metric")

        def follow(names):
            # A counter is none of them: an adapter offers it as a rate, under another name.
            return all(types.get(name) == "gauge" and exported(port)[1][name] == before[name] + 2 for name in names)
        with connected(lab, relay), connected(lab, relay):
            for names, where in ((pods, "the autoscaler"), (nomad, "Nomad's job")):
                checks.attempt(f"{where} scales by the connections that are open", lambda: wait_for("two more", lambda: follow(names)))


def main():
    checks = Checks("manifests of a fleet")
    kustomization = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())
    everything = [document for name in kustomization["resources"] for document in documents(name)]
    wrong = [text for text in map(problem, everything) if text]
    checks.check("every manifest is right by the API's schema", not wrong and len(everything) == 7, wrong)
    misspelt = {**everything[1], "spec": {**everything[1]["spec"], "replicsa": 1}}
    checks.check("a key that the API does not know is found", problem(misspelt) is not None)
    named = {(document["kind"], document["metadata"]["name"]): document for document in everything}
    relay = named["StatefulSet", "relay"]["spec"]
    pod = relay["template"]["spec"]
    container = pod["containers"][0]
    labels = relay["template"]["metadata"]["labels"]
    selectors = [relay["selector"]["matchLabels"], named["Service", "relay"]["spec"]["selector"],
                 named["Service", "relay-pods"]["spec"]["selector"],
                 named["PodDisruptionBudget", "relay"]["spec"]["selector"]["matchLabels"],
                 named["NetworkPolicy", "relay"]["spec"]["podSelector"]["matchLabels"]]
    checks.check("all selectors mean the relays", all(selector == labels for selector in selectors), selectors)
    checks.check("the relays have the names of their service", ("Service", relay["serviceName"]) in named)
    checks.check("the autoscaler alone says how many there are",
                 "replicas" not in relay and named["HorizontalPodAutoscaler", "relay"]["spec"]["scaleTargetRef"]["name"] == "relay")
    check_metrics(checks, named["HorizontalPodAutoscaler", "relay"]["spec"])
    sleep = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    checks.check("a pod has time for its 30 s of drain", pod["terminationGracePeriodSeconds"] > sleep + 30)
    probes = [container[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")]
    checks.check("it is asked what it answers", probes == ["/ready", "/live"], probes)
    volumes = {volume["name"] for volume in pod["volumes"]}
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    checks.check("what is mounted is there", volumes == mounts, volumes ^ mounts)
    for private, what in ((False, "the file that is mounted"), (True, "it with private tokens and a store that the fleet shares")):
        with tempfile.TemporaryDirectory() as place:
            ended = check_file(pathlib.Path(place), private)
        checks.check(f"the relay takes {what}", ended.returncode == 0, ended.stderr)
    checks.done()


if __name__ == "__main__":
    main()
