"""The options: one declaration, four sources, and errors that locate the mistake."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from edgeagent.cli import main
from edgeagent.config import Config, ModelConfig, TierConfig
from edgeagent.config_sources import declared_options, default_config_file, load_config
from edgeagent.errors import ConfigError


@pytest.fixture(autouse=True)
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Remove the developer's own settings, and return the path for a test's config file."""
    for variable in list(os.environ):
        if variable.startswith("EDGEAGENT_"):
            monkeypatch.delenv(variable)
    path = tmp_path / "config.toml"
    monkeypatch.setattr("edgeagent.config_sources.default_config_file", lambda: path)
    return path


def test_without_sources_every_option_has_its_default() -> None:
    loaded = load_config()
    assert loaded.config == Config()
    assert set(loaded.provenance.values()) == {"default"}
    assert set(loaded.provenance) == {option.name for option in declared_options()}


def test_each_source_outranks_the_next(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config_file.write_text("[engine]\nctx = 1\nparallel = 1\nthreads = 1\n")
    monkeypatch.setenv("EDGEAGENT_ENGINE__CTX", "2")
    monkeypatch.setenv("EDGEAGENT_ENGINE__PARALLEL", "2")
    loaded = load_config({"engine.ctx": "3"})
    engine = loaded.config.engine
    assert (engine.ctx, engine.parallel, engine.threads, engine.batch) == (3, 2, 1, 512)
    assert loaded.provenance["engine.ctx"] == "--ctx"
    assert loaded.provenance["engine.parallel"] == "environment (EDGEAGENT_ENGINE__PARALLEL)"
    assert loaded.provenance["engine.threads"] == f"file ({config_file}:4)"
    assert loaded.provenance["engine.batch"] == "default"


def test_constructing_a_config_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEAGENT_MODEL", "elsewhere")
    assert Config().model == "builtin"
    assert load_config().config.model == "elsewhere"


def test_text_names_several_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEAGENT_ENGINE__TENSOR_SPLIT", "3, 1")
    config = load_config({"server.allowed_origins": "http://a,http://b"}).config
    assert config.engine.tensor_split == (3.0, 1.0)
    assert config.server.allowed_origins == ("http://a", "http://b")


def test_the_home_folder_is_filled_in(config_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("EDGEAGENT_STATE_DIR", "~/state")
    config_file.write_text('store = { models_dir = "~/models" }\nserver = { unix = "~/socket" }\n')
    config = load_config({"cache.dir": Path("~/cache")}).config
    assert config.state_dir == tmp_path / "state"
    assert config.cache_dir == tmp_path / "cache"
    assert config.store.models_dir == tmp_path / "models"
    assert config.server.unix == tmp_path / "socket"


def test_a_file_may_name_several_values_and_nest_as_it_likes(config_file: Path) -> None:
    config_file.write_text(
        'server.allowed_hosts = ["a", "b"]\nlog = {level = "debug"}\n[engine]\ntensor_split = [1, 2]\n'
    )
    config = load_config().config
    assert config.server.allowed_hosts == ("a", "b")
    assert config.log.level == "debug"
    assert config.engine.tensor_split == (1.0, 2.0)


@pytest.mark.parametrize(
    ("text", "line", "hint"),
    [
        ("[engine]\nctx = 1\nparalel = 2\n", 3, "engine.parallel"),
        ("prot = 1\n", 1, "server.port"),
        ("[server]\nport = 1\n[engin]\nctx = 2\n", 4, "engine.ctx"),
        ("# note\nengine.thread = 1\n", 2, "engine.threads"),
    ],
)
def test_an_unknown_key_in_the_file_names_its_line_and_what_was_meant(
    config_file: Path, text: str, line: int, hint: str
) -> None:
    config_file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config()
    assert f"{config_file}:{line}:" in caught.value.message
    assert f"did you mean {hint}?" in caught.value.message


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("EDGEAGENT_ENGINE__CTXS", "EDGEAGENT_ENGINE__CTX"),
        ("EDGEAGENT_ENGINE_CTX", "EDGEAGENT_ENGINE__CTX"),
        ("EDGEAGENT_PORT", "EDGEAGENT_SERVER__PORT"),
        ("EDGEAGENT_SERVER", "config show"),
    ],
)
def test_an_unknown_variable_is_an_error(monkeypatch: pytest.MonkeyPatch, variable: str, hint: str) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ConfigError, match=f"environment variable {variable}: .*") as caught:
        load_config()
    assert hint in caught.value.message


@pytest.mark.parametrize(
    ("option", "flag", "told"),
    [
        ("engine.load_timeout_s", "--load-timeout-s", "a load fails after five minutes without progress"),
        ("cache.min_free_bytes", "--cache-min-free-bytes", "store.min_free_bytes holds for the cache too"),
        ("engine.draft_ngrams", "--no-draft-ngrams", "set draft to ngram"),
        ("router.interactive_token_s", "--target-interactive-token-s", "set token_s in .tiers.interactive. of config"),
        ("engine.side_prefill", "--no-side-prefill", "a long prompt beside streams has a context of its own"),
    ],
)
def test_a_removed_option_says_what_holds_instead(
    config_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: str,
    flag: str,
    told: str,
) -> None:
    assert main(["config", "show", flag]) == 2
    assert re.search(f"{flag} was removed: {told}", capsys.readouterr().err)
    section, _, key = option.partition(".")
    config_file.write_text(f"[{section}]\n{key} = 1\n")
    with pytest.raises(ConfigError, match=f":2: {option}: this option was removed: {told}"):
        load_config()
    config_file.write_text(f"[models.a]\nengine = {{ {key} = 1 }}\n" if section == "engine" else "")
    if section == "engine":
        with pytest.raises(ConfigError, match=f"{option}: this option was removed: {told}"):
            load_config()
    config_file.unlink()
    variable = f"EDGEAGENT_{option.replace('.', '__').upper()}"
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ConfigError, match=f"{variable}: this option was removed: {told}"):
        load_config()


def test_a_bad_value_names_the_option_the_value_and_its_source(
    config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_file.write_text("[server]\n\nport = 70000\n")
    monkeypatch.setenv("EDGEAGENT_LOG__LEVEL", "loud")
    with pytest.raises(ConfigError) as caught:
        load_config({"engine.ctx": "many"})
    message = caught.value.message
    assert message.split("; ") == [
        f"{config_file}:3: server.port: must be a whole number from 0 to 65535, not 70000",
        "--ctx: must be a whole number from 0 to 2147483647, not 'many'",
        "EDGEAGENT_LOG__LEVEL: must be one of debug, info, warning, error, not 'loud'",
    ]
    assert "65535" in message


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("engine.ctx", "4294967296"),
        ("engine.batch", "4294967328"),
        ("engine.gpu_layers", "4294967297"),
        ("engine.main_gpu", "4294967296"),
        ("engine.threads", "513"),
        ("engine.hang_timeout_s", "inf"),
        ("engine.itl_budget_ms", "inf"),
        ("store.min_free_bytes", str(2**63)),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_starts(option: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"^--[a-z-]+: must be .* not '?{value}'?$"):
        load_config({option: value})


@pytest.mark.parametrize(
    "address",
    ["sqlite", "redis://kv", "rediss://me@kv.example:6380/2", "redis://[::1]:6379", "unix:///run/redis.sock"],
)
def test_a_store_of_answers_is_a_file_or_a_server(address: str) -> None:
    assert load_config({"answers.store": address}).config.answers.store == address


@pytest.mark.parametrize(
    "address", ["", "mysql", "http://kv", "redis://", "redis://kv?db=1", "unix://kv", "redis://kv/x"]
)
def test_another_store_of_answers_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="must be sqlite, redis://HOST:PORT/DB"):
        load_config({"answers.store": address})


@pytest.mark.parametrize("address", ["redis://:hush@kv", "rediss://me:hush@kv:1/2", "unix://:hush@/run/redis.sock"])
def test_a_password_in_the_address_of_a_store_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(ConfigError, match="must have no password") as refused:
        load_config({"answers.store": address})
    assert "hush" not in refused.value.message


@pytest.mark.parametrize("origin", ["*", "http://localhost:3000/", "localhost:3000", "https://*.example", "http://Box"])
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match="is not an Origin"):
        load_config({"server.allowed_origins": f"http://a,{origin}"})
    assert load_config({"server.allowed_origins": "http://a:1,tauri://localhost,file://"}).config
    with pytest.raises(ConfigError, match="null is the Origin of all sandboxed pages"):
        load_config({"server.allowed_origins": "http://a,null"})


@pytest.mark.parametrize("host", ["http://box", "box/", "*.example"])
def test_a_host_that_no_client_sends_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="is not a Host"):
        load_config({"server.allowed_hosts": f"a,[::1]:80,{host}"})


def test_a_quantized_v_cache_without_flash_attention_is_refused_before_anything_loads() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"engine.flash_attention": "off", "engine.kv_type_v": "q8_0"})
    assert caught.value.message.startswith(
        "--kv-type-v: q8_0 is quantized, and a quantized V cache needs flash attention"
    )


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("server.port", "x", "--port: must be a whole number from 0 to 65535, not 'x'"),
        ("engine.ctx", "1.5", "--ctx: must be a whole number from 0 to 2147483647, not '1.5'"),
        ("cache.disk_bytes", "-1", "--cache-disk-bytes: must be a whole number of 0 or more, not '-1'"),
        ("engine.itl_budget_ms", "fast", "--itl-budget-ms: must be a number of more than 0, not 'fast'"),
        ("engine.itl_budget_ms", "0", "--itl-budget-ms: must be a number of more than 0, not '0'"),
        ("engine.tensor_split", "1,x", "--tensor-split: each must be a number, not 'x'"),
        ("engine.tensor_split", "1,nan", "--tensor-split: each must be a finite number of 0 or more, not nan"),
        ("engine.tensor_split", "1,-1", "--tensor-split: each must be a finite number of 0 or more, not -1.0"),
        ("engine.mmap", "perhaps", "--mmap: must be true or false, not 'perhaps'"),
        ("engine.flash_attention", "maybe", "--flash-attention: must be one of auto, on, off, not 'maybe'"),
        ("server.allowed_hosts", "a b", "--allowed-hosts: a b is not a Host"),
        ("model", ["a"], "--model: must be text, not ['a']"),
        ("state_dir", 5, "--state-dir: must be text, not 5"),
        ("draft", "", "--draft: must be auto, none, ngram or the name of a model, not empty"),
        ("server.allowed_origins", ["http://x", 5], "--allowed-origins: each must be text, not 5"),
        ("server.port", True, "--port: must be a number, not True"),
        ("engine.itl_budget_ms", True, "--itl-budget-ms: must be a number, not True"),
        ("load.keep_alive", True, "--keep-alive: must be text, not True"),
        ("server.token_required", 1, "--token-required: must be true or false, not 1"),
    ],
)
def test_what_is_wrong_with_a_value_is_said_in_our_words(option: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({option: value})
    assert caught.value.message.startswith(words)
    assert load_config({"engine.kv_type_k": "q8_0", "engine.flash_attention": "off"}).config.engine.kv_type_k == "q8_0"
    assert load_config({"engine.kv_type_v": "q8_0"}).config.engine.kv_type_v == "q8_0"


def test_a_section_that_is_no_table_is_an_error(config_file: Path) -> None:
    config_file.write_text("engine = 3\n")
    with pytest.raises(ConfigError, match=r"config\.toml:1.*engine"):
        load_config()


def test_a_broken_file_is_an_error(config_file: Path) -> None:
    config_file.write_text("[engine\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config()


def test_a_folder_that_is_closed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_file(path: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "is_file", is_file)
    with pytest.raises(ConfigError, match=r"config\.toml: cannot be read: .*Permission denied"):
        load_config()


def test_a_file_that_was_asked_for_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no such config file"):
        load_config(file=tmp_path / "missing.toml")
    monkeypatch.setenv("EDGEAGENT_CONFIG", str(tmp_path / "gone.toml"))
    with pytest.raises(ConfigError, match=r"gone\.toml"):
        load_config()


def test_a_file_can_be_named_by_flag_or_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.toml").write_text('model = "a"')
    (tmp_path / "b.toml").write_text('model = "b"')
    monkeypatch.setenv("EDGEAGENT_CONFIG", str(tmp_path / "a.toml"))
    assert load_config().config.model == "a"
    assert load_config(file=tmp_path / "b.toml").config.model == "b"


def test_every_option_says_what_it_is_for_and_has_its_own_flag() -> None:
    options = list(declared_options())
    assert [option.name for option in options if not option.help] == []
    flags = [option.flag for option in options]
    assert len(set(flags)) == len(flags)
    assert {"--draft", "--host", "--port", "--ctx", "--parallel", "--threads", "--gpu-layers", "--state-dir"} <= set(
        flags
    )


def test_every_variable_reaches_its_option(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = {"tuple": "7", "bool": "true", "NoneType": "x", "PosixPath": "x", "WindowsPath": "x", "str": "x"}
    for option in declared_options():
        monkeypatch.setenv(
            option.variable, option.choices[0] if option.choices else samples.get(type(option.default).__name__, "33")
        )
    monkeypatch.setenv("EDGEAGENT_ENGINE__DRAFT_TOKENS", "7")
    monkeypatch.setenv("EDGEAGENT_ENGINE__NICE", "7")
    monkeypatch.setenv("EDGEAGENT_ANSWERS__MAX_AGE", "7m")
    monkeypatch.setenv("EDGEAGENT_ANSWERS__MAX_ERROR", "0.1")
    monkeypatch.setenv("EDGEAGENT_ANSWERS__STORE", "redis://7")
    monkeypatch.setenv("EDGEAGENT_SERVER__ALLOWED_ORIGINS", "http://7")
    monkeypatch.setenv("EDGEAGENT_LOAD__KEEP_ALIVE", "7")
    sources = load_config().provenance
    assert sources == {option.name: f"environment ({option.variable})" for option in declared_options()}


def test_the_default_file_is_the_users_own() -> None:
    assert default_config_file().name == "config.toml"
    assert "edgeagent" in default_config_file().parts[-2]


def test_the_file_has_options_of_single_models(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        "[engine]\nctx = 100\nparallel = 2\n"
        '[models."qwen3:4b"]\nkeep_alive = "1h"\npreload = true\nengine = {ctx = 200}\n'
    )
    config = load_config({}, file).config
    assert (config.engine_of("qwen3:4b").ctx, config.engine_of("qwen3:4b").parallel) == (200, 2)
    own = config.models["qwen3:4b"]
    assert (config.engine_of("other").ctx, own.keep_alive, own.preload) == (100, "1h", True)


def test_the_file_has_targets_and_budgets_of_tiers(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[tiers.realtime]\nfirst_token_s = 0.3\n[tiers.batch]\nmax_output_tokens = 100\n")
    config = load_config({}, file).config
    realtime = config.tier("realtime")
    assert (realtime.first_token_s, realtime.token_s, realtime.max_output_tokens) == (0.3, None, None)
    assert config.tier("batch").max_output_tokens == 100
    assert config.tier("interactive") == TierConfig()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[tiers.fast]\ntoken_s = 1",
            r"\[tiers.fast\]: there is no such tier; the tiers are realtime, .*, batch$",
        ),
        ("[tiers]\nrealtime = 5", r"tables of tiers look like \[tiers.NAME\], not 5$"),
        ("[tiers.batch]\ntokens = 1", r"\[tiers.batch\] tokens: there is no such option; did you mean token_s\?$"),
        ("[tiers.batch]\ntoken_s = 0", r"token_s: must be a number of seconds of more than 0 to 3600, not 0$"),
        ("[tiers.batch]\nfirst_token_s = inf", r"first_token_s: must be a number of .* to 3600, not inf$"),
        ("[tiers.batch]\ntoken_s = nan", r"token_s: must be a number of seconds .*, not nan$"),
        ("[tiers.batch]\nmax_prompt_tokens = 0", r"max_prompt_tokens: must be a whole number of 1 or more, not 0$"),
    ],
)
def test_a_wrong_option_of_a_tier_is_named(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=told):
        load_config({}, file)


@pytest.mark.parametrize(
    ("common", "own", "drafts"),
    [("ngram", "auto", True), ("ngram", "none", False), ("none", "ngram", True), ("auto", "other", False)],
)
def test_a_model_s_own_drafts_replace_the_common_ones(common: str, own: str, *, drafts: bool) -> None:
    config = Config(draft=common, models={"a": ModelConfig(draft=own)})
    assert config.engine_of("a").draft_ngrams == drafts
    assert config.engine_of("b").draft_ngrams == (common == "ngram")


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("engine = {ctx = -1}", r'\[models."a"\] engine.ctx: must be a whole number from 0 to \d+, not -1$'),
        ('engine = {ctx = "x"}', r"engine.ctx: must be a whole number from 0 to \d+, not 'x'$"),
        ("engine = {mmap = 1}", r"engine.mmap: must be true or false, not 1$"),
        ("engine = {tensor_split = [1, 'x']}", r"engine.tensor_split.1: each must be a number, not 'x'$"),
        ("draft = ''", r"draft: must be auto, none, ngram or the name of a model, not empty$"),
        ("preload = 1", r"preload: must be true or false, not 1$"),
        ("engine = {cxt = 1}", r'\[models."a"\] engine.cxt: there is no such option$'),
        ("engine = 5", "engine: must be a table of options, .* not 5$"),
        ("preload = 'maybe'", "preload: must be true or false, not 'maybe'$"),
        ("prefixes = 'x'", r"prefixes: must be a list of files, .* not 'x'$"),
        ("prefixes = [5]", r"prefixes.0: must be the path of a file, not 5$"),
        ("adapters = [5]", r"adapters: must be a table of files, .* not \[5\]$"),
        ("adapters = {'a b' = 'x'}", r"adapters.a b: must be a name of at most 64 .* not 'a b'$"),
        ("adapters = {a = 5}", r"adapters.a: must be the path of a file, not 5$"),
        ("draft = 5", r"draft: must be auto, none, ngram or the name of a model, not 5$"),
        ("keep_alive = [5]", r"keep_alive: must be a number of seconds .* not \[5\]$"),
        ('keep_alive = "soon"', "soon"),
        ("pinned = true", r'\[models."a"\] pinned: there is no such option$'),
    ],
)
def test_a_wrong_option_of_a_single_model_is_named(tmp_path: Path, table: str, told: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[models.a]\n{table}\n")
    with pytest.raises(ConfigError, match=told):
        load_config({}, file)
