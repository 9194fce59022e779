"""Schemas of a RayCluster and a RayJob, as strict as ``kubectl apply`` is: a field that the CRD does not have is an
error.

``kuberay.json`` is made from the CRD of KubeRay 1.7.0 (https://github.com/ray-project/kuberay, commit
59d663aeec13760646da3db9c1cf8cfe883e30b7, Apache-2.0), and ``rayjob.json`` from that at commit
feeaf72facab4881ba2b179248bb67315634e229, without the cluster, which is the same, and the submitter's pod:

    python -m tests.deploy.kuberay ray-operator/config/crd/bases/ray.io_rayclusters.yaml > tests/deploy/kuberay.json
    python -m tests.deploy.kuberay ray-operator/config/crd/bases/ray.io_rayjobs.yaml > tests/deploy/rayjob.json
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

FILE = Path(__file__).with_suffix(".json")


@cache
def validator(kind: str) -> Draft202012Validator:
    """Validator of RayClusters or RayJobs."""
    schema = json.loads(FILE.read_text())
    if kind == "RayJob":
        cluster = schema["properties"]["spec"]
        schema = json.loads(FILE.with_name("rayjob.json").read_text())
        schema["properties"]["spec"]["properties"]["rayClusterSpec"] = cluster
    return Draft202012Validator(schema)


def converted(crd: dict[str, Any]) -> dict[str, Any]:
    """JSON schema of the newest version of a CRD, without descriptions and status."""
    newest = next(version for version in crd["spec"]["versions"] if version["storage"])
    schema: dict[str, Any] = strict(newest["schema"]["openAPIV3Schema"])
    del schema["properties"]["status"]
    for repeated in ("rayClusterSpec", "submitterPodTemplate"):
        schema["properties"]["spec"]["properties"].pop(repeated, None)
    constants = {"apiVersion": f"{crd['spec']['group']}/{newest['name']}", "kind": crd["spec"]["names"]["kind"]}
    schema["properties"].update({name: {"const": constant} for name, constant in constants.items()})
    schema["required"] = [*constants, "metadata", "spec"]
    return schema


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """A structural schema that refuses unknown fields, without what says nothing about validity."""
    kept = {name: rule for name, rule in schema.items() if name != "description" and not name.startswith("x-")}
    if "properties" in kept:
        kept["properties"] = {name: strict(field) for name, field in kept["properties"].items()}
        kept["additionalProperties"] = False
    for name in ("items", "additionalProperties"):
        if isinstance(kept.get(name), dict):
            kept[name] = strict(kept[name])
    return kept


if __name__ == "__main__":
    print(json.dumps(converted(yaml.safe_load(Path(sys.argv[1]).read_text())), separators=(",", ":")))
