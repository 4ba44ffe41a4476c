"""The files of packaging/cluster, checked without the tools of `make check-cluster`."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.packaging.kustomize import build

yaml = pytest.importorskip("yaml", reason="PyYAML, which comes with huggingface-hub, reads the manifests")
ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "packaging/cluster"
OVERLAYS = ("one-gpu", "one-gpu-hpa", "one-node", "several-nodes", "experts")
# The metric names that the pinned versions of the engine and the router were seen to send.
METRICS = set((ROOT / "tests/packaging/cluster_metrics.txt").read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def check() -> ModuleType:
    """Return packaging/cluster/check.py."""
    spec = importlib.util.spec_from_file_location("cluster_check", CLUSTER / "check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Return the objects of an overlay."""
    return build(CLUSTER / "k8s/overlays" / request.param)


@pytest.mark.daily(1, seconds=0.4)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubectl_builds_the_same_objects(overlay: str, check: ModuleType) -> None:
    path = os.pathsep.join([os.environ["PATH"], str(check.tools_folder() / "bin")])
    kubectl = shutil.which("kubectl", path=path)
    if kubectl is None:
        pytest.skip("kubectl is not installed; `make check-cluster` installs one")
    command = [kubectl, "kustomize", str(CLUSTER / "k8s/overlays" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # A generated ConfigMap has a hash in its name, and its content is in files.
    told = re.sub(r"(name: (?:[a-z]+-)*[a-z]+)-(?=[a-z0-9]*\d)[a-z0-9]{10}$", r"\1", done.stdout, flags=re.M)
    found, expected = (
        {(each["kind"], each["metadata"]["name"]): each for each in objects if each["kind"] != "ConfigMap"}
        for objects in (build(CLUSTER / "k8s/overlays" / overlay), yaml.safe_load_all(told))
    )
    assert found == expected


def of_kind(objects: list[dict[str, Any]], *kinds: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of these kinds."""
    return (found for found in objects if found["kind"] in kinds)


def pods(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the pod templates, each with the name of its owner."""
    for found in of_kind(objects, "Deployment"):
        yield found["metadata"]["name"], found["spec"]["template"]
    for found in of_kind(objects, "LeaderWorkerSet"):
        group = found["spec"]["leaderWorkerTemplate"]
        yield from (("head", group["leaderTemplate"]), ("part", group["workerTemplate"]))


class TestKubernetes:
    def test_one_autoscaler_owns_the_number_of_engines_and_the_pool_is_never_empty(
        self, objects: list[dict[str, Any]]
    ) -> None:
        (scaled,) = of_kind(objects, "ScaledObject", "HorizontalPodAutoscaler")
        target = scaled["spec"]["scaleTargetRef"]
        (engine,) = [
            found
            for found in of_kind(objects, target["kind"])
            if found["metadata"]["name"] == target["name"] and found["apiVersion"] == target["apiVersion"]
        ]
        # Each apply would reset a number in the manifest, while the autoscaler counts on its own.
        assert "replicas" not in engine["spec"]
        if scaled["kind"] == "HorizontalPodAutoscaler":
            assert scaled["spec"]["minReplicas"] >= 2
            return
        assert scaled["spec"]["minReplicaCount"] >= 2
        assert scaled["spec"]["fallback"]["replicas"] >= scaled["spec"]["minReplicaCount"]
        assert "idleReplicaCount" not in scaled["spec"]
        for trigger in scaled["spec"]["triggers"]:
            assert trigger["metadata"]["ignoreNullValues"] == "false", "an empty query is no queue of 0"

    def test_both_autoscalers_look_at_the_same_metrics(self, check: ModuleType) -> None:
        components = CLUSTER / "k8s/components"
        (keda,) = yaml.safe_load_all((components / "keda/scaled-object.yaml").read_text(encoding="utf-8"))
        (hpa,) = yaml.safe_load_all((components / "hpa/autoscaler.yaml").read_text(encoding="utf-8"))
        queries = (trigger["metadata"]["query"] for trigger in keda["spec"]["triggers"])
        asked = {re.findall(r"vllm:(\w+)", query)[0] for query in queries}
        assert {metric["pods"]["metric"]["name"].removeprefix("vllm_") for metric in hpa["spec"]["metrics"]} == asked
        rule = re.search(r"__name__=~\"vllm:\((.+)\)\"", (CLUSTER / "k8s/README.md").read_text(encoding="utf-8"))
        assert rule is not None and all(re.fullmatch(rule[1], name) for name in asked)

    def test_monitors_and_queries_find_the_engines(self, objects: list[dict[str, Any]]) -> None:
        found = dict(pods(objects))
        monitors = list(of_kind(objects, "PodMonitor"))
        assert len(monitors) == 2
        for watched in (*monitors, *of_kind(objects, "PrometheusRule")):
            assert watched["metadata"]["labels"]["release"] == "kube-prometheus-stack", "or it is not read at all"
        scraped: list[dict[str, str]] = []
        for monitor in monitors:
            assert monitor["metadata"]["namespace"] == "llm"
            wanted = monitor["spec"]["selector"]["matchLabels"]
            (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
            chosen = [pod for pod in found.values() if wanted.items() <= pod["metadata"]["labels"].items()]
            ported = [
                pod
                for pod in chosen
                for container in pod["spec"]["containers"]
                if endpoint["port"] in {port["name"] for port in container.get("ports", ())}
            ]
            assert ported, monitor["metadata"]["name"]
            for pod in ported:
                labels = pod["metadata"]["labels"]
                kept = {name: labels[name] for name in monitor["spec"]["podTargetLabels"] if name in labels}
                scraped.append({"namespace": "llm", "container": pod["spec"]["containers"][0]["name"], **kept})
        text = json.dumps(list(of_kind(objects, "ScaledObject", "PrometheusRule"))).replace('\\"', '"')
        selectors = [dict(re.findall(r'(\w+)="([^"]*)"', each)) for each in re.findall(r"\w\{([^{}$]*)\}", text)]
        assert len(selectors) > 5
        for selector in selectors:
            assert any(selector.items() <= labels.items() for labels in scraped), selector

    def test_the_autoscaler_looks_at_the_queue_and_the_seats(self, objects: list[dict[str, Any]]) -> None:
        if not (scaled := next(of_kind(objects, "ScaledObject"), None)):
            pytest.skip("this overlay has Kubernetes' own autoscaler")
        triggers = {trigger["name"]: trigger["metadata"] for trigger in scaled["spec"]["triggers"]}
        assert "vllm:num_requests_waiting" in triggers["waiting"]["query"]
        head = next(pod for name, pod in pods(objects) if name in ("engine", "head"))
        line = " ".join(head["spec"]["containers"][0]["args"])
        ranks = int((re.search(r"--data-parallel-size=(\d+)", line) or [0, 1])[1])
        seats = ranks * int(re.search(r"--max-num-seqs=(\d+)", line)[1])  # type: ignore[index]
        assert int(triggers["running"]["threshold"]) == seats * 3 // 4

    def test_routers_find_the_engines_that_answer_and_only_those(self, objects: list[dict[str, Any]]) -> None:
        labels = {name: pod["metadata"]["labels"] for name, pod in pods(objects)}
        for name, pod in pods(objects):
            if not name.startswith("router"):
                continue
            arguments = pod["spec"]["containers"][0]["args"]
            at = arguments.index("--selector")
            wanted = dict(argument.split("=") for argument in arguments[at + 1 : at + 3])
            found = {owner for owner, has in labels.items() if wanted.items() <= has.items()}
            assert found == (
                {"engine-long"} if name.endswith("-long") else {"engine"} if "engine" in labels else {"head"}
            )

    def test_every_pod_is_locked_and_bounded(self, objects: list[dict[str, Any]]) -> None:
        for name, pod in pods(objects):
            assert pod["spec"]["securityContext"]["runAsNonRoot"], name
            for container in pod["spec"]["containers"]:
                context = container["securityContext"]
                assert context["capabilities"] == {"drop": ["ALL"]}, name
                assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"], name
                assert container["resources"]["limits"]["memory"], name

    def test_streams_may_end_before_an_engine_is_killed(self, objects: list[dict[str, Any]]) -> None:
        for name, pod in pods(objects):
            container = pod["spec"]["containers"][0]
            limit = re.search(r"--shutdown-timeout=(\d+)", " ".join(container.get("args", [])))
            if limit:
                pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
                assert pod["spec"]["terminationGracePeriodSeconds"] > pause + int(limit[1]), name

    def test_a_budget_and_the_network_rules_cover_every_pod(self, objects: list[dict[str, Any]]) -> None:
        budgets = [found["spec"]["selector"]["matchLabels"] for found in of_kind(objects, "PodDisruptionBudget")]
        rules = [found["spec"] for found in of_kind(objects, "NetworkPolicy") if found["spec"]["podSelector"]]
        for name, pod in pods(objects):
            labels = dict(pod["metadata"]["labels"])
            if name in ("head", "part"):
                labels["leaderworkerset.sigs.k8s.io/name"] = "engine"  # LeaderWorkerSet sets it on all pods of a group
            assert any(budget.items() <= labels.items() for budget in budgets), name
            own = [rule for rule in rules if rule["podSelector"]["matchLabels"].items() <= labels.items()]
            assert own, name
            for rule in own:
                assert rule["policyTypes"] == ["Ingress", "Egress"], f"{name} may send anything anywhere"
                assert all(allowed.get("to") for allowed in rule.get("egress", ())), name
                assert "0.0.0.0/0" not in json.dumps(rule.get("egress")), name
        (closed,) = [
            found["spec"]
            for found in of_kind(objects, "NetworkPolicy")
            if not found["spec"]["podSelector"] and not found["spec"].get("egress")
        ]
        assert closed == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}, "what no rule names is closed"

    def test_alerts_and_autoscaler_ask_for_metrics_that_exist(self, objects: list[dict[str, Any]]) -> None:
        text = json.dumps(list(of_kind(objects, "PrometheusRule", "ScaledObject")))
        asked = set(re.findall(r"\b(?:vllm:|vllm_router_)\w+", text))
        assert asked and asked <= METRICS


class TestEverywhere:
    def test_images_and_packages_are_pinned(self) -> None:
        for file in CLUSTER.rglob("*"):
            if file.suffix not in (".yaml", ".md", ".service", ".txt"):
                continue
            text = file.read_text(encoding="utf-8")
            for image in re.findall(r"^\s*(?:- )?image: (\S+)$", text, re.M):
                assert re.search(r":v?\d+\.\d+\.\d+|@sha256:[0-9a-f]{64}$", image), f"{file.name}: {image}"
            for package in re.findall(r"pip install ([^\n#|`]+)", text):
                assert all("==" in word for word in package.split()), f"{file.name}: {package}"

    def test_images_without_a_digest_are_named(self, check: ModuleType, tmp_path: Path, monkeypatch: Any) -> None:
        with pytest.raises(check.LeftOut, match=r"digests of caddy:[\d.]+-alpine, vllm/vllm-openai:v[\d.]+, vllm"):
            check.digests()
        for page in ("README.md", "k8s/README.md", "compose/README.md"):
            assert re.search(r"pin the\s+digests", (CLUSTER / page).read_text(encoding="utf-8")), page
        monkeypatch.setattr(check, "HERE", tmp_path)
        (tmp_path / "pod.yaml").write_text(f"  - image: caddy@sha256:{'0' * 64}\n")
        assert check.digests() == "1 images"

    def test_one_version_of_each_part(self) -> None:
        text = "\n".join(
            file.read_text(encoding="utf-8")
            for file in CLUSTER.rglob("*")
            if file.is_file() and "cache" not in str(file)
        )
        for pattern in (r"vllm-openai:v([\d.]+\d)", r"(?:vllm-router:v|vllm-router==)([\d.]+\d)", r"caddy:([\d.]+\d)"):
            assert len(set(re.findall(pattern, text))) == 1, pattern

    def test_the_proxy_lets_through_what_edgeagent_asks_for_and_no_admin_path(self) -> None:
        text = (CLUSTER / "proxy/Caddyfile").read_text(encoding="utf-8")
        allowed = {path for line in re.findall(r"^\t\tpath (.+)$", text, re.M) for path in line.split()}
        assert {"/v1/chat/completions", "/v1/models", "/readiness", "/version"} <= allowed
        assert not any(path in ("/*", "/v1/*") or "worker" in path or "metrics" in path for path in allowed)
        assert "respond 404" in text

    def test_kserve_lets_nothing_through_that_needs_no_key(self) -> None:
        route, _ = yaml.safe_load_all((CLUSTER / "kserve/guard.yaml").read_text(encoding="utf-8"))
        (rule,) = route["spec"]["rules"]
        blocked = re.compile(rule["matches"][0]["path"]["value"])
        for path in ("", "/", "/invocations", "/metrics", "/v", "/v2/x", "/v1", "/version", "/tokenize"):
            assert blocked.fullmatch(f"/llm/chat{path}"), path
        for path in ("/v1/chat/completions", "/v1/models"):
            assert not blocked.fullmatch(f"/llm/chat{path}"), path

    def test_overload_is_told_before_a_stream_begins_and_opens_no_breaker(self) -> None:
        for file in ("systemd/vllm-router.service", "compose/compose.yaml", "k8s/pool/router.yaml"):
            text = (CLUSTER / file).read_text(encoding="utf-8")
            assert re.search(r"--queue-size[= ]0\b", text), file
            assert re.search(r"--cb-failure-threshold[= ]1000\b", text), file
            # A router with a key would use it for every client that requests /v1/responses.
            assert "--api-key" not in text, file
            assert re.search(r"--health-check-interval-secs[= ][1-5]\b", text), file

    def test_compose_names_every_setting_that_it_needs(self) -> None:
        text = (CLUSTER / "compose/compose.yaml").read_text(encoding="utf-8")
        given = set(re.findall(r"^([A-Z_]+)=", (CLUSTER / "compose/example.env").read_text(encoding="utf-8"), re.M))
        assert set(re.findall(r"\$\{([A-Z_]+):\?", text)) <= given
        services = yaml.safe_load(text)["services"]
        assert [name for name, service in services.items() if "ports" in service] == ["proxy"]
        networks = yaml.safe_load(text)["networks"]
        assert all(networks[name]["internal"] for name in services["engine-a"]["networks"])

    def test_units_take_every_setting_from_their_file(self) -> None:
        for unit, settings in (("vllm@", "vllm-a"), ("vllm-router", "router"), ("cluster-proxy", "proxy")):
            text = (CLUSTER / f"systemd/{unit}.service").read_text(encoding="utf-8")
            given = set(re.findall(r"^([A-Z_]+)=", (CLUSTER / f"systemd/{settings}.env").read_text("utf-8"), re.M))
            assert set(re.findall(r"\$\{?([A-Z_]+)\}?", text)) <= given, unit

    def test_an_engine_may_use_the_gpus_of_its_node(self) -> None:
        """Each of these settings hides all devices (ProtectClock before systemd 252), so the unit must not have any."""
        lines = (CLUSTER / "systemd/vllm@.service").read_text(encoding="utf-8").splitlines()
        closing = ("PrivateDevices=", "DevicePolicy=", "DeviceAllow=", "ProtectClock=")
        assert not [line for line in lines if line.startswith(closing)]
        assert "CapabilityBoundingSet=" in lines

    def test_the_dashboard_shows_metrics_that_exist(self) -> None:
        panels = json.loads((CLUSTER / "dashboards/llm-cluster.json").read_text(encoding="utf-8"))["panels"]
        text = "\n".join(target["expr"] for panel in panels for target in panel.get("targets", []))
        asked = set(re.findall(r"\b(?:vllm:|vllm_router_)\w+", text))
        assert len(asked) > 10 and asked <= METRICS
        own = set(re.findall(r"\bedgeagent_\w+", text))
        listed = (CLUSTER.parents[1] / "docs/reference/metrics.md").read_text(encoding="utf-8")
        assert len(own) > 5 and {name.removesuffix("_bucket") for name in own} <= set(re.findall(r"`(\w+)`", listed))
        for left, right in pairwise(panels):
            here, there = left["gridPos"], right["gridPos"]
            assert there["y"] >= here["y"] + here["h"] or there["x"] >= here["x"] + here["w"]

    def test_ray_keeps_replicas_warm_and_refuses_before_a_stream_begins(self) -> None:
        (application,) = yaml.safe_load((CLUSTER / "ray/serve.yaml").read_text(encoding="utf-8"))["applications"]
        for model in application["args"]["llm_configs"]:
            deployment = model["deployment_config"]
            assert deployment["autoscaling_config"]["min_replicas"] >= 2
            assert deployment["autoscaling_config"]["target_ongoing_requests"] <= deployment["max_ongoing_requests"]
            assert deployment["backpressure_config"]["status_code"] == 429

    def test_each_machine_of_ray_has_the_same_settings(self) -> None:
        head, node = ((CLUSTER / f"ray/start-{name}.sh").read_text(encoding="utf-8") for name in ("head", "node"))
        settings = set(re.findall(r"\bRAY_[A-Z_]+=\w+", node))
        assert "RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING=1" in settings
        assert settings == set(re.findall(r"\bRAY_[A-Z_]+=\w+", head.replace("# RAY_AUTH_MODE=token", "")))

    def test_readmes_say_when_to_choose_each(self) -> None:
        index = (CLUSTER / "README.md").read_text(encoding="utf-8")
        for folder in ("systemd", "compose", "k8s", "kserve", "ray"):
            assert f"[{folder}]({folder})" in index
            assert "**Choose it when**" in (CLUSTER / folder / "README.md").read_text(encoding="utf-8")

    @pytest.mark.skipif(sys.platform == "win32", reason="a shell script")
    def test_drain_asks_the_router_and_back(self, tmp_path: Path) -> None:
        curl = tmp_path / "curl"
        curl.write_text('#!/bin/sh\necho "$@"\n', encoding="utf-8")
        curl.chmod(0o755)
        environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}

        def drain(*arguments: str) -> str:
            command = ["sh", str(CLUSTER / "systemd/drain"), *arguments]
            return subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout

        assert "url=http://a:1 http://127.0.0.1:8000/remove_worker" in drain("http://a:1")
        assert "url=http://a:1 http://r:2/add_worker" in drain("--undo", "http://a:1", "http://r:2")


def test_every_check_says_what_it_reads(check: ModuleType) -> None:
    titles = [str(found.__doc__) for found in check.CHECKS]
    assert len(set(titles)) == len(titles)
    assert all(": " in title for title in titles)


def test_a_check_that_cannot_be_made_is_left_out_with_its_reason(
    check: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent() -> str:
        """A tool: that is nowhere."""
        return str(check.needs("edgeagent-has-no-such-tool", "it comes with nothing"))

    def broken() -> str:
        """A tool: that says no."""
        return str(check.run(sys.executable, "-c", "import sys; sys.exit('not like this')"))

    assert check.report(absent)
    assert not check.report(broken)
    said = capsys.readouterr().out
    assert "left out A tool: that is nowhere: edgeagent-has-no-such-tool is not installed" in said
    assert "not like this" in said
