"""The objects for Kubernetes, held against the schemas of Kubernetes and KubeRay, and against Ray, ScaMP and the image.

No cluster is needed; the chart needs helm, and the overlays kubectl.
"""

from __future__ import annotations

import copy
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import ValidationError
from ray.scripts import scripts as ray

import scamp
from api.routes.process import router
from tests.deploy.kuberay import validator
from tests.deploy.test_deploy_files import ROOT, ignored, only
from tests.deploy.test_units import SETTINGS

FOLDER = ROOT / "deploy/kubernetes"
DRAIN_SECONDS = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
OLDEST, NEWEST = "1.30", kubernetes_validate.latest_version()
OTHER_VALUES = """
checkpoints: {url: s3://bucket/scamp, secret: bucket-keys}
data: {storageClass: fast}
env: {SCAMP_POLICY: elastic}
workers:
  - {name: big, min: 0, max: 2, gpus: 8, resources: {limits: {cpu: 32, memory: 64Gi}}, nodeSelector: {gpu: h200}}
  - {name: none, min: 1, max: 3, virtualDevices: 4, resources: {limits: {cpu: 4, memory: 8Gi}}}
"""
SERVICE = ("Deployment/scamp", "Service/scamp", "Ingress/scamp", "PersistentVolumeClaim/scamp-data")
CLUSTER = (
    *("RayCluster/scamp", "PodDisruptionBudget/scamp-head"),
    *("NetworkPolicy/scamp", "NetworkPolicy/scamp-ray"),
)
ALL = (*SERVICE, *CLUSTER, "PersistentVolumeClaim/scamp-checkpoints")
SOURCES = {
    "base": ALL,
    "overlays/example": ALL,
    "overlays/cpu": ALL,
    "chart with other values": (*SERVICE, *CLUSTER),
    "submit.yaml": ("Job/study-",),
    "rayjob.yaml": ("RayJob/study-",),
}
CLUSTERS = [source for source, names in SOURCES.items() if "RayCluster/scamp" in names]


def output(*command: str, stdin: str = "") -> str:
    """What a command prints; without its program the test is skipped, but not on CI."""
    if shutil.which(command[0]) is None and "CI" not in os.environ:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, input=stdin, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def text_of(source: str) -> str:
    if source == "base":
        return (FOLDER / "base/scamp.yaml").read_text()
    if source.startswith("overlays/"):
        return output("kubectl", "kustomize", str(FOLDER / source))
    if source.startswith("chart"):
        return output("helm", "template", "scamp", str(FOLDER / "chart"), "--values=-", stdin=OTHER_VALUES)
    return (FOLDER / source).read_text()


def objects(source: str) -> dict[str, Any]:
    """Objects of a source by kind and name, such as ``Service/scamp``."""
    listed = list(yaml.safe_load_all(text_of(source)))
    by_name = {f"{each['kind']}/{each['metadata'].get('name', 'study-')}": each for each in listed}
    assert len(by_name) == len(listed)
    return by_name


def check(document: dict[str, Any]) -> None:
    """Raise ``ValidationError`` for an object that Kubernetes or KubeRay would refuse."""
    if document["kind"] in ("RayCluster", "RayJob"):
        validator(document["kind"]).validate(document)
    else:
        for version in (OLDEST, NEWEST):
            kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize(("source", "name"), [(source, name) for source, names in SOURCES.items() for name in names])
def test_an_object_is_valid(source: str, name: str) -> None:
    check(objects(source)[name])


@pytest.mark.parametrize("source", SOURCES)
def test_no_object_is_left_unchecked(source: str) -> None:
    assert sorted(objects(source)) == sorted(SOURCES[source])


def test_the_base_is_what_the_chart_renders() -> None:
    assert output("helm", "template", "scamp", str(FOLDER / "chart")) == text_of("base"), "see base/kustomization.yaml"


def test_helm_finds_nothing_wrong_in_the_chart() -> None:
    assert "0 chart(s) failed" in output("helm", "lint", "--strict", str(FOLDER / "chart"))


@pytest.mark.parametrize("path", ["spec.entrypont", "spec.rayClusterSpec.workers"])
def test_a_mistake_in_a_job_of_ray_is_found(path: str) -> None:
    document = copy.deepcopy(objects("rayjob.yaml")["RayJob/study-"])
    *parents, last = path.split(".")
    parent: Any = document
    for key in parents:
        parent = parent[key]
    parent[last] = "scamp"
    with pytest.raises(ValidationError, match=f"'{last}' was unexpected"):
        check(document)


def test_a_job_of_ray_runs_a_command_of_scamp() -> None:
    program, command, file = objects("rayjob.yaml")["RayJob/study-"]["spec"]["entrypoint"].split()
    assert (program, command) == ("scamp", "run") and file.startswith("/study/")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("imagee: scamp", "imagee"),
        ("env: {scamp_policy: elastic}", "scamp_policy"),
        ("env: {SCAMP_PORT: 5}", "SCAMP_PORT"),
        ("checkpoints: {url: bucket/scamp}", "url"),
        ("workers: [{name: none, min: 1, max: 3, resources: {limits: {memory: 8Gi}}}]", "gpus"),
        ("workers: [{name: big, min: 1, max: 3, gpus: 8, resources: {limits: {cpu: 8}}}]", "memory"),
        ("idleSeconds: 5 min", "idleSeconds"),
        ("graceSeconds: 10", "graceSeconds"),
    ],
)
def test_helm_refuses_values_with_a_mistake(values: str, words: str) -> None:
    with pytest.raises(AssertionError, match="values don't meet the specifications of the schema") as error:
        output("helm", "template", "scamp", str(FOLDER / "chart"), "--values=-", stdin=values)
    assert words in str(error.value)


def test_only_nodes_of_ray_and_the_service_reach_ray_and_others_only_the_api() -> None:
    policies = {name: each["spec"] for name, each in objects("base").items() if each["kind"] == "NetworkPolicy"}
    ray, service = policies["NetworkPolicy/scamp-ray"], policies["NetworkPolicy/scamp"]
    pod = objects("base")["Deployment/scamp"]["spec"]["template"]["metadata"]["labels"]
    nodes = [{"podSelector": {"matchLabels": labels}} for labels in ({"ray.io/cluster": "scamp"}, pod)]
    assert ray["podSelector"] == nodes[0]["podSelector"] and ray["ingress"] == [{"from": nodes}]
    assert service["podSelector"] == nodes[1]["podSelector"]
    assert service["ingress"] == [{"from": nodes}, {"ports": [{"port": "http"}]}]


POD = "spec.template.spec"
WORKERS = "spec.workerGroupSpecs.0"


@pytest.mark.parametrize(
    ("name", "path", "wrong", "words"),
    [
        ("Deployment/scamp", f"{POD}.containers.0.readinesProbe", {}, "readinesProbe"),
        ("Deployment/scamp", "spec.selector", None, "'selector' is a required property"),
        ("Deployment/scamp", "spec.replicas", "one", "'one' is not of type 'integer'"),
        ("Service/scamp", "spec.port", 80, "'port' was unexpected"),
        ("Ingress/scamp", "spec.rules.0.http.paths.0.pathType", None, "'pathType' is a required property"),
        ("PersistentVolumeClaim/scamp-data", "spec.accessModes", "ReadWriteOnce", "is not of type 'array'"),
        ("PodDisruptionBudget/scamp-head", "spec.minAvailable", [1], "is not valid under any"),
        ("RayCluster/scamp", "spec.autoscaling", True, "'autoscaling' was unexpected"),
        ("RayCluster/scamp", f"{WORKERS}.template.spec.container", [], "'container' was unexpected"),
        ("RayCluster/scamp", f"{WORKERS}.groupName", None, "'groupName' is a required property"),
        ("RayCluster/scamp", "spec.headGroupSpec", None, "'headGroupSpec' is a required property"),
        ("RayCluster/scamp", f"{WORKERS}.maxReplicas", "four", "'four' is not of type 'integer'"),
        ("RayCluster/scamp", "spec.headGroupSpec.rayStartParams.num-cpus", 0, "0 is not of type 'string'"),
        ("RayCluster/scamp", "apiVersion", "ray.io/v1alpha1", "'ray.io/v1' was expected"),
    ],
)
def test_a_mistake_is_found(name: str, path: str, wrong: Any, words: str) -> None:
    document = copy.deepcopy(objects("base")[name])
    *parents, last = path.split(".")
    parent: Any = document
    for key in parents:
        parent = parent[int(key) if key.isdigit() else key]
    parent[last] = wrong
    if wrong is None:
        del parent[last]
    with pytest.raises(ValidationError, match=re.escape(words)):
        check(document)


def test_an_unknown_field_of_a_kustomization_and_a_mistake_in_a_template_are_found(tmp_path: Any) -> None:
    shutil.copytree(FOLDER, tmp_path / "copy")
    for file, mistake in (
        ("overlays/cpu/kustomization.yaml", "patchs: []\n"),
        ("chart/templates/volumes.yaml", "{{ }"),
    ):
        with (tmp_path / "copy" / file).open("a") as opened:
            opened.write(mistake)
    with pytest.raises(AssertionError, match="patchs"):
        output("kubectl", "kustomize", str(tmp_path / "copy/overlays/cpu"))
    with pytest.raises(AssertionError, match=r"volumes\.yaml"):
        output("helm", "template", "scamp", str(tmp_path / "copy/chart"))


def ray_cluster(source: str) -> dict[str, Any]:
    spec: dict[str, Any] = objects(source)["RayCluster/scamp"]["spec"]
    return spec


def pods(source: str) -> Iterator[dict[str, Any]]:
    """Specs of all pods."""
    for document in objects(source).values():
        if document["kind"] in ("Deployment", "Job"):
            yield document["spec"]["template"]["spec"]
        elif document["kind"] in ("RayCluster", "RayJob"):
            spec = document["spec"].get("rayClusterSpec", document["spec"])
            groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
            yield from (group["template"]["spec"] for group in groups)


@pytest.mark.parametrize("source", SOURCES)
def test_every_pod_is_an_ordinary_user_with_limits_and_a_root_that_it_cannot_write(source: str) -> None:
    for pod in pods(source):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == int(only("USER").partition(":")[0])
        assert pod["enableServiceLinks"] is False, "a Service named scamp would set SCAMP_PORT to a URL"
        for container in pod["containers"]:
            limits = container["securityContext"]
            assert limits["readOnlyRootFilesystem"] and not limits["allowPrivilegeEscalation"]
            assert limits["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]
            mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            assert mounts["tmp"] == "/tmp"
            assert set(mounts) == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("source", CLUSTERS)
def test_every_claim_of_a_pod_is_there(source: str) -> None:
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for pod in pods(source)
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert {f"PersistentVolumeClaim/{claim}" for claim in claims} == {
        name for name in objects(source) if name.startswith("PersistentVolumeClaim/")
    }


@pytest.mark.parametrize("source", CLUSTERS)
def test_rays_autoscaler_reads_the_cluster_and_the_service_asks_for_no_more_devices(source: str) -> None:
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    document = objects(source)["RayCluster/scamp"]
    document["metadata"]["namespace"] = "here"
    types = _derive_autoscaling_config_from_ray_cr(document)["available_node_types"]
    head = types.pop("headgroup")["resources"]
    assert head["CPU"] == 0 and not {"GPU", "virtual_device"} & set(head), "nothing trains on the head"
    most = 0
    for each in types.values():
        (devices,) = (each["resources"][name] for name in ("GPU", "virtual_device") if name in each["resources"])
        most += each["max_workers"] * devices
    assert int(variables(source)["SCAMP_AUTOSCALE_DEVICES"]) == most > 0


def service_container(source: str) -> dict[str, Any]:
    (container,) = objects(source)["Deployment/scamp"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def variables(source: str) -> dict[str, Any]:
    return {each["name"]: each.get("value") for each in service_container(source)["env"]}


@pytest.mark.parametrize("source", CLUSTERS)
def test_the_service_has_its_settings_and_no_secret_is_in_a_file(source: str) -> None:
    names = {name for name in variables(source) if name.startswith("SCAMP_")}
    assert names <= SETTINGS - {pair.partition("=")[0] for pair in only("ENV").split()}
    assert not names & {"SCAMP_API_TOKEN", "SCAMP_DATABASE_URL"}, "they are in the Secret"
    assert service_container(source)["envFrom"][0] == {"secretRef": {"name": "scamp-settings"}}
    nodes = [group["template"]["spec"]["containers"][0] for group in ray_cluster(source)["workerGroupSpecs"]]
    for node in nodes:
        assert {"secretRef": {"name": "scamp-settings"}} not in node.get("envFrom", []), "users' code runs here"
        (folder,) = (each["value"] for each in node["env"] if each["name"] == "SCAMP_CHECKPOINT_DIR")
        assert folder == variables(source)["SCAMP_CHECKPOINT_DIR"], "one place for all"
    token = next(each for each in service_container(source)["env"] if each["name"] == "RAY_AUTH_TOKEN")
    assert token["valueFrom"]["secretKeyRef"] == {"name": "scamp", "key": "auth_token"}, "as the operator names it"
    assert ray_cluster(source)["authOptions"] == {"mode": "token"}
    assert variables(source)["SCAMP_RAY_ADDRESS"] == "scamp-head-svc:6379"


def test_other_values_reach_the_objects() -> None:
    source = "chart with other values"
    assert variables(source)["SCAMP_POLICY"] == "elastic"
    assert objects(source)["PersistentVolumeClaim/scamp-data"]["spec"]["storageClassName"] == "fast"
    containers = [service_container(source)]
    containers += [group["template"]["spec"]["containers"][0] for group in ray_cluster(source)["workerGroupSpecs"]]
    for container in containers:
        assert {"secretRef": {"name": "bucket-keys"}} in container["envFrom"]
        assert {"name": "SCAMP_CHECKPOINT_DIR", "value": "s3://bucket/scamp"} in container["env"]


@pytest.mark.parametrize("source", CLUSTERS)
def test_requests_reach_the_service_which_says_how_it_is(source: str) -> None:
    container, documents = service_container(source), objects(source)
    assert container["ports"] == [{"name": "http", "containerPort": int(only("EXPOSE"))}]
    routes = {route.path for route in router.routes}  # type: ignore[attr-defined]
    probes = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert all(probe["port"] == "http" and probe["path"] in routes for probe in probes.values())
    assert probes["readinessProbe"]["path"] == "/readyz"
    service = documents["Service/scamp"]["spec"]
    labels = documents["Deployment/scamp"]["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items() and service["ports"][0]["targetPort"] == "http"
    ingress = documents["Ingress/scamp"]["spec"]
    (rule,), (tls,) = ingress["rules"], ingress["tls"]
    assert tls["hosts"] == [rule["host"]]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert backend == {"name": "scamp", "port": {"name": service["ports"][0]["name"]}}


def test_the_pod_of_the_service_runs_programs_of_the_image_with_options_that_they_have() -> None:
    container = service_container("base")
    script = container["args"][0]
    assert subprocess.run(["bash", "-n", "-c", script]).returncode == 0
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    assert container["command"][0] in dockerfile, "tini"
    for program in ("ray", "scamp"):
        assert f"/{program} /usr/local/bin/{program}" in dockerfile, "on the PATH of every shell"
    for option in re.findall(r"--[a-z-]+", script):
        assert option in options_of(ray.start), option


@pytest.mark.parametrize("source", [*CLUSTERS, "rayjob.yaml"])
def test_a_pod_that_trains_drains_its_node_before_it_ends(source: str) -> None:
    (spec,) = (each["spec"] for each in objects(source).values() if each["kind"] in ("RayCluster", "RayJob"))
    for group in spec.get("rayClusterSpec", spec)["workerGroupSpecs"]:
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        (command,) = container["lifecycle"]["preStop"]["exec"]["command"]
        path = Path(command).relative_to(only("WORKDIR"))
        assert not ignored(str(path)) and os.access(ROOT / path, os.X_OK), "the image has it"
        assert subprocess.run(["bash", "-n", ROOT / path]).returncode == 0
        drains = next((each["value"] for each in container["env"] if each["name"] == DRAIN_SECONDS), "30")
        assert int(drains) <= pod["terminationGracePeriodSeconds"] - 15, "it ends in order, and is not killed"
        assert source not in CLUSTERS or variables(source)["SCAMP_KEEP_SECONDS"] == drains


def options_of(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


def test_versions_are_those_of_this_checkout() -> None:
    (version,) = re.findall(r"(?m)^ray==(.*)$", (ROOT / "constraints.txt").read_text())
    assert {ray_cluster(source)["rayVersion"] for source in CLUSTERS} == {version}
    chart = yaml.safe_load((FOLDER / "chart/Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == scamp.__version__
    tags = {container["image"].rpartition(":")[2] for source in SOURCES for pod in pods(source)
            for container in pod["containers"]}  # fmt: skip
    assert tags == {scamp.__version__}
