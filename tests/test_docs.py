"""docs/ is right: the site builds strictly, and everything that the pages name exists."""

from __future__ import annotations

import functools
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from edgeagent.api.routes import NEEDS, ROUTES
from edgeagent.backends.remote.endpoint import MAX_FAILURES, OPEN_S
from edgeagent.cli import main
from edgeagent.cli.commands import COMMANDS
from edgeagent.config import EngineConfig, ServerConfig
from edgeagent.config_sources import declared_options, load_config
from edgeagent.engine.cache.block import BLOCK_BYTES, MAX_BLOCK_TOKENS, MIN_BLOCK_TOKENS, MIN_CUT, MIN_PART
from edgeagent.engine.scheduler import MIN_CHUNK, MIN_CHUNK_WITH_STREAMS, MIN_ROWS_WITH_STREAMS, MIN_SLOW_CHUNK
from edgeagent.machine_policy import MachinePolicy, described, load_policy
from edgeagent.metrics.exposition import Snapshot, exposition
from edgeagent.metrics.slo import OBJECTIVE
from edgeagent.remotes import Budget
from edgeagent.text.grammar.compiler import MAX_GRAMMAR_CHARS
from edgeagent.text.grammar.json_guard import MAX_DIGITS, MAX_EQUAL_ELEMENTS, MAX_REPEATS
from edgeagent.text.schema.reading import MAX_JOINED
from edgeagent.types import AHEAD_TOKENS, MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, MAX_TOOLS, RouteMode
from edgeagent.worker.render.renderer import GRAMMAR_CPU_S, REQUEST_CPU_S

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
WRITTEN = [page for page in PAGES if page.parent != DOCS / "reference" or page.name == "compatibility.md"]
CONFIG = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
GROUPS = ("remote", "engine", "service", "token", "cache", "config", "policy")
BUILD_TIMEOUT_S = 60
MAX_CHARS = 140


def name_of(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site, built strictly: a broken link or anchor fails the build."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, folder / "docs")
    shutil.copy(ROOT / "zensical.toml", folder)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        timeout=BUILD_TIMEOUT_S,
    )
    assert done.returncode == 0, re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    return folder / str(CONFIG["site_dir"])


def test_every_page_is_built(site: Path) -> None:
    built = {path.relative_to(site).with_suffix(".md").as_posix() for path in site.rglob("*.html")}
    assert {name_of(page) for page in PAGES} <= built
    assert (site / "openapi.json").exists() and (site / "asyncapi.json").exists()


class Loaded(HTMLParser):
    """Collects what a page loads, and the classes that make the theme load more."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        fields = dict(attrs)
        if tag in ("script", "img", "iframe", "source") or (tag == "link" and fields.get("rel") != "canonical"):
            self.addresses += [value for key in ("src", "href") if (value := fields.get(key))]
        if "mermaid" in (fields.get("class") or ""):
            self.addresses.append("https:mermaid")


def test_no_page_loads_anything_from_the_network(site: Path) -> None:
    for path in site.rglob("*.html"):
        page = Loaded()
        page.feed(path.read_text(encoding="utf-8"))
        assert page.addresses
        assert not [address for address in page.addresses if re.match(r"(https?:)?//|https:", address)], path


def _targets(entries: object) -> list[str]:
    match entries:
        case str():
            return [entries]
        case dict():
            return [target for value in entries.values() for target in _targets(value)]
        case list():
            return [target for value in entries for target in _targets(value)]
    return []


def test_the_navigation_has_every_page_once() -> None:
    targets = _targets(CONFIG["nav"])
    assert len(set(targets)) == len(targets)
    assert set(targets) == {name_of(page) for page in PAGES}


def test_each_decision_has_a_number_of_its_own() -> None:
    text, replaced = text_of(DOCS / "decisions.md").split("\n## Replaced\n")
    standing = [int(number) for number in re.findall(r"^## (\d+)\. ", text, re.MULTILINE)]
    assert standing == sorted(standing)
    gone = [int(number) for number in re.findall(r"(\d+) \(", replaced)]
    assert sorted([*standing, *gone]) == list(range(1, max(standing) + 1))


@functools.cache
def spans(page: Path) -> list[str]:
    """Return the texts between single backticks of a page's prose, with line breaks as spaces."""
    prose = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


def commands(page: Path) -> set[str]:
    blocks = "".join(re.findall(r"^```(?:text|sh)?\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL))
    found = re.findall(r"(?:^|\| )edgeagent ([^#\n]+?) *(?:#.*)?$", blocks, re.MULTILINE)
    return {*found, *(span.removeprefix("edgeagent ") for span in spans(page) if re.match(r"edgeagent [a-z-]", span))}


def test_every_command_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    helps: dict[tuple[str, ...], set[str]] = {}
    for page in WRITTEN:
        for command in commands(page):
            words = shlex.split(command.replace("…", ""))
            depth = 3 if words[:2] == ["cache", "answers"] else 2 if words[0] in GROUPS else 1
            named = tuple(words[:depth])
            # Only --help is run: --install-completion, for example, would write to this user's shell files.
            if words[0].startswith("--"):
                named = ()
            else:
                assert words[0] in COMMANDS, (page, command)
            if named not in helps:
                assert main([*named, "--help-all" if named == ("serve",) else "--help"]) == 0, (page, command)
                helps[named] = set(capsys.readouterr().out.replace(",", "").split())
            assert {word for word in words if word.startswith("--")} <= helps[named], (page, command)


def test_every_option_that_is_named_exists(capsys: pytest.CaptureFixture[str]) -> None:
    known = {option.flag for option in declared_options()} | {"--install-completion", "--help"}
    known |= set(re.findall(r"--[a-z][a-z-]+", text_of(DOCS / "reference" / "command-line.md")))
    known |= {f"--no-{option.flag.removeprefix('--')}" for option in declared_options() if option.is_switch}
    for page in WRITTEN:
        if page.name not in ("cluster.md", "figures.md"):  # these pages show other programs' options
            named = {flag for span in spans(page) if span.startswith("--") for flag in re.findall(r"--[a-z-]+", span)}
            assert named <= known, page


PATHS = re.compile(r"(?:edgeagent|examples|tests|packaging|models|docs)/[\w./-]+|Makefile|README\.md|CONTRIBUTING\.md")


def test_every_path_that_is_named_exists() -> None:
    checked = 0
    for page in WRITTEN:
        for span in spans(page):
            if PATHS.fullmatch(span):
                assert (ROOT / span).exists(), (page, span)
                checked += 1
    assert checked > 20


ARCHITECTURE = sorted((DOCS / "architecture").glob("*.md"))
PACKAGES = {path.stem for path in (ROOT / "edgeagent").iterdir()}
NAMES = sorted(
    {
        span
        for page in ARCHITECTURE
        for span in spans(page)
        if re.fullmatch(r"[a-z_]+(\.\w+)+", span)
        and span.split(".")[0] in PACKAGES
        and not re.search(r"\.(toml|json|py|md)$", span)
    }
)


@pytest.mark.parametrize("name", NAMES)
def test_each_name_in_the_architecture_s_pages_exists(name: str) -> None:
    assert pkgutil.resolve_name(f"edgeagent.{name}")


SOURCES = [path for folder in ("edgeagent", "tests", "packaging", "examples") for path in (ROOT / folder).rglob("*.py")]


@pytest.mark.parametrize("page", ARCHITECTURE, ids=name_of)
def test_each_file_that_a_page_of_the_architecture_names_exists(page: Path) -> None:
    files = [f"/{path.relative_to(ROOT).as_posix()}" for path in SOURCES]
    for span in spans(page):
        if re.fullmatch(r"\w[\w./-]*\.py|\w+(/\w+)+", span):
            is_folder = any((ROOT / folder / span).is_dir() for folder in ("", "edgeagent"))
            assert is_folder or any(file.endswith(f"/{span.removesuffix('.py')}.py") for file in files), span


@functools.cache
def words_of_the_source() -> set[str]:
    return set(re.findall(r"\w+", "".join(path.read_text(encoding="utf-8") for path in SOURCES)))


@pytest.mark.parametrize("page", ARCHITECTURE, ids=name_of)
def test_each_word_of_code_on_a_page_of_the_architecture_is_in_the_source(page: Path) -> None:
    words = words_of_the_source()
    named = {span.removesuffix("()") for span in spans(page)}
    identifiers = {span for span in named if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", span)}
    files = {path.name for path in SOURCES} | {path.name for path in ROOT.iterdir()}
    assert not {name for name in identifiers - files if not words.issuperset(name.split("."))}
    if page.name == "change.md":
        assert {"MAX_BLOCK_TOKENS", "allocate", "Drafters.planning_share"} <= identifiers


@pytest.mark.parametrize("name", ["request", "cache"])
def test_the_picture_of_a_way_has_the_stations_of_its_list(name: str) -> None:
    text = text_of(DOCS / "architecture" / f"{name}.md")
    picture = text.split("```text\n")[1].split("```")[0]
    drawn = {int(number): title for number, title in re.findall(r"\b(\d+) ([A-Z][A-Za-z-]+(?: [a-z]+)?)", picture)}
    listed = re.findall(r"^(\d+)\. \*\*(.+?)\.\*\*(.*?)(?=^\d+\. |\n\n)", text, re.MULTILINE | re.DOTALL)
    assert drawn == {int(number): title for number, title, _ in listed}
    assert 8 < len(listed) <= 12
    for _, title, told in listed:
        assert re.search(r"`(\w+/)*\w+\.py`", told), title  # its file
        assert "Fails:" in told, title


def test_each_station_of_a_request_says_its_object_and_what_goes_in_and_out() -> None:
    text = text_of(DOCS / "architecture" / "request.md")
    listed = re.findall(r"^\d+\. \*\*(.+?)\.\*\*(.*?)(?=^\d+\. |\n\n)", text, re.MULTILINE | re.DOTALL)
    for title, told in listed:
        assert "In:" in told and "Out:" in told, title
        (first, *_) = re.findall(r"`((?:\w+/)+\w+\.py)`", told)
        source = (ROOT / "edgeagent" / first).read_text(encoding="utf-8")
        assert title in ("Gate", "Handler") or f"\nclass {title}" in source, (title, first)


def test_every_route_and_target_that_is_named_exists() -> None:
    makefile = text_of(ROOT / "Makefile")
    for page in WRITTEN:
        routes = [span for span in spans(page) if re.fullmatch(r"(GET|POST|DELETE) /[\w/{}-]+", span)]
        if page.name != "cluster.md":
            assert {route.split(" ")[1] for route in routes} <= set(NEEDS), page
        for target in re.findall(
            r"^(?:[A-Z_]+=\S+ )?make ([a-z][a-z-]+)", "\n".join([*spans(page), *_blocks(page)]), re.M
        ):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), (page, target)


def test_the_table_of_compatibility_has_every_route_of_another_api() -> None:
    table = {span.split(" ")[-1] for span in spans(DOCS / "reference" / "compatibility.md")}
    for route in ROUTES.values():
        path = route.template.replace(":path", "")
        if route.tag not in ("daemon", "page"):
            assert {path, f"…/{path.rsplit('/')[-1]}"} & table, route.name


def _blocks(page: Path) -> list[str]:
    return re.findall(r"^```(?:text)?\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)


SETTINGS = [
    (name_of(page), block)
    for page in WRITTEN
    if page.name != "remote.md"  # its file is a policy: below
    for block in re.findall(r"^```toml\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)
]


@pytest.mark.parametrize(("page", "block"), SETTINGS)
def test_every_config_file_that_is_shown_is_valid(page: str, block: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(block, encoding="utf-8")
    assert load_config({}, file).file == file


def test_every_metric_that_the_guide_to_remotes_names_exists() -> None:
    exported = set(re.findall(r"^# TYPE (\S+)", exposition(Snapshot([], 0)).decode(), re.MULTILINE))
    assert set(re.findall(r"`(edgeagent_[a-z_]+)`", text_of(DOCS / "remote.md"))) <= exported


def test_the_guides_table_of_modes_is_whole_and_in_order() -> None:
    section = text_of(DOCS / "remote.md").split("## Where a request may run")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [mode.value for mode in RouteMode]


def test_the_guides_policy_is_whole_and_right(machine_policy: Path) -> None:
    (example,) = re.findall(r"^```toml\n(.*?)^```$", text_of(DOCS / "remote.md"), re.MULTILINE | re.DOTALL)
    machine_policy.write_text(example, encoding="utf-8")
    machine_policy.chmod(0o644)
    policy = load_policy(machine_policy)
    assert policy is not None and set(described(policy)) == set(MachinePolicy.__struct_fields__)
    assert set(described(policy)["budget"]) == set(Budget.__struct_fields__)


NUMBERS = [
    ("architecture/engine.md", f"at least {MIN_CHUNK} tokens, beside streams {MIN_CHUNK_WITH_STREAMS},"),
    ("architecture/engine.md", f"on a slow machine {MIN_SLOW_CHUNK}."),
    ("architecture/engine.md", f"beside at least {MIN_ROWS_WITH_STREAMS} embeddings of the chunk."),
    ("architecture/cache.md", f"covers {MIN_BLOCK_TOKENS} to {MAX_BLOCK_TOKENS} consecutive tokens"),
    ("architecture/cache.md", f"that fits into {BLOCK_BYTES >> 20} MiB, but not fewer than {MIN_BLOCK_TOKENS} "),
    ("architecture/cache.md", f"may have as few as {MIN_PART}."),
    ("architecture/cache.md", f"uses at least {MIN_CUT} tokens of it."),
    ("architecture/request.md", f"up to {AHEAD_TOKENS} tokens of the answer"),
    ("guides/voice-assistant.md", f"up to {AHEAD_TOKENS} tokens"),
    ("remote.md", f"rests for {OPEN_S:g} s after {'five' if MAX_FAILURES == 5 else MAX_FAILURES} failures in a row"),
    ("access.md", f"connections ({ServerConfig.max_connections})"),
    ("howto/latency.md", f"{OBJECTIVE:.0%}".replace("%", " % of answers")),
    ("howto/models.md", f"at most `--draft-tokens` ({EngineConfig().draft_tokens})"),
    ("howto/schemas.md", f"| one schema | {MAX_SCHEMA_BYTES:,} bytes, {MAX_SCHEMA_DEPTH} levels |"),
    ("howto/schemas.md", f"| tools | {MAX_TOOLS}, with {MAX_GRAMMAR_CHARS:,} characters of schemas |"),
    ("howto/schemas.md", f"must match at once | {MAX_JOINED} |"),
    ("howto/schemas.md", f"| compiling one grammar | {GRAMMAR_CPU_S:g} s of CPU time"),
    ("howto/schemas.md", f"the rendering of one request | {REQUEST_CPU_S:g} s of CPU time each |"),
    ("howto/schemas.md", f"| digits of a number | {MAX_DIGITS} before the point and {MAX_DIGITS} after it"),
    ("howto/schemas.md", f"ends after {MAX_EQUAL_ELEMENTS} equal elements in a row"),
    ("howto/schemas.md", f"ends after {MAX_REPEATS} equal digits or blanks"),
]


@pytest.mark.parametrize(("page", "sentence"), NUMBERS)
def test_a_number_in_prose_is_that_of_the_code(page: str, sentence: str) -> None:
    assert sentence in " ".join(text_of(DOCS / page).split())


def test_enough_is_checked() -> None:
    assert len(NAMES) > 10
    assert sum(len(commands(page)) for page in WRITTEN) > 60
    assert SETTINGS


def test_lines_of_prose_fit_a_window() -> None:
    for page in WRITTEN:
        code = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
        long = [line for line in code.splitlines() if len(line) > MAX_CHARS and not line.startswith("|")]
        assert not long, (page, long)
