"""Checks rendered manifests: Kubernetes' own kinds against its schemas, strictly, the fields of custom resources, and what an API server
refuses beyond its schemas: keys and names that are there twice, labels, selectors, volumes, and pods that are not "restricted".

check.py <file>...: prints what is wrong, and ends with 1 if anything is.
"""

import json
import re
import sys

import kubernetes_validate
import yaml

VERSIONS = ["1.29", "1.33", "1.37"]

# The fields that the chart may use of kinds unknown to Kubernetes, from the definitions of
# Prometheus Operator 0.85, KEDA 2.17 and Gateway API 1.3. A dict lists fields, a list is a list of
# such things, a type is a value.
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

# Kinds that only `extraObjects` of the tested values have. The chart does not know their fields.
FOREIGN = {
    "BackendConfig",
    "Certificate",
    "Cluster",
    "ExternalSecret",
    "SecretProviderClass",
}

LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Refuses a key that is there twice, as `kubectl` and Helm do."""


def strict_mapping(loader, node, deep=False):
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    twice = {str(key) for key in keys if keys.count(key) > 1}
    if twice:
        raise yaml.YAMLError(f"{node.start_mark}: twice: {', '.join(sorted(twice))}")
    return yaml.SafeLoader.construct_mapping(loader, node, deep)


StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, strict_mapping)


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


def by_schema(resource):
    kind = f"{resource['apiVersion']} {resource['kind']}"
    if kind in CUSTOM:
        return differences(resource["spec"], CUSTOM[kind], "spec")
    if resource["kind"] in FOREIGN:
        return []
    found = []
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(resource, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(f"Kubernetes {version}: {'.'.join(map(str, error.path))}: {error.message}")
        except kubernetes_validate.SchemaNotFoundError:
            found.append(f"Kubernetes {version} does not know {kind}")
    return found


def metadata(meta):
    found = [] if NAME.fullmatch(meta.get("name", "x")) else [f"no name: {meta['name']}"]
    for key, value in meta.get("labels", {}).items():
        if not LABEL_KEY.fullmatch(key) or not LABEL_VALUE.fullmatch(value):
            found.append(f"no label: {key}: {value!r}")
    for key in meta.get("annotations", {}):
        if not LABEL_KEY.fullmatch(key):
            found.append(f"no annotation: {key}")
    return found


def pod(spec):
    """What is wrong with a pod, its volumes first, and then by the profile "restricted" of Pod Security."""
    found = []
    containers = spec["containers"] + spec.get("initContainers", [])
    volumes = [volume["name"] for volume in spec.get("volumes", [])]
    for kind, names in (("container", [container["name"] for container in containers]), ("volume", volumes)):
        found += [f"two of {kind} {name}" for name in set(names) if names.count(name) > 1]
    for volume in spec.get("volumes", []):
        if "hostPath" in volume:
            found.append(f"volume {volume['name']} is of the host")
    pod_wide = spec.get("securityContext", {})
    for container in containers:
        name, own = container["name"], container.get("securityContext", {})
        paths = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
        found += [f"{name}: two mounts at {path}" for path in set(paths) if paths.count(path) > 1]
        found += [f"{name}: no volume {m['name']}" for m in container.get("volumeMounts", []) if m["name"] not in volumes]
        wanted = {
            "runAsNonRoot": own.get("runAsNonRoot", pod_wide.get("runAsNonRoot")) is True,
            "seccompProfile": own.get("seccompProfile", pod_wide.get("seccompProfile", {})).get("type") == "RuntimeDefault",
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "capabilities": own.get("capabilities", {}).get("drop") == ["ALL"],
            "runAsUser": own.get("runAsUser", pod_wide.get("runAsUser")) != 0,
        }
        found += [f"{name}: not restricted: {field}" for field, holds in wanted.items() if not holds]
    return found


def by_rules(resource):
    spec = resource.get("spec", {})
    found = metadata(resource["metadata"])
    template = spec.get("template", {}) if resource["kind"] in ("Deployment", "Job") else {}
    if template:
        found += metadata(template["metadata"]) + pod(template["spec"])
    if resource["kind"] == "Deployment":
        labels = template["metadata"]["labels"].items()
        if not spec["selector"]["matchLabels"].items() <= labels:
            found.append("its selector does not find its pods")
    if resource["kind"] == "Pod":
        found += pod(spec)
    return found


def accounts(resources):
    """Accounts of pods that are made too late, or not at all. A set of values that makes none has its own."""
    made = {r["metadata"]["name"]: r for r in resources if r["kind"] == "ServiceAccount"}
    hooks = lambda r: r["metadata"].get("annotations", {}).get("helm.sh/hook", "")
    for resource in resources if made else []:
        spec = resource["spec"]["template"]["spec"] if resource["kind"] in ("Deployment", "Job") else resource.get("spec", {})
        name = spec.get("serviceAccountName")
        if name and name not in made:
            yield resource, f"its account {name} is not made"
        elif name and resource["kind"] == "Job" and hooks(made[name]) != hooks(resource):
            yield resource, f"its account {name} is made after it"


def main(files):
    checked, wrong = 0, []
    seen = {}
    for file in files:
        with open(file, encoding="utf-8") as stream:
            resources = list(filter(None, yaml.load_all(stream, StrictLoader)))
        checked += len(resources)
        found = list(accounts(resources))
        ids = [(r["apiVersion"], r["kind"], r["metadata"]["name"]) for r in resources]
        found += [(r, "it is there twice") for r, i in zip(resources, ids) if ids.count(i) > 1]
        for resource in resources:
            # Most sets of values share most objects.
            text = json.dumps(resource, sort_keys=True)
            if text not in seen:
                seen[text] = by_schema(resource) + by_rules(resource)
            found += [(resource, problem) for problem in seen[text]]
        wrong += [f"{file}: {r['kind']} {r['metadata']['name']}: {problem}" for r, problem in found]
    print("\n".join(wrong + [f"{checked} resources in {len(files)} files, {len(wrong)} problems"]))
    return 1 if wrong or not checked else 0


sys.exit(main(sys.argv[1:]))
