"""The checks of `make check-cluster`: tools of each ecosystem read the files of packaging/cluster.

The tools (tools.txt) are installed in a virtual environment of their own, in the user's cache folder. The exit status
is 0 if every check passed or was left out for a printed reason; 1 otherwise.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OVERLAYS = ("one-gpu", "one-gpu-hpa", "one-node", "several-nodes", "experts")
# The oldest release that has every field, and the newest that the validator knows.
KUBERNETES = ("1.32", "1.37")
# Fields of KEDA 2.18 and newer, which the README requires; the package with KEDA's models is older.
NEWER_FIELDS = {".spec.fallback.behavior"}
# The variables that the proxy reads from its environment.
PROXY = {"CLUSTER_SITE": "https://llm.example.org:8443", "ROUTER": "127.0.0.1:8000"}
STANDS_FOR = {
    "/opt/vllm/bin/vllm": "/bin/true",
    "/opt/vllm-router/bin/vllm-router": "/bin/true",
    "/usr/bin/caddy": "/bin/true",
}
# The fields that manifests of these kinds may use, from their API types: no package index has their schemas.
KNOWN_FIELDS = {
    "LeaderWorkerSet": {
        "": {"replicas", "leaderWorkerTemplate", "rolloutStrategy", "startupPolicy", "networkConfig"},
        "leaderWorkerTemplate": {"leaderTemplate", "workerTemplate", "size", "restartPolicy", "subGroupPolicy"},
        "rolloutStrategy": {"type", "rollingUpdateConfiguration"},
    },
    "LLMInferenceService": {
        "": {
            "model",
            "replicas",
            "scaling",
            "parallelism",
            "labels",
            "annotations",
            "template",
            "worker",
            "router",
            "prefill",
        },
        "model": {"uri", "name", "lora"},
        "parallelism": {"tensor", "pipeline", "data", "dataLocal", "dataRPCPort", "expert"},
        "router": {"gateway", "route", "ingress", "scheduler"},
    },
    "Gateway": {"": {"gatewayClassName", "listeners", "addresses", "infrastructure"}},
}


class Failed(Exception):
    """A check found a fault; the message comes from the tool."""


class LeftOut(Exception):
    """A check could not run; the message says why."""


def main() -> int:
    """Make the environment, then run the checks in it; return the exit status."""
    folder = tools_folder()
    python = folder / "bin/python"
    if Path(sys.executable) != python:
        install(folder)
        return subprocess.call([str(python), str(Path(__file__).resolve())])
    os.environ["PATH"] = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    failed = sum(not report(check) for check in CHECKS)
    print(f"{len(CHECKS)} checks, {failed} failed")
    return 1 if failed else 0


def tools_folder() -> Path:
    """Return the folder of the environment that holds these pinned tools."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"))
    key = hashlib.sha256((HERE / "tools.txt").read_bytes() + sys.version.encode()).hexdigest()[:16]
    return cache / "edgeagent" / "cluster-tools" / key


def install(folder: Path) -> None:
    """Make the environment, unless a complete one exists."""
    if (folder / "ready").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    print(f"making {folder}, about a minute once", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", str(HERE / "tools.txt")], check=True)
    (folder / "ready").touch()


def report(check: Callable[[], str]) -> bool:
    """Run a check and print its outcome; return True unless it failed."""
    began = time.monotonic()
    title = str(check.__doc__).partition("\n")[0].rstrip(".")
    try:
        outcome, detail = "ok", check()
    except LeftOut as reason:
        outcome, detail = "left out", str(reason)
    except Failed as fault:
        outcome, detail = "FAILED", str(fault)
    print(f"{outcome:8} {title}: {detail} ({time.monotonic() - began:.1f} s)", flush=True)
    return outcome != "FAILED"


def kubernetes() -> str:
    """Kubernetes: every rendered object against the API's schema, strictly."""
    import kubernetes_validate

    count = 0
    for name, found in rendered():
        for version in KUBERNETES:
            try:
                kubernetes_validate.validate(found, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                raise Failed(f"{name}, {found['kind']} {found['metadata']['name']}: {error.message}") from None
            except kubernetes_validate.SchemaNotFoundError:
                break
            count += 1
    return f"{count} objects of {len(OVERLAYS)} overlays, releases {' and '.join(KUBERNETES)}"


def operators() -> str:
    """Operators: LeaderWorkerSet, LLMInferenceService and Gateway by their fields, their pods by Kubernetes' schema."""
    import kubernetes_validate

    count = 0
    for name, found in rendered("kserve"):
        for path, known in KNOWN_FIELDS.get(found["kind"], {}).items():
            part = found["spec"].get(path, {}) if path else found["spec"]
            if unknown := set(part) - known:
                raise Failed(f"{name}, {found['kind']}: {path or 'spec'} has no field {', '.join(sorted(unknown))}")
        for pod in pods_inside(found):
            try:
                kubernetes_validate.validate(pod, KUBERNETES[0], strict=True)
            except kubernetes_validate.ValidationError as error:
                raise Failed(f"{name}, {found['kind']}: {error.message}") from None
            count += 1
    return f"{count} pods inside them"


def keda_and_prometheus() -> str:
    """KEDA and the Prometheus operator: every object against their API, with no field that it does not know."""
    from cloudcoil.models.keda.v1alpha1 import ScaledObject
    from cloudcoil.models.prometheus_operator.v1 import PodMonitor, PrometheusRule

    kinds = {model.__name__: model for model in (ScaledObject, PodMonitor, PrometheusRule)}
    count = 0
    for name, found in rendered():
        if model := kinds.get(found["kind"]):
            kept = model.model_validate(found).model_dump(mode="json", by_alias=True, exclude_unset=True)
            if lost := sorted(paths(found) - paths(kept) - NEWER_FIELDS):
                raise Failed(f"{name}, {found['kind']} {found['metadata']['name']}: no such field: {', '.join(lost)}")
            count += 1
    return f"{count} objects"


def promql() -> str:
    """PromQL: every query of rules, autoscaler and dashboard parses."""
    import promql_parser

    queries = sorted({*queries_of_manifests(), *queries_of_dashboard()})
    for query in queries:
        try:
            promql_parser.parse(re.sub(r"\$__rate_interval", "5m", query))
        except ValueError as error:
            raise Failed(f"{query}: {error}") from None
    return f"{len(queries)} queries"


def promtool() -> str:
    """promtool: the alerting rules."""
    import yaml

    tool = needs("promtool", "it comes with Prometheus")
    rules = next(found for _, found in rendered() if found["kind"] == "PrometheusRule")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rules.yaml")
        path.write_text(yaml.safe_dump(rules["spec"]), encoding="utf-8")
        said = run(tool, "check", "rules", str(path))
        return next(line.strip() for line in said.splitlines() if "rules found" in line)


def compose() -> str:
    """Compose: the file against the Compose specification's schema."""
    run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(HERE / "compose/compose.yaml"))
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True) if shutil.which("docker") else None
    if plugin is None or plugin.returncode:
        return "valid; `docker compose config` was not tried, it is not installed"
    with tempfile.TemporaryDirectory() as folder:
        for secret in ("keys.yaml", "cert.pem", "key.pem"):
            Path(folder, secret).touch()
        paths = {"KEYS": f"{folder}/keys.yaml", "CERT": f"{folder}/cert.pem", "KEY": f"{folder}/key.pem"}
        files = ("--file", str(HERE / "compose/compose.yaml"), "--env-file", str(HERE / "compose/example.env"))
        run("docker", "compose", *files, "config", "--quiet", **paths)
    return "valid, and docker compose agrees"


def caddy() -> str:
    """Caddy: the proxy's configuration, with and without a second pool."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        subject = ("-subj", "/CN=llm.example.org", "-keyout", str(home / "key.pem"), "-out", str(home / "cert.pem"))
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        run(needs("openssl", "it makes the test's certificate"), "req", "-x509", *key, *subject)
        shutil.copy(HERE / "proxy/Caddyfile", home)
        settings = {
            **PROXY,
            "CLUSTER_CERT": str(home / "cert.pem"),
            "CLUSTER_KEY": str(home / "key.pem"),
            "HOME": folder,
        }
        run("caddy", "validate", "--config", str(home / "Caddyfile"), **settings)
        (home / "pools").mkdir()
        shutil.copy(HERE / "k8s/components/long-context/long.caddy", home / "pools")
        run("caddy", "validate", "--config", str(home / "Caddyfile"), **settings)
        run("caddy", "fmt", "--diff", str(home / "Caddyfile"))
    return "valid"


def systemd() -> str:
    """systemd: the units, and how much they could reach if they were taken over."""
    tool = needs("systemd-analyze", "it comes with systemd")
    exposures = []
    with tempfile.TemporaryDirectory() as folder:
        for source in sorted((HERE / "systemd").glob("*.service")):
            text = source.read_text(encoding="utf-8")
            for program, present in STANDS_FOR.items():
                text = text.replace(program, present)
            unit = Path(folder, source.name.replace("@.", "@a."))
            unit.write_text(text, encoding="utf-8")
            answer = subprocess.run([tool, "verify", "--man=no", str(unit)], capture_output=True, text=True)
            if unit.name in (said := answer.stdout + answer.stderr):
                raise Failed(said.strip())
            rated = subprocess.run(
                [tool, "security", "--offline=true", "--no-pager", str(unit)], capture_output=True, text=True
            )
            exposures += re.findall(r"Overall exposure level for (\S+)\.service: (\S+)", rated.stdout)
    return ", ".join(f"{name} exposed {level} of 10" for name, level in exposures)


def ray_serve() -> str:
    """Ray Serve: the file against Serve's schema and the model against Serve LLM's."""
    import yaml
    from ray.llm._internal.serve.core.configs.llm_config import LLMConfig
    from ray.serve.schema import ServeDeploySchema

    content = yaml.safe_load((HERE / "ray/serve.yaml").read_text(encoding="utf-8"))
    try:
        ServeDeploySchema.model_validate(content)
        models = [LLMConfig.model_validate(found) for found in content["applications"][0]["args"]["llm_configs"]]
    except ValueError as error:
        raise Failed(str(error)) from None
    return ", ".join(model.model_id for model in models)


def engine_arguments() -> str:
    """vLLM and its router: every command line by their own parsers."""
    python = engine_python()
    lines = list(engine_lines())
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    run(str(python), "-c", PARSE, json.dumps(lines), **environment)
    return f"{len(lines)} command lines"


# This runs where vLLM is installed. Both parsers end the process with their own message if they reject a line.
PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm_router.launch_router import parse_router_args
engine = make_arg_parser(FlexibleArgumentParser())
for program, line in json.loads(sys.argv[1]):
    engine.parse_args(line) if program == "vllm" else parse_router_args(line)
"""


def engine_lines() -> Iterator[tuple[str, list[str]]]:
    """Yield the program and arguments of every engine and router, with settings filled in."""
    for _, found in rendered():
        for pod in [found["spec"]["template"]] if found["kind"] == "Deployment" else pods_inside(found):
            for container in pod["spec"]["containers"]:
                if container["name"] == "vllm":
                    args = container["args"]
                    yield "vllm", engine_args(args if container["command"][0] == "vllm" else shell_words(args[0]))
                elif container["name"] == "router":
                    yield "router", list(container["args"])
    for unit, settings, program in (
        ("vllm@", "vllm-a", "vllm"),
        ("vllm-router", "router", "router"),
    ):
        text = (HERE / f"systemd/{unit}.service").read_text(encoding="utf-8").replace("\\\n", " ")
        line = next(line for line in text.splitlines() if line.startswith("ExecStart="))
        values = dict(
            re.findall(r"^([A-Z_]+)=(.*)$", (HERE / f"systemd/{settings}.env").read_text(encoding="utf-8"), re.M)
        )
        words = shlex.split(filled(line, values))[1:]
        yield program, engine_args(words[1:]) if program == "vllm" else words


def filled(line: str, values: dict[str, str]) -> str:
    """Return a unit's command line with the values of its settings filled in."""
    return re.sub(r"\$\{?([A-Z_]+)\}?", lambda found: values[found[1]], line)


def engine_args(words: list[str]) -> list[str]:
    """Return `vllm serve`'s arguments as its server's parser takes them: the model by name, and no key file."""
    words = [word for word in words if not word.startswith(("--config=", "%d/")) and word != "--config"]
    return ["--model", *words]


def shell_words(command: str) -> list[str]:
    """Split a shell command line as it looks in the second pod of a group, without `exec vllm serve`."""
    command = command.replace("$((8 * LWS_WORKER_INDEX))", "8").replace("$LWS_WORKER_INDEX", "1")
    return shlex.split(command.replace("$LWS_LEADER_ADDRESS", "engine-0.engine"))[3:]


def engine_python() -> Path:
    """Return the Python interpreter of `make cluster-demo`'s engines. Raises LeftOut if they are not installed."""
    found = sorted((tools_folder().parents[1] / "cluster-engines").glob("*/ready"))
    if not found:
        raise LeftOut("no engine is installed; `make cluster-demo` installs one")
    return found[-1].parent / "bin/python"


def rendered(*more: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every object of every overlay, with the overlay's name, as kustomize renders it."""
    for folder in [*(f"k8s/overlays/{name}" for name in OVERLAYS), *more]:
        for found in render(folder):
            yield Path(folder).name, found


@functools.cache
def render(folder: str) -> list[dict[str, Any]]:
    """Return the objects that kustomize builds from one folder."""
    import yaml

    return list(yaml.safe_load_all(run("kubectl", "kustomize", str(HERE / folder))))


def pods_inside(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pods that an operator would make, as objects by themselves."""
    spec = found.get("spec", {})
    if found["kind"] == "LeaderWorkerSet":
        templates = [spec["leaderWorkerTemplate"][name] for name in ("leaderTemplate", "workerTemplate")]
    elif found["kind"] == "LLMInferenceService":
        templates = [{"spec": spec[name]} for name in ("template", "worker") if name in spec]
    else:
        templates = []
    return [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **template} for template in templates]


def digests() -> str:
    """Digests: the image of each container."""
    images = {
        image
        for file in sorted(HERE.rglob("*.yaml"))
        for image in re.findall(r"^\s*(?:- )?image: (\S+)$", file.read_text(encoding="utf-8"), re.M)
    }
    by_tag = sorted(image for image in images if not re.search(r"@sha256:[0-9a-f]{64}$", image))
    if by_tag:
        raise LeftOut(f"only a registry knows the digests of {', '.join(by_tag)}; pin those that you have checked")
    return f"{len(images)} images"


def queries_of_manifests() -> Iterator[str]:
    """Yield the queries of alerting rules and autoscalers."""
    for _, found in rendered():
        if found["kind"] == "PrometheusRule":
            yield from (rule["expr"] for group in found["spec"]["groups"] for rule in group["rules"])
        if found["kind"] == "ScaledObject":
            yield from (trigger["metadata"]["query"] for trigger in found["spec"]["triggers"])


def queries_of_dashboard() -> Iterator[str]:
    """Yield the queries of the Grafana dashboard."""
    dashboard = json.loads((HERE / "dashboards/llm-cluster.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))


def paths(value: Any, at: str = "") -> set[str]:
    """Return the path of every field in a document."""
    if isinstance(value, dict):
        return {path for key, part in value.items() for path in {f"{at}.{key}", *paths(part, f"{at}.{key}")}}
    if isinstance(value, list):
        return {path for part in value for path in paths(part, f"{at}[]")}
    return set()


def needs(program: str, hint: str) -> str:
    """Return the path of a program. Raises LeftOut if it is not installed."""
    found = shutil.which(program)
    if found is None:
        raise LeftOut(f"{program} is not installed; {hint}")
    return found


def run(*command: str, **environment: str) -> str:
    """Run a tool and return its output. Raises Failed, with the end of its output, if its exit status is not 0."""
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode:
        raise Failed(f"{Path(command[0]).name}: {(done.stdout + done.stderr).strip()[-2000:]}")
    return done.stdout


CHECKS = (
    kubernetes,
    operators,
    keda_and_prometheus,
    promql,
    promtool,
    compose,
    caddy,
    systemd,
    ray_serve,
    engine_arguments,
    digests,
)

if __name__ == "__main__":
    sys.exit(main())
