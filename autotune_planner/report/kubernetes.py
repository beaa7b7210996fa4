"""Kubernetes objects around a bundle: a Job that tunes and packs, a pod template whose init container installs.

The Job runs without network, unprivileged and as no root. Exit code 6 (finished in part, the rest is published) counts
as success; what cannot get better by trying again (2, 3, 4) fails the Job at once.
"""

from __future__ import annotations

import shlex
from typing import Any

import yaml

_USER = 1000
_VOLUME = "autotune-bundle"  # a claim that the Job and the servers share
_DEPLOYMENT = "/deployment/deployment.yaml"
_CACHE = "/cache"
_LABELS = {"app.kubernetes.io/name": "autotune-plan"}


def kubernetes_yaml(bundle: str, deployment: str, image: str) -> str:
    """YAML documents for a bundle's file name, a deployment file's text and the server's image."""
    documents = [_config_map(deployment), _no_network(), _job(bundle, image), _server_template(bundle, image)]
    head = (
        f"# kubectl apply -f - with a PersistentVolumeClaim {_VOLUME} in the same namespace. The PodTemplate starts\n"
        "# nothing: take its init container, volumes, mounts and environment into the server's own pods.\n"
    )
    return head + "---\n".join(
        yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=1000) for document in documents
    )


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks, as people write them."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _config_map(deployment: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "autotune-deployment"},
        "data": {"deployment.yaml": deployment},
    }


def _no_network() -> dict[str, Any]:
    """No rules for both directions: nothing gets in or out of the Job's pod."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "autotune-no-network"},
        "spec": {"podSelector": {"matchLabels": _LABELS}, "policyTypes": ["Ingress", "Egress"]},
    }


def _job(bundle: str, image: str) -> dict[str, Any]:
    out = shlex.quote(f"/bundle/{bundle}")
    script = (
        f"autotune-plan run {_DEPLOYMENT} --gpus all --cache-dir /bundle/work\n"
        "code=$?\n"
        "[ $code -eq 0 ] || [ $code -eq 6 ] || exit $code\n"
        f"autotune-plan bundle {_DEPLOYMENT} --cache-dir /bundle/work -o {out}\n"
    )
    container = {
        "name": "tune",
        "image": image,
        "command": ["/bin/sh", "-c", script],
        "env": [{"name": "HOME", "value": "/home/tune"}],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
        "securityContext": _unprivileged(),
        "volumeMounts": [_mount("bundle", "/bundle"), _mount("deployment", "/deployment"), *_scratch_mounts("tune")],
    }
    failures = {"action": "FailJob", "onExitCodes": {"containerName": "tune", "operator": "In", "values": [2, 3, 4]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "autotune"},
        "spec": {
            "backoffLimit": 3,
            "podFailurePolicy": {"rules": [failures]},
            "template": {
                "metadata": {"labels": _LABELS},
                "spec": {
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": False,
                    "securityContext": _no_root(),
                    "containers": [container],
                    "volumes": [*_volumes(), *_scratch_volumes()],
                },
            },
        },
    }


def _server_template(bundle: str, image: str) -> dict[str, Any]:
    install = {
        "name": "install-autotune-cache",
        "image": image,
        "command": ["autotune-plan", "install", f"/bundle/{bundle}", "--for", _DEPLOYMENT, "--cache-dir", _CACHE],
        "env": [{"name": "HOME", "value": "/home/install"}],
        "securityContext": _unprivileged(),
        "volumeMounts": [
            {**_mount("bundle", "/bundle"), "readOnly": True},
            _mount("deployment", "/deployment"),
            _mount("cache", _CACHE),
            *_scratch_mounts("install"),
        ],
    }
    server = {
        "name": "server",
        "image": image,
        "env": [{"name": "SGLANG_CACHE_DIR", "value": _CACHE}],
        "volumeMounts": [_mount("cache", _CACHE)],
    }
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": "server-with-autotune-cache"},
        "template": {
            "metadata": {"labels": {"app.kubernetes.io/name": "server"}},
            "spec": {
                "securityContext": _no_root(),
                "initContainers": [install],
                "containers": [server],
                "volumes": [*_volumes(), {"name": "cache", "emptyDir": {}}, *_scratch_volumes()],
            },
        },
    }


def _no_root() -> dict[str, Any]:
    return {
        "runAsNonRoot": True,
        "runAsUser": _USER,
        "runAsGroup": _USER,
        "fsGroup": _USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _unprivileged() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _volumes() -> list[dict[str, Any]]:
    return [
        {"name": "bundle", "persistentVolumeClaim": {"claimName": _VOLUME}},
        {"name": "deployment", "configMap": {"name": "autotune-deployment"}},
    ]


def _scratch_volumes() -> list[dict[str, Any]]:
    """Compiled kernels and temporary files, beside a root file system that is read only."""
    return [{"name": "home", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]


def _scratch_mounts(user: str) -> list[dict[str, Any]]:
    return [_mount("home", f"/home/{user}"), _mount("tmp", "/tmp")]


def _mount(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "mountPath": path}
