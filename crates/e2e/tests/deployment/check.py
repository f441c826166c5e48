"""Checks rendered manifests: Kubernetes' own kinds against its schemas, strictly, and the fields of custom resources.

check.py <file>...: prints what is wrong, and ends with 1 if anything is.
"""

import sys

import kubernetes_validate
import yaml

VERSIONS = ["1.29", "1.33", "1.37"]

# The fields that the chart may use of kinds that Kubernetes does not know, from the definitions of Prometheus Operator 0.85, KEDA 2.17 and
# Gateway API 1.3: a dict lists fields, a list is one of such things, a type is a value.
ANY = object
LABELS = {"*": str}
CUSTOM = {
    "monitoring.coreos.com/v1 PodMonitor": {
        "selector": {
            "matchLabels": LABELS,
            "matchExpressions": [{"key": str, "operator": str, "values": [str]}],
        },
        "podMetricsEndpoints": [{"port": str, "path": str, "interval": str}],
    },
    "monitoring.coreos.com/v1 PrometheusRule": {
        "groups": [
            {
                "name": str,
                "rules": [{"alert": str, "record": str, "expr": str, "for": str, "labels": LABELS, "annotations": LABELS}],
            }
        ]
    },
    "keda.sh/v1alpha1 ScaledObject": {
        "scaleTargetRef": {"name": str},
        "minReplicaCount": int,
        "maxReplicaCount": int,
        "cooldownPeriod": int,
        "triggers": [{"type": str, "metricType": str, "metadata": LABELS}],
    },
    "gateway.networking.k8s.io/v1 HTTPRoute": {
        "parentRefs": [{"name": str, "namespace": str, "sectionName": str}],
        "hostnames": [str],
        "rules": [
            {
                "matches": [{"path": {"type": str, "value": str}}],
                "timeouts": {"request": str},
                "backendRefs": [{"name": str, "port": int}],
            }
        ],
    },
}


def differences(value, shape, path):
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return [f"{path}: not an object"]
        found = []
        for key, inner in value.items():
            allowed = shape.get(key, shape.get("*"))
            found += differences(inner, allowed, f"{path}.{key}") if allowed else [f"{path}.{key}: no such field"]
        return found
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f"{path}: not a list"]
        return [d for n, inner in enumerate(value) for d in differences(inner, shape[0], f"{path}[{n}]")]
    return [] if isinstance(value, shape) else [f"{path}: {value!r} is not {shape.__name__}"]


def problems(resource):
    kind = f"{resource['apiVersion']} {resource['kind']}"
    if kind in CUSTOM:
        return differences(resource["spec"], CUSTOM[kind], "spec")
    found = []
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(resource, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(f"Kubernetes {version}: {'.'.join(map(str, error.path))}: {error.message}")
        except kubernetes_validate.SchemaNotFoundError:
            found.append(f"Kubernetes {version} does not know {kind}")
    return found


def main(files):
    checked, wrong = 0, 0
    for file in files:
        with open(file, encoding="utf-8") as stream:
            for resource in filter(None, yaml.safe_load_all(stream)):
                checked += 1
                for problem in problems(resource):
                    wrong += 1
                    print(f"{file}: {resource['kind']} {resource['metadata']['name']}: {problem}")
    print(f"{checked} resources, {wrong} problems")
    return 1 if wrong or not checked else 0


sys.exit(main(sys.argv[1:]))
