"""The files of deploy/: they name what the server has, and the tools that read them take them."""

import json
import re
import shlex
import shutil
import subprocess
from importlib.metadata import metadata
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from edge_client.commands.service.command import understood
from edge_client.distribution import NAME
from server.app import create_app
from server.settings import Settings, read_settings
from tests.server.conftest import bundle_name, server, serving  # noqa: F401 -- fixtures

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
PROMETHEUS = {"up"}
"""What Prometheus makes itself."""
AWAITED: set[str] = set()
"""Named by the dashboard before the server has it; goes from here when it does."""


def checked_by(tool: str, *args: object) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    done = subprocess.run([tool, *map(str, args)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


# --- what Prometheus and Grafana ask for ---


@pytest.fixture
def exposed(server, bundle_name) -> dict[str, set[str]]:  # noqa: F811
    """Every name of a server that has seen a round and a refusal, with the labels that it comes with."""
    server.create_job(bundle_name, per_round=1)
    server.advance()
    device = server.device()
    task = device.task()
    device.call("PUT", f"/v1/tasks/{task['id']}/update", 422, content=b"no update")
    other = server.device()
    task = other.task()
    other.send(task, other.update(task))
    server.advance()
    families = text_string_to_metric_families(server.call("GET", "/metrics").text)
    found: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def named(expression: str) -> dict[str, set[str]]:
    """The metrics of a query, with the labels that it selects by."""
    found: dict[str, set[str]] = {}
    for name, selected in re.findall(r"\b(up|(?:spry|process)_\w+)\b(?:\{([^}]*)\})?", expression):
        found.setdefault(name, set()).update(re.findall(r"(\w+)\s*=", selected))
    return found


def queries() -> list[str]:
    board = json.loads((DEPLOY / "grafana" / "spry.json").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return found + [one["definition"] for one in board["templating"]["list"] if "definition" in one]


def alerts() -> list[str]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def test_every_metric_that_is_asked_for_exists(exposed):
    asked = {name for query in (*queries(), *alerts()) for name in named(query)}
    assert len(asked) > 10
    missing = asked - exposed.keys() - PROMETHEUS - AWAITED
    assert not missing, f"the server's /metrics has none of {sorted(missing)}"
    assert not AWAITED & exposed.keys(), f"take {sorted(AWAITED & exposed.keys())} off the list AWAITED"


def test_every_label_that_is_asked_for_exists(exposed):
    for query in (*queries(), *alerts()):
        for name, labels in named(query).items():
            known = exposed.get(name, labels) | {"job"}  # Prometheus gives this one to all that have none
            assert labels <= known, f"{query}: {name} has the labels {sorted(known)}"


def test_the_dashboard_can_be_imported():
    board = json.loads((DEPLOY / "grafana" / "spry.json").read_text())
    variables = {one["name"]: one["type"] for one in board["templating"]["list"]}
    assert variables["datasource"] == "datasource"
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(numbers) == len(set(numbers)) > 10
    assert "id" not in board  # Grafana gives it one
    for panel in board["panels"]:
        assert panel["description"].endswith(".")
        for source in (panel["datasource"], *(target["datasource"] for target in panel["targets"])):
            assert source == {"type": "prometheus", "uid": "${datasource}"}
    places = [tuple(panel["gridPos"][key] for key in "xywh") for panel in board["panels"]]
    cells = [(x + i, y + j) for x, y, w, h in places for i in range(w) for j in range(h)]
    assert len(cells) == len(set(cells)), "panels lie on one another"
    assert max(x for x, _ in cells) < 24


@pytest.mark.parametrize("name", ["prometheus.yml", "replicas.yml"])
def test_prometheus_takes_its_configuration(name):
    checked_by("promtool", "check", "config", DEPLOY / "prometheus" / name)


def test_of_several_servers_a_metric_is_kept_once(exposed):
    """Whatever the database holds is told by every server: sums over all of them would be too much."""
    one, each = yaml.safe_load((DEPLOY / "prometheus" / "replicas.yml").read_text())["scrape_configs"]
    assert one["honor_labels"] is True
    for name in exposed:
        kept = [re.fullmatch(job["metric_relabel_configs"][0]["regex"], name) is not None for job in (one, each)]
        assert sum(kept) <= 1
        assert kept[0] == name.startswith("spry_")


def test_alerts_say_what_to_do():
    configuration = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert configuration["rule_files"] == ["rules.yml"]
    (scraped,) = configuration["scrape_configs"]
    assert scraped["honor_labels"] is True
    groups = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in ("warning", "critical")


# --- containers ---


def instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest.strip()) for word, rest in (line.strip().split(" ", 1) for line in lines)]


def test_the_image_copies_what_is_there_and_what_is_not_left_out():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for word, rest in instructions():
        if word == "COPY" and not rest.startswith("--from"):
            for source in shlex.split(rest)[:-1]:
                assert (ROOT / source).exists()
                assert f"!{source}" in ignored


def test_the_image_runs_the_server_as_nobody_in_particular():
    found = instructions()
    (command,) = [json.loads(rest) for word, rest in found if word == "CMD"]
    assert command[:2] == ["spry", "serve"]
    wanted = understood("serve", command[2:])
    assert wanted.values["host"] == "0.0.0.0"
    assert dict(found)["USER"].isdecimal()
    assert dict(found)["VOLUME"] == "/data"
    variables = re.findall(r"SPRY_(\w+)=", dict(found)["ENV"])
    assert {name.lower() for name in variables} <= Settings.model_fields.keys()
    final = [word for word, _ in found][[word for word, _ in found].index("FROM", 1) :]
    assert "HEALTHCHECK" in final


def test_the_image_installs_extras_that_exist():
    extras = set(metadata(NAME).get_all("Provides-Extra") or [])
    (wanted,) = [re.search(r"'\.\[(.*)\]'", rest)[1] for word, rest in instructions() if "pip install" in rest]
    assert set(wanted.split(",")) <= extras


def test_the_containers_of_compose():
    found = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
    server_, database = found["services"]["server"], found["services"]["database"]
    assert "ports" not in database
    assert database["networks"] == ["private"]
    assert found["networks"]["private"]["internal"] is True
    assert server_["depends_on"]["database"]["condition"] == "service_healthy"
    assert (DEPLOY / "docker" / server_["build"]["context"]).resolve() == ROOT
    assert (ROOT / server_["build"]["dockerfile"]).is_file()
    secrets = {name.removeprefix("spry_") for name in server_["secrets"]}
    assert secrets <= Settings.model_fields.keys()
    assert {*server_["secrets"], *database["secrets"]} == found["secrets"].keys()
    named_ = {volume.split(":")[0] for one in (server_, database) for volume in one["volumes"]}
    assert named_ == found["volumes"].keys()
    assert all(port.startswith("127.0.0.1:") for port in server_["ports"])
    text = (ROOT / ".gitignore").read_text()
    assert "/deploy/docker/secrets/" in text


def test_the_containers_of_several_servers():
    found = yaml.safe_load((DEPLOY / "docker" / "replicas.yaml").read_text())
    services = found["services"]
    names = [name for name in services if name.startswith("server-")]
    assert len(names) == 3
    assert [name for name in services if "ports" in services[name]] == ["proxy"]
    assert all(port.startswith("127.0.0.1:") for port in services["proxy"]["ports"])
    assert services["database"]["networks"] == services["objects"]["networks"] == ["private"]
    assert found["networks"]["private"]["internal"] is True
    proxied = (DEPLOY / "docker" / "Caddyfile").read_text()
    assert re.search(r"reverse_proxy (.*) {", proxied)[1].split() == [f"{name}:8000" for name in names]
    assert "health_uri /readyz" in proxied
    homes = [services[name]["volumes"] for name in names]
    assert len({str(home) for home in homes}) == 3, "each has a data folder of its own"
    for name in names:
        settings = services[name]["environment"]
        read_settings(**{key.removeprefix("SPRY_").lower(): value for key, value in settings.items() if "SPRY" in key})
        assert settings["SPRY_BLOB_STORE"].split("/")[2] == Path(services["objects"]["volumes"][0].split(":")[1]).name
        assert settings["SPRY_TRUSTED_PROXIES"] == found["networks"]["public"]["ipam"]["config"][0]["subnet"]
        assert {one.removeprefix("spry_") for one in services[name]["secrets"]} <= Settings.model_fields.keys()
    used = {one for service in services.values() for one in service.get("secrets", ())}
    assert used == found["secrets"].keys()
    mounted = {volume.split(":")[0] for service in services.values() for volume in service.get("volumes", ())}
    assert mounted - {"./Caddyfile"} == found["volumes"].keys()


def test_the_dockerfile_has_no_fault_that_hadolint_knows():
    checked_by("hadolint", DEPLOY / "docker" / "Dockerfile")


# --- Kubernetes ---

CHART = DEPLOY / "helm" / "spry"


def rendered() -> dict[str, dict]:
    """The chart's objects by kind, of a release `fleet` with its own values; its templates use no more of Helm."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def value(path: str):
        found = values
        for name in path.split("."):
            found = found[name]
        return found

    def block(match: re.Match) -> str:
        lines = yaml.safe_dump(value(match[1])).splitlines()
        return "\n" + "\n".join(" " * int(match[2]) + line for line in lines)

    objects = {}
    for path in (CHART / "templates").iterdir():
        text = re.sub(r"\s*{{- toYaml \.Values\.([\w.]+) \| nindent (\d+) }}", block, path.read_text())
        text = re.sub(r"{{ \.Values\.([\w.]+) }}", lambda match: str(value(match[1])), text)
        text = text.replace("{{ .Release.Name }}", "fleet")
        assert "{{" not in text, path
        objects |= {one["kind"]: one for one in yaml.safe_load_all(text)}
    return objects


def test_the_chart_replaces_ready_servers_by_ready_ones():
    found = rendered()
    deployment = found["Deployment"]["spec"]
    assert deployment["replicas"] == 3
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    labels = deployment["template"]["metadata"]["labels"]
    for selector in (deployment["selector"]["matchLabels"], found["Service"]["spec"]["selector"],
                     found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]):  # fmt: skip
        assert selector == labels
    (container,) = deployment["template"]["spec"]["containers"]
    probes = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert probes == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    annotations = deployment["template"]["metadata"]["annotations"]
    asked = {*probes.values(), annotations["prometheus.io/path"]}
    assert asked <= create_app(Settings(background=False)).openapi()["paths"].keys()
    image = dict(instructions())
    assert deployment["template"]["spec"]["securityContext"]["runAsUser"] == int(image["USER"])
    assert str(container["ports"][0]["containerPort"]) == annotations["prometheus.io/port"] == image["EXPOSE"]
    assert image["VOLUME"] in [mount["mountPath"] for mount in container["volumeMounts"]]


def test_the_chart_holds_no_secret_and_settings_that_the_server_takes():
    found = rendered()
    assert "Secret" not in found
    settings = found["ConfigMap"]["data"]
    read_settings(**{key.removeprefix("SPRY_").lower(): value for key, value in settings.items() if "SPRY" in key})
    assert not {"SPRY_ADMIN_TOKEN", "SPRY_DATABASE_URL", "AWS_SECRET_ACCESS_KEY"} & settings.keys()
    pod = found["Deployment"]["spec"]["template"]["spec"]
    named_ = [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
    assert named_ == ["spry"]
    assert {"secretRef": {"name": "spry-bucket"}} in pod["containers"][0]["envFrom"]
    backend = found["Ingress"]["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert backend == {"name": found["Service"]["metadata"]["name"], "port": {"name": "http"}}
