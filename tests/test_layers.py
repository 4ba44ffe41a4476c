"""The layers of the design, checked in the source: which package may import which, and which owns each library."""

from __future__ import annotations

import ast
import sys
from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "edgeagent"
MODULES = sorted(PACKAGE.rglob("*.py"))

# A part imports itself and parts of lower rows. Parts of one row never import each other.
ROWS: list[set[str]] = [
    {
        "types",
        "errors",
        "process_settings",
        "units",
        "usable",
        "keepalive",
        "serving_order",
        "__init__",
    },
    {"strict_json", "state_files", "freed_memory", "sqlite_files", "media_files"},
    {"config"},
    {"config_sources", "metrics", "runtime_file", "fit", "kiosk_prompt"},
    {"credentials", "cache_folder", "remotes"},
    {"machine_policy", "cache_retention", "egress"},
    {"engine", "text", "store"},
    {"worker"},
    {"quantize"},
    {"backends"},
    {"router"},
    {"service"},
    {"answers"},
    {"conversation"},
    {"api"},
    {"daemon"},
    {"client"},
    {"bench"},
    {"doctor"},
    {"cli"},
    {"__main__"},
]
# What apps import and what measures know only the wire, not the daemon behind it.
ONLY = {
    "client": {"types", "errors", "config", "config_sources", "runtime_file", "state_files", "__init__"},
    "bench": {"types", "errors", "config", "runtime_file", "client", "__init__"},
}
# Each library is imported by one part or a few; the others call that part.
OWNERS: dict[str, set[str]] = {
    "typer": {"cli"},
    "rich": {"cli", "bench"},
    "prompt_toolkit": {"cli"},
    "segno": {"cli"},
    "uvicorn": {"daemon"},
    "uvloop": {"daemon"},
    "httptools": {"daemon"},
    "fastapi": {"api"},
    "starlette": {"api"},
    "markdown_it": {"api"},
    "wyoming": {"api"},
    "pydantic": {"api"},
    "pydantic_core": {"api"},
    # pydantic makes schemas of TypedDict; typing's own works only from Python 3.12.
    "typing_extensions": {"api"},
    # From the extra `keyring`; only owners who keep a key there need it.
    "keyring": {"remotes"},
    "platformdirs": {"config", "config_sources"},
    # Only for answers in the background, so applications that ask for none do not load it.
    # The transport of httpx and httpx2, without their cookies, redirects and variables: see backends.remote.
    "httpcore": {"backends"},
    # The values of `types` and the options are msgspec structs; code that makes changed copies needs msgspec.structs.
    "msgspec": {
        "config",
        "config_sources",
        "runtime_file",
        "client",
        "types",
        "metrics",
        "remotes",
        "machine_policy",
        "egress",
        "store",
        "worker",
        "backends",
        "router",
        "answers",
        "api",
        "media_files",  # its decoder of base64
    },
    "llama_cpp": {"engine"},
    # The vectors of questions, only if similar ones are answered.
    "numpy": {"engine", "text", "answers"},
    # From the extra `webp`, and only its decoder of WebP.
    "PIL": {"engine"},
    # From the extra `redis`; only owners who keep answers at a server need it.
    "redis": {"answers"},
    "jinja2": {"text"},
    "llguidance": {"text"},
    "cryptography": {"engine", "answers", "daemon"},
    "huggingface_hub": {"store"},
    # huggingface_hub's own HTTP client and locks, whose errors reach its callers.
    "httpx2": {"client", "bench", "store"},
    "filelock": {"store"},
    "prometheus_client": {"metrics"},
    "opentelemetry": {"daemon"},
    # The session of OpenTelemetry's exporter.
    "requests": {"daemon"},
    "psutil": {"usable", "quantize", "runtime_file", "engine", "worker", "daemon", "doctor", "cli"},
    "websockets": {"client", "bench"},
}
# The rooms (sub-packages) of a part, and what each may import from the same folder: other rooms and the folder's own
# modules.
ROOMS: dict[str, dict[str, set[str]]] = {
    "engine": {
        "sampling": set(),
        "costs": set(),
        "cache": {"runner", "costs", "media", "media_tokens"},
        "speculation": {"cache", "runner", "costs", "sequence", "media_tokens"},
        "llama": {"attention", "sampling", "costs", "cache", "runner", "scheduler"},
    },
    "worker": {
        "sandbox": set(),
        "render": {"sandbox", "protocol", "child_process"},
        "child": {"render", "sandbox", "protocol", "exit_cause", "child_process"},
        "parent": {"sandbox", "protocol", "exit_cause"},
    },
    "api": {
        # `context` holds what the routes of all rooms share.
        "wire": {"context"},
        "gate": {"wire", "context"},
        "responses": {"gate", "wire", "context"},
        "realtime": {"responses", "gate", "wire", "context"},
        "openai": {"gate", "wire", "context"},
        "llama_server": {"openai", "gate", "wire", "context"},
        "anthropic": {"openai", "gate", "wire", "context"},
        "ollama": {"openai", "gate", "wire", "context"},
        "ops": {"openai", "responses", "page", "gate", "wire", "context"},
        "page": {"responses", "gate", "wire", "context"},
        "wyoming": {"wire", "context"},
        "documents": {
            *("openai", "responses", "realtime", "anthropic", "ollama", "llama_server", "ops", "page"),
            *("gate", "wire", "routes"),
        },
    },
    "api.responses": {
        "socket": {"items", "body", "event_json", "events", "turn"},
    },
    "backends": {
        "remote": {"base", "prompts", "media"},
    },
    "worker.child": {
        "encoder": {"frame_writer", "job_loop", "opening", "prompt"},
        "generator": {"frame_writer", "job_loop", "opening", "prompt"},
    },
    "worker.parent": {
        "supervision": {"environment"},
        "pool": {"supervision"},
    },
    "store": {
        "names": set(),
        "gguf": {"names"},
        "hub": {"names", "file_records", "projectors"},
    },
    "text": {
        "template": {"tool_format", "vocabulary"},
        "output": {"tool_format", "vocabulary"},
        "schema": {"partition_cache"},
        "grammar": {"partition_cache", "schema", "tool_format", "vocabulary"},
    },
}
# The modules of engine.cache that the rest of the engine and the worker may import: its interface and data. The worker
# opens the disk.
FACE_OF_CACHE = {"prefix_store", "cached_prefix", "block"}
# A longer function probably does two things.
MAX_FUNCTION_LINES = 80
# pickle executes what it reads, and multiprocessing uses pickle; edgeagent's processes use msgpack over pipes.
BANNED = {"pickle", "marshal", "shelve", "multiprocessing"}


def _folder(part: str) -> Path:
    return PACKAGE.joinpath(*part.split("."))


def _part(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


@dataclass(frozen=True, slots=True)
class Source:
    """What the tests look at in a module. Its syntax tree is not kept, since all trees together are large.

    `imports`: top-level or in functions, except those for type checking.
    """

    docstring: str | None
    imports: tuple[ast.Import | ast.ImportFrom, ...]
    functions: tuple[tuple[str, int], ...]
    """The name and the number of lines of each function."""
    locks: tuple[str, ...]
    """Each expression that ends with a lock's name."""
    is_async: bool


@cache
def _source(path: Path) -> Source:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    locks = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr in ("Lock", "RLock")]
    return Source(
        docstring=ast.get_docstring(tree),
        imports=tuple(_import_nodes(tree)),
        functions=tuple((node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in functions),
        locks=tuple(ast.unparse(node) for node in locks),
        is_async=any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in nodes),
    )


def _import_nodes(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node
    is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    for child in node.orelse if isinstance(node, ast.If) and is_for_types else ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _import_nodes(child)


def _imports(path: Path) -> Iterator[str]:
    """Yield the dotted names of a module's imports, top-level or in functions, except those for type checking."""
    for node in _source(path).imports:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            # `from edgeagent import types` names the module only in its alias.
            if node.module == "edgeagent":
                yield from (f"edgeagent.{alias.name}" for alias in node.names)
            else:
                yield node.module


def _own_part(imported: str) -> str:
    parts = imported.split(".")
    known = set().union(*ROWS)
    return parts[1] if len(parts) > 1 and parts[1] in known else "__init__"


def _row(part: str) -> int:
    return next(number for number, row in enumerate(ROWS) if part in row)


def test_a_module_imports_only_what_its_layer_may() -> None:
    wrong = [f"{path.relative_to(ROOT)}: {fault}" for path in MODULES for fault in _faults_of_imports(path)]
    assert not wrong, "\n".join(wrong)


def _faults_of_imports(path: Path) -> Iterator[str]:
    part = _part(path)
    for imported in _imports(path):
        library = imported.split(".")[0]
        if library in BANNED:
            yield f"{library} must not be used"
        elif library == "edgeagent":
            other = _own_part(imported)
            if other != part and _row(other) >= _row(part):
                yield f"{part} imports {imported}, which is not below it"
            if part in ONLY and other not in ONLY[part] | {part}:
                yield f"{part} must not know {imported}"
        elif library not in sys.stdlib_module_names and library not in OWNERS:
            yield f"{library} is nobody's: add it to OWNERS with a reason, or do without"
        elif library not in sys.stdlib_module_names and part not in OWNERS[library]:
            yield f"{part} imports {library}, which belongs to {OWNERS[library]}"


def test_examples_import_what_an_application_may() -> None:
    files = sorted((ROOT / "examples").rglob("*.py"))
    imported = {name for path in files for name in _imports(path) if name.split(".")[0] == "edgeagent"}
    assert imported <= {"edgeagent.client", "edgeagent.errors"} and imported


@pytest.mark.parametrize(("part", "room"), [(part, room) for part, rooms in ROOMS.items() for room in rooms])
def test_a_room_imports_only_what_is_below_it(part: str, room: str) -> None:
    for path in _folder(part).joinpath(room).rglob("*.py"):
        for imported in _imports(path):
            if imported.startswith(f"edgeagent.{part}."):
                other = imported.removeprefix(f"edgeagent.{part}.").split(".")[0]
                assert other in ROOMS[part][room] | {room}, f"{path.relative_to(PACKAGE)} imports {imported}"


def test_the_prefix_cache_has_one_face() -> None:
    names = {_module_name(path) for path in MODULES}
    for path in MODULES:
        place = path.relative_to(PACKAGE)
        if place.parts[:2] == ("engine", "cache"):
            continue
        allowed = FACE_OF_CACHE | ({"disk"} if place.parts[0] == "worker" else set())
        for imported in _imported_modules(path, names):
            if imported.startswith("edgeagent.engine.cache."):
                assert imported.split(".")[3] in allowed, f"{place} imports {imported}"


@pytest.mark.parametrize("part", ROOMS)
def test_every_room_is_named(part: str) -> None:
    assert {path.parent.name for path in _folder(part).glob("*/__init__.py")} == ROOMS[part].keys()


def test_no_modules_import_each_other_in_a_circle() -> None:
    names = {_module_name(path): path for path in MODULES}
    graph = {name: _imported_modules(path, names) for name, path in names.items()}
    TopologicalSorter(graph).prepare()  # CycleError names the circle


def _module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _imported_modules(path: Path, names: Container[str]) -> set[str]:
    """Return the ones of `names` that a module imports; `from package import module` imports the module."""
    found: set[str] = set()
    for node in _source(path).imports:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in names else node.module for name in modules}
    return {name for name in found if name in names}


@pytest.mark.parametrize("part", ["engine", "text"])
def test_the_engine_and_the_text_are_synchronous(part: str) -> None:
    for path in (PACKAGE / part).rglob("*.py"):
        assert not {"asyncio", "threading"} & {name.split(".")[0] for name in _imports(path)}, path
        assert not _source(path).is_async, path


def test_llama_cpp_stays_out_of_the_daemon_process() -> None:
    """Only the engine imports the bindings, and only processes of their own import the engine."""
    importers = {
        str(path.relative_to(PACKAGE))
        for path in MODULES
        for imported in _imports(path)
        if imported.startswith("edgeagent.engine") and _part(path) != "engine"
    }
    assert {name.split("/")[0] for name in importers} <= {"worker", "quantize.py"}, importers


def test_every_module_says_what_it_owns() -> None:
    """A module opens with one to five lines: what it owns, what it does not know."""
    assert [path for path in MODULES if not _source(path).docstring] == []


def test_functions_are_short() -> None:
    functions = [(path, name, length) for path in MODULES for name, length in _source(path).functions]
    assert [each for each in functions if each[2] > MAX_FUNCTION_LINES] == []


def test_no_lock_is_taken() -> None:
    """Each piece of state has one owner; others ask the owner to act."""
    for path in MODULES:
        assert not {"threading.Lock", "threading.RLock", "asyncio.Lock"}.intersection(_source(path).locks), path


def test_one_module_opens_connections_to_remotes() -> None:
    """The choke point. Others may only connect to this machine, to the hub, or where a user's command says."""
    choke_point = Path("backends/remote/transport.py")
    sockets = Path("backends/remote/network.py")
    importers = {path.relative_to(PACKAGE): set(_imports(path)) for path in MODULES}
    for path, imported in importers.items():
        libraries = {name.split(".")[0] for name in imported}
        if "httpcore" in libraries:
            assert path in (choke_point, sockets), path
        if "edgeagent.backends.remote.network" in imported:
            assert path == choke_point, path
        if path.parts[0] == "backends" and path != sockets:
            assert not libraries & {"socket", "httpx", "httpx2", "urllib3", "requests", "http"}, path


def test_every_part_has_a_row() -> None:
    parts = {_part(path) for path in MODULES}
    assert parts <= set().union(*ROWS), parts - set().union(*ROWS)


def test_the_check_notices_what_it_must(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import httpx\n"
        "import os.path\n"
        "from edgeagent import daemon\n"
        "def f():\n    from edgeagent.engine.llama.context import Llama\n    import numpy as np\n"
    )
    assert set(_imports(module)) == {"typing", "os.path", "edgeagent.daemon", "edgeagent.engine.llama.context", "numpy"}
    assert [_own_part(name) for name in ("edgeagent.daemon", "edgeagent.__version__", "edgeagent")] == [
        "daemon",
        "__init__",
        "__init__",
    ]
    assert _row("api") > _row("router") > _row("backends") > _row("worker") > _row("engine") == _row("text")


def test_what_only_tests_need_is_not_shipped() -> None:
    modules = {path.stem for path in PACKAGE.rglob("*.py")}
    assert not modules & {"fake", "fakes", "integrity"}
    methods = {name for path in MODULES for name, _ in _source(path).functions}
    assert "check_integrity" not in methods, "the invariants are in tests/integrity.py"
