"""The OCI image, unpacked by skopeo and umoci and run by crun: its own namespaces, no network, a read-only root."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.installation.steps import OLD_VERSION, ROOT, TrialError, answer_of, ask, check, run, step, wait_for

sys.path.insert(0, str(ROOT / "packaging"))
import oci

NAME, URL = "edgeagent-trial", "http://127.0.0.1:8127"
# crun refuses a machine whose cgroups are of both versions. In a mount namespace of its own it sees those of version 2.
_CGROUPS = 'mount --make-rprivate / && umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup; exec "$@"'
CRUN = ("unshare", "--mount", "sh", "-c", _CGROUPS, "sh", "crun", "--cgroup-manager=disabled")


class Container:
    """A running container. `process` is its process 1, seen from outside."""

    def __init__(self, runtime: Path, process: subprocess.Popen[bytes]) -> None:
        self._crun = (*CRUN, "--root", str(runtime))
        self._run = process
        self.process = 0

    def exec(self, *command: str, status: int = 0) -> str:
        """Run a command in it, as `podman exec` does."""
        user = f"{oci.UID}:{oci.UID}"  # an engine takes it from the image's configuration
        return run(*self._crun, "exec", "--user", user, NAME, *command, status=status)

    def find(self) -> bool:
        """Learn the process 1 of the container; return whether it runs."""
        done = subprocess.run([*self._crun, "state", NAME], capture_output=True, text=True)
        if done.returncode or self._run.poll() is not None:
            return False
        state = json.loads(done.stdout)
        self.process = int(state["pid"])
        return bool(state["status"] == "running")

    def stop(self) -> int:
        """End it as `podman stop` does; return its exit status."""
        os.kill(self.process, signal.SIGTERM)
        return self._run.wait(60)


def unpack(image: Path, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Unpack an image with the tools of others, which check its digests. Return the bundle and its configuration."""
    folder.mkdir()
    run("skopeo", "copy", "--quiet", f"oci-archive:{image}", f"oci:{folder}/layout:trial")
    run("umoci", "unpack", "--image", f"{folder}/layout:trial", folder / "bundle")
    # skopeo shows only what the OCI's specification names, which is without the health check.
    name = json.loads((folder / "layout/index.json").read_text())["manifests"][0]["digest"].replace(":", "/")
    name = json.loads((folder / "layout/blobs" / name).read_text())["config"]["digest"].replace(":", "/")
    return folder / "bundle", json.loads((folder / "layout/blobs" / name).read_text())["config"]


@contextmanager
def running(bundle: Path, volumes: dict[str, Path], log: Path) -> Iterator[Container]:
    """Run a bundle with a read-only root, no capabilities and these volumes; kill it at the end if it still runs."""
    spec = json.loads((bundle / "config.json").read_text())
    spec["root"]["readonly"] = True
    spec["process"].update(terminal=False, capabilities={}, noNewPrivileges=True, rlimits=[])
    mounts = [each for each in spec["mounts"] if each["destination"] not in volumes and each["type"] != "cgroup"]
    for target, source in volumes.items():
        options = ["bind", "rw", "nosuid", "nodev"]
        mounts.append({"destination": target, "type": "bind", "source": str(source), "options": options})
    spec["mounts"] = mounts
    spec["linux"].pop("resources", None)
    (bundle / "config.json").write_text(json.dumps(spec))
    runtime = bundle.parent / "run"
    with log.open("ab") as output:
        command = [*CRUN, "--root", str(runtime), "run", "--bundle", str(bundle), NAME]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    container = Container(runtime, process)
    try:
        wait_for("the container", container.find, 60)
        wait_for("the model", lambda: ask(container.process, f"{URL}/health")[0] == 200)
        yield container
    except TrialError as error:
        raise TrialError(f"{error}\nThe container's log:\n{log.read_text()[-2000:]}") from None
    finally:
        if process.poll() is None:
            os.kill(container.process or process.pid, signal.SIGKILL)
            process.wait(60)


def try_image(old: Path, new: Path, folder: Path) -> None:
    """Start, ask, upgrade and stop the image; raise TrialError for what is not as it should be."""
    with step("oci: unpack both images with skopeo and umoci"):
        (old_bundle, _), (new_bundle, config) = unpack(old, folder / "old"), unpack(new, folder / "new")
    check(config["User"].split(":")[0] not in ("", "0"), "the image's user is root")
    volumes = {}
    for number, target in enumerate(sorted(config["Volumes"])):
        source = new_bundle / "rootfs" / target.strip("/")
        volumes[target] = folder / f"volume-{number}"
        volumes[target].mkdir()
        # As engines do with a new volume: it gets the owner and the mode of the folder in the image.
        os.chown(volumes[target], source.stat().st_uid, source.stat().st_gid)
        volumes[target].chmod(source.stat().st_mode & 0o777)
    state = volumes["/var/lib/edgeagent"]
    with step("oci: start the old image"), running(old_bundle, volumes, folder / "old.log") as container:
        check(OLD_VERSION in container.exec("/usr/bin/edgeagent", "version"), "another version runs")
        owner = Path(f"/proc/{container.process}").stat().st_uid
        check(owner == int(config["User"].split(":")[0]), f"it runs as user {owner}")
        token = (state / "token").read_text().strip()
        check(ask(container.process, f"{URL}/v1/models")[0] == 401, "it answers without a token")
        check(ask(container.process, f"{URL}/v1/models", token="edge_wrong")[0] == 401, "it takes any token")
        stored = answer_of(container.process, URL, token)
        check(container.stop() == 0, "a stop does not end it with status 0")
    with (
        step("oci: start the new image with the same volumes"),
        running(new_bundle, volumes, folder / "new.log") as container,
    ):
        check((state / "token").read_text().strip() == token, "the token is another")
        status, response = ask(container.process, f"{URL}/v1/responses/{stored}", token=token)
        check(status == 200 and response["id"] == stored, f"the stored response is gone: {status} {response}")
        answer_of(container.process, URL, token)
        client = container.exec("/usr/bin/edgeagent", "token", "add", "laptop", "--scope", "infer")
        key = next(word for word in client.split() if word.startswith("edge_"))
        check(ask(container.process, f"{URL}/v1/models", token=key)[0] == 200, "a client's token is refused")
        check(ask(container.process, f"{URL}/edgeagent/status", token=key)[0] == 403, "a client is an owner")
        with step("oci: the health check"):
            container.exec(*config["Healthcheck"]["Test"][1:])
        write = "open('/usr/lib/edgeagent/x', 'w')"
        said = container.exec("/usr/lib/edgeagent/bin/python3", "-c", write, status=1)
        check("Read-only file system" in said, f"the root can be written: {said}")
        check(container.stop() == 0, "a stop does not end it with status 0")
    rest = {path.name for path in state.rglob("*.sock*")} | {path.name for path in state.glob("daemon.json")}
    check(not rest, f"left behind by a stopped container: {rest}")
