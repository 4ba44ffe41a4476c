"""A loaded model inside the worker: weights, engine and text tools wired together, without pipes and threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from edgeagent.config import EngineConfig
from edgeagent.engine.cache.block import MAX_BLOCK_TOKENS, MIN_BLOCK_TOKENS, choose_block_tokens
from edgeagent.engine.cache.disk.store import BlockStore
from edgeagent.engine.cache.prefix_store import PrefixStore, make_table
from edgeagent.engine.costs.cost_model import CostModel
from edgeagent.engine.cpu_threads import ThreadGovernor
from edgeagent.engine.engine import Engine
from edgeagent.engine.first_steps import FIRST_STEPS, allow_mix, can_rewind, measure_small_steps, try_adapter, try_out
from edgeagent.engine.llama.cell_packing import CellPacker
from edgeagent.engine.llama.context import Adapter, LlamaRunner, attention_of
from edgeagent.engine.llama.cores import num_usable_cores
from edgeagent.engine.llama.embedder import Embedder
from edgeagent.engine.llama.fingerprint import machine_conditions
from edgeagent.engine.llama.model import Model
from edgeagent.engine.llama.projector import Projector
from edgeagent.engine.media_tokens import is_medium
from edgeagent.engine.runner import CUTTABLE, OutOfCells
from edgeagent.engine.sampling.params import resolve
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.speculation.ngram import NgramDrafter
from edgeagent.engine.speculation.proposals import Drafters
from edgeagent.errors import (
    EdgeAgentError,
    InternalError,
    InvalidRequest,
    ModelDamaged,
    ModelLoadFailed,
    NotSupported,
    TemplateTooSlow,
)
from edgeagent.fit.attention import describe_attention
from edgeagent.fit.need import CONTEXT_STEP
from edgeagent.text.grammar.calls import CallBan
from edgeagent.text.grammar.compiler import GrammarCompiler
from edgeagent.text.grammar.constraint import Constraint
from edgeagent.text.output.prompt_text import PromptEcho
from edgeagent.text.output.stream import OutputStream
from edgeagent.text.tool_format import REASONING
from edgeagent.text.vocabulary import LongTextVocabulary, special_texts
from edgeagent.types import (
    CacheStatus,
    ChatPrompt,
    GenerateRequest,
    ModelInfo,
    QueryAnswer,
    SettingChoice,
    TextQuery,
)
from edgeagent.worker.child.generator.block_keys import BlockKeys
from edgeagent.worker.child.generator.continuation import read_continuation
from edgeagent.worker.child.generator.draft import DRAFT_SHARE, DraftLoader, DraftSetup
from edgeagent.worker.child.generator.media import NOTHING_READ, BeginRead, MediaReader, Reading
from edgeagent.worker.child.generator.prepared_request import PreparedRequest, make_spec, read_choices
from edgeagent.worker.child.generator.side_context import side_contexts
from edgeagent.worker.child.opening import Opened
from edgeagent.worker.child.prompt import (
    PromptReader,
    ReadPrompt,
    TextReader,
    answer_query,
    check_budget,
    describe_no_media,
    make_template,
)
from edgeagent.worker.protocol import (
    FULL_POWER,
    NOTHING_DELIVERED,
    Delivered,
    Load,
    adapter_part,
    projector_part,
    rewind_part,
)
from edgeagent.worker.render.renderer import MakeTemplate, Renderer


@dataclass(frozen=True, slots=True)
class Adapters:
    """A model's adapters by name: the identities of the usable ones, and why each of the others is unusable."""

    identities: Mapping[str, str]
    unusable: Mapping[str, str]

    def identity(self, name: str) -> str:
        """Return the identity of an adapter; "" for the name "". Raise ModelDamaged if the adapter cannot be used."""
        if not name:
            return ""
        if name in self.unusable:
            why = self.unusable[name].rstrip(".")
            raise ModelDamaged(
                f"the adapter {name} cannot be used: {why}; fix the file and reload the model", param="model"
            )
        return self.identities[name]


def load_adapters(
    runner: LlamaRunner, paths: Mapping[str, str], unusable: Mapping[str, str], on_part: Callable[[str], None]
) -> Adapters:
    """Load a model's adapters and try each once. An adapter that does not fit the model or fails is unusable.

    `paths` maps the adapters' names to files. `unusable` maps the names of adapters that are already known to be
    unusable to the reasons. Before an adapter is tried, `on_part` gets a description of the adapter, since a damaged
    adapter may crash the process.
    """
    found, refused = {}, dict(unusable)
    for name, path in paths.items():
        on_part(adapter_part(path))
        try:
            adapter = Adapter(runner.model, Path(path))
            runner.add_adapter(adapter)
            runner.use_adapter(adapter.id)
            try_adapter(runner, adapter.path)
        except (InternalError, ModelLoadFailed) as error:
            refused[name] = error.message
            continue
        except OutOfCells:
            refused[name] = "the context has no room for its trial"
            continue
        except OSError as error:
            refused[name] = f"{path} cannot be read: {error.strerror}"
            continue
        found[name] = adapter.id
    runner.use_adapter("")
    return Adapters(found, refused)


_DRAFTS = "drafts"


def check_drafts(
    model: Model, runner: LlamaRunner, load: Load, choices: Sequence[SettingChoice], on_part: Callable[[str], None]
) -> tuple[str, tuple[SettingChoice, ...]]:
    """Return why a model cannot use drafts, and its choices. If it can, return "" and `choices`.

    If it cannot, the choice named "drafts" is set to "none", with the reason, in the returned choices. Before a
    computation that may end the process, `on_part` gets a description of it. The runner's cells must be empty before
    the call, and are empty again afterwards.
    """
    if load.why_no_drafts:
        return load.why_no_drafts, _without(choices, "trial", load.why_no_drafts)
    if model.memory_kind in CUTTABLE:
        return "", tuple(choices)
    planned = next((choice for choice in choices if choice.name == _DRAFTS), None)
    if runner.max_rewind:
        on_part(rewind_part(load.path))
        try:
            if can_rewind(runner):
                return "", tuple(choices)
            by, why = "measurement", "after a refused draft was removed, the model computed other results than before"
        except (InternalError, OutOfCells) as error:
            by, why = "trial", f"removing refused drafts was tried and failed ({error})"
        finally:
            on_part(f"{FIRST_STEPS} of {load.path}")  # which are computed next
    elif planned is not None and planned.value == "none":
        by, why = planned.by, planned.why
    else:
        architecture = model.metadata("general.architecture") or "unknown"
        by = "default"
        why = (
            f"a refused draft cannot be removed from a {model.memory_kind} memory: llama.cpp keeps no earlier states "
            f"of it for the architecture {architecture}"
        )
    return why, _without(choices, by, why)


def _without(choices: Sequence[SettingChoice], by: str, why: str) -> tuple[SettingChoice, ...]:
    """Return `choices` with the choice named "drafts" set to "none", for the reason `why`."""
    return (*(choice for choice in choices if choice.name != _DRAFTS), SettingChoice(_DRAFTS, "none", by, why))


_BY = "model"


def derived_choices(runner: LlamaRunner, block_tokens: int, token_bytes: float) -> tuple[SettingChoice, ...]:
    """Return the settings that follow from the model's shape, for the status.

    `token_bytes` is how many bytes one token takes in a cached block.
    """
    return _block(block_tokens, token_bytes), _padding(runner)


def _block(num_tokens: int, token_bytes: float) -> SettingChoice:
    size = f"they take {num_tokens * token_bytes / (1 << 20):.2g} MiB, at {token_bytes / 1024:.3g} KiB for each token"
    bounds = (
        f"a block has {MIN_BLOCK_TOKENS} to {MAX_BLOCK_TOKENS} tokens, and is small enough to be read between steps"
    )
    return SettingChoice("cache block", f"{num_tokens} tokens", _BY, f"{size}; {bounds}")


def _padding(runner: LlamaRunner) -> SettingChoice:
    name, tile = "padding for attention", runner.attention_tile
    if not tile:
        why = "this form of attention, or this model's memory, has no tiles that padding would fill"
        return SettingChoice(name, "none", _BY, why)
    why = "flash attention computes whole tiles; a batch is padded only if that should be faster"
    return SettingChoice(name, f"to {tile} tokens", _BY, why)


_OPEN_S = 1.0  # how long to wait for the list of the disk's blocks; the rest of a longer list is added afterwards


class Host:
    """One model, ready to serve. While the engine computes, one other thread may call `prepare`.

    Only the engine's thread may call the other methods, except where a docstring allows other threads.
    """

    def __init__(
        self,
        load: Load,
        opened: Opened,
        make: MakeTemplate,
        sandbox: tuple[str, ...] = (),
        store: BlockStore | None = None,
        on_part: Callable[[str], None] = lambda _: None,
        started_s: float | None = None,
    ) -> None:
        """Make a model ready; raise ModelLoadFailed if it cannot be served.

        `make` makes a chat template. `sandbox` is shown in the status. `store` keeps blocks on disk, on its own thread.
        Before a part of a file is tried, `on_part` gets a description of the part: a damaged file may crash the
        process. `started_s` is the value of time.monotonic() when the load began; None means now.
        """
        started_s = time.monotonic() if started_s is None else started_s
        config = opened.config
        self.model = opened.model
        self.notes = opened.notes
        self.warnings: tuple[str, ...] = ()
        """The lines in `notes` and `warnings` are about this load, for the daemon's log."""
        if self.model.has_encoder:
            raise ModelLoadFailed(f"{load.path} reads its prompt with an encoder, which is not supported")
        projector, why_no_media = self._open_projector(load, opened, on_part)
        self._open_runner(opened, 0 if projector is None else projector.max_whole)
        self._adapters = load_adapters(self.runner, load.adapters, load.unusable_adapters, on_part)
        costs = CostModel(self.runner.max_batch, self.runner.attention_tile)
        self._token_bytes = try_out(self.model, self.runner, on_part, costs)
        # Mixed batches read the table of embeddings in the model's file, as llama.cpp does only with mmap.
        if projector is not None and load.projector_path is not None and config.mmap:
            on_part(projector_part(load.projector_path))  # with embeddings, llama.cpp may abort for some models
            allow_mix(self.runner)
        self._block_tokens = choose_block_tokens(self._token_bytes)
        self._store = store
        self._codec = CellPacker() if config.cache_type == "q8_0" else None
        self._block_keys = BlockKeys(load, store)
        if 0 < config.ctx < CONTEXT_STEP:
            self._note(f"--ctx {config.ctx} is less than the shortest context, which has {CONTEXT_STEP} tokens")
        for name in self._adapters.unusable.keys() - load.unusable_adapters.keys():
            self._note(f"runs without its adapter {name}: {self._adapters.unusable[name]}")
        drafters = self._make_drafters(load, opened, costs, on_part)
        self.engine = self._make_engine(load, config, costs, drafters)
        kept = self.engine.has_embeddings
        self.media = None if projector is None else MediaReader(load.name, projector, self.runner.max_whole, kept)
        """Reads images and sounds; None if the model takes none."""
        self._why_no_media = why_no_media
        self._open_text(config, make)
        self.itl_budget_s = config.itl_budget_ms / 1000
        if store is not None:
            store.wait_until_open(_OPEN_S)
            self.engine.refresh()
        load_ms = (time.monotonic() - started_s) * 1000
        self.info = self._described(opened.describe(load, sandbox, self.engine.context_length, load_ms))

    def _open_projector(
        self, load: Load, opened: Opened, on_part: Callable[[str], None]
    ) -> tuple[Projector | None, str]:
        """Open the projector. If there is none, or it cannot be used, return what clients are told who send media."""
        if load.projector_path is None:
            return None, describe_no_media(load)
        on_part(projector_part(load.projector_path))
        num_threads, gpu = opened.config.threads or num_usable_cores(), opened.projector_gpu
        try:
            return Projector(Path(load.projector_path), self.model, num_threads=num_threads, gpu=gpu), ""
        except (ModelDamaged, NotSupported, OSError) as error:
            why = error.message if isinstance(error, EdgeAgentError) else str(error)
            self._warn(f"takes no images and no sounds: {why}")
            return None, f"{load.name} takes no images and no sounds: {why}"

    def _open_runner(self, opened: Opened, max_whole: int) -> None:
        """Open the model's context (its runner). A step must have room for `max_whole` embeddings of an image."""
        config = opened.config
        attention = attention_of(self.model, config)
        attention = replace(attention, micro_batch=min(max(attention.micro_batch, max_whole), config.batch))
        self.runner = LlamaRunner(self.model, config, attention=attention, max_rewind=opened.max_rewind)
        """The model's context. Any thread may call its `request_abort`."""
        self._choices = (*opened.choices, describe_attention(attention, config, is_tuned=opened.is_tuned))
        if config.cache_shift and (why := self.runner.allow_shift()):
            self._warn(f"runs without --cache-shift: {why}")
            self._choices = (*self._choices, SettingChoice("cache shift", "off", "model", why))
        self._runners = [self.runner]
        self.power = FULL_POWER
        """How much of the machine the worker may use; another thread may replace it."""
        self._threads = ThreadGovernor(self.runner.num_threads)

    def close(self) -> None:
        """Cancel all requests, and save cached blocks to the disk cache if there is one. Call no method afterwards."""
        self.engine.close()
        self.embedder.close()
        if self.media is not None:
            self.media.encoder.stop()

    def adjust_threads(self) -> None:
        """Set the number of CPU threads as `power` says, and so that busy cores are left to other programs.

        Call this between steps.
        """
        is_limited = self._threads.limit(self.power.thread_share)
        if self._threads.update(time.monotonic()) or is_limited:
            for runner in self._runners:
                runner.set_num_threads(self._threads.num_threads)

    def rest_threads(self) -> None:
        """Record that nothing is computed now. The load of this time takes no thread away; see ThreadGovernor.rest."""
        self._threads.rest()

    def disk_cache(self) -> CacheStatus | None:
        """Return the disk cache's status; None if there is no disk cache. Any thread may call it."""
        return None if self._store is None else self._store.stats()

    @property
    def num_threads(self) -> int:
        """How many CPU threads a decode uses; any thread may read this."""
        return self.runner.num_threads

    @property
    def max_threads(self) -> int:
        """How many CPU threads a decode uses while no other program uses the CPUs."""
        return self._threads.max_threads

    @property
    def embedder_bytes(self) -> int:
        """About how much memory the context for embeddings takes, in bytes. Any thread may read this."""
        return int(self.embedder.num_cells * self._token_bytes)

    def answer(self, query: TextQuery) -> QueryAnswer:
        """Return the answer to a query about text. One thread may call this method while the other threads run."""
        template, why_none, length = self._question_template, self._why_no_media, self.engine.context_length
        return answer_query(self.model, self._vocabulary, template, query, self.media, why_none, length)

    def next_to_read(self, request: GenerateRequest, reading: Reading | None) -> BeginRead | None:
        """Return what reads one of the images and sounds of a request before `prepare`; see MediaReader."""
        prompt = request.prompt
        if self.media is None or not isinstance(prompt, ChatPrompt) or not prompt.media:
            return None
        return self.media.next_to_read(request, reading)

    @property
    def num_encoder_steps(self) -> int:
        """How often the encoder of images and sounds has made progress. Any thread may read it."""
        return 0 if self.media is None else self.media.encoder.num_steps

    @property
    def reading(self) -> tuple[str, float]:
        """The id of the request whose image or sound is decoded now, and since when; ("", 0.0) if there is none."""
        return NOTHING_READ if self.media is None else self.media.encoder.reading

    def prepare(self, request: GenerateRequest, delivered: Delivered = NOTHING_DELIVERED) -> PreparedRequest:
        """Return a request ready for the engine: render, tokenize, compile the grammar and set up the sampler.

        Sampler, grammar and output are advanced to the end of the `delivered` output, which is not sent again. Raise
        InvalidRequest (also for a prompt that is too long), NotSupported, or ModelDamaged if the adapter is unusable.
        """
        started_s = time.monotonic()
        prompt = self._prompts.read(
            request.prompt,
            request.max_tokens,
            partition=request.cache.partition,
            max_prompt=request.longest_prompt,
            is_open=request.is_ahead and request.prefill_only,
        )
        choices = None
        if request.choices:
            choices = read_choices(request, prompt, self._vocabulary, self.engine.max_choice_tokens)
        check_budget(request, len(prompt.tokens) + (0 if choices is None else sum(map(len, choices.tokens))))
        if not prompt.tokens:
            raise InvalidRequest("The prompt is empty; it must have at least one token.", param="input")
        chat = request.prompt if isinstance(request.prompt, ChatPrompt) else None
        tools = chat.tools if chat is not None and chat.tool_choice.mode != "none" else ()
        constraint = self._make_constraint(request, prompt, chat or ChatPrompt(()))
        sampler = Sampler(
            resolve(request.sampling, self._sampling),
            self.model.num_tokens,
            constraint=constraint,
            num_logprobs=request.logprobs,
            history=[token for token in prompt.tokens if not is_medium(token)] if prompt.media else prompt.tokens,
        )
        output = OutputStream(
            self.model,
            stops=request.stop,
            tool_format=self._template.tool_format if tools else None,
            tool_names=[tool.name for tool in tools],
            reasoning=() if chat is None else REASONING,
            open_reasoning=prompt.open_reasoning,
        )
        earlier, respelling = None, None
        if (so_far := delivered.so_far) is not None:
            earlier = read_continuation(request, so_far, prompt, self._vocabulary, self.engine.context_length)
            respelling = earlier.join(sampler, output, self._vocabulary)
        for token in delivered.tokens:
            sampler.accept(token)
        held = delivered.held_logprobs
        output.feed(delivered.tokens, [None] * (len(delivered.tokens) - len(held)) + list(held))
        # If tokens were delivered, the echo was sent before them.
        is_echoed = request.echo and not delivered.tokens
        num_scored = request.logprobs if is_echoed else None
        echo = None
        if is_echoed:
            is_scored = num_scored is not None
            echo = PromptEcho(self.model, prompt.tokens, prompt.text, num_added=prompt.num_added, is_scored=is_scored)
        adapter = self._adapters.identity(request.adapter)
        self._block_keys.describe_partition(request.cache, request.adapter, adapter)
        spec = make_spec(request, prompt, sampler, delivered, num_scored, adapter)
        if earlier is not None:
            spec = earlier.extend(spec)
        if choices is not None:
            spec = replace(spec, choices=choices)
        render_ms = (time.monotonic() - started_s) * 1000
        warnings = constraint.warnings if isinstance(constraint, Constraint) else ()
        return PreparedRequest(spec, output, render_ms, echo, prompt.num_dropped_items, warnings, earlier, respelling)

    def _open_template(self, make: MakeTemplate) -> Renderer:
        try:
            return make_template(self.model, self._special, make)
        except TemplateTooSlow as error:
            raise ModelLoadFailed(
                f"{self.model.path} cannot be served: trying its chat template (tokenizer.chat_template) ended in the "
                f"error: {error.message.partition('. ')[0]}"
            ) from error

    def _make_constraint(
        self, request: GenerateRequest, prompt: ReadPrompt, chat: ChatPrompt
    ) -> Constraint | CallBan | None:
        """Return what constrains a request's answer to its format and to the tools that it may call."""
        self._template.renew()
        return self._grammars.compile(
            request.format,
            tools=chat.tools,
            tool_choice=chat.tool_choice,
            parallel_tool_calls=chat.parallel_tool_calls,
            tool_format=self._template.tool_format,
            partition=request.cache.partition,
            open_reasoning=prompt.open_reasoning,
            has_called=any(message.tool_calls or message.role == "tool" for message in chat.messages),
        )

    def _make_engine(self, load: Load, config: EngineConfig, costs: CostModel, drafters: Drafters) -> Engine:
        return Engine(
            self.runner,
            max_running=config.num_parallel,
            itl_budget_s=config.itl_budget_ms / 1000,
            num_trained=self.model.context_length_trained,
            drafters=drafters,
            prefixes=self._make_prefixes(load, config, costs),
            adapters=tuple(self._adapters.identities.values()),
            open_side=side_contexts(self.runner, config, self._token_bytes),
        )

    def _open_text(self, config: EngineConfig, make: MakeTemplate) -> None:
        """Set up the objects that read and write the model's text."""
        self._sampling = self.model.default_sampling()
        self._special = special_texts(self.model)
        self._vocabulary = LongTextVocabulary(self.model, self._special)
        self._template = self._open_template(make)
        self._question_template = self._template.for_another_thread()
        self._prompts = PromptReader(
            self.model,
            self._vocabulary,
            self._template,
            self.engine.context_length,
            media=self.media,
            why_no_media=self._why_no_media,
        )
        self._grammars = GrammarCompiler(self.model, self._template.check_grammar)
        if self.model.end_tokens:
            # Later it would stop all streams: llguidance holds the interpreter's lock for up to seconds.
            self._grammars.prepare()
        self.embedder = Embedder(self.model, config, self.engine.context_length)
        self._embedding_length = 0 if self.embedder.pooling is None else self.model.embedding_length
        self.read_texts = TextReader(
            self.model, self._vocabulary, self.engine.context_length, self._embedding_length
        ).read

    def _make_prefixes(self, load: Load, config: EngineConfig, costs: CostModel) -> PrefixStore:
        keyring = self._block_keys.make(Path(load.path), self.runner, config, self._block_tokens)
        unused = self._block_keys.describe_unused()
        if unused is not None:
            self._note(unused)
        share = 1.0 if self._draft.model is None else 1.0 - DRAFT_SHARE
        kind, sizes = self.model.memory_kind, (self._token_bytes, self._block_tokens)
        blocks = make_table(kind, config, keyring, self._store, share, *sizes, codec=self._codec)
        return PrefixStore(self.runner, blocks, costs)

    def _make_drafters(self, load: Load, opened: Opened, costs: CostModel, on_part: Callable[[str], None]) -> Drafters:
        config = opened.config
        if config.draft_tokens == 0:
            self._draft = DraftSetup(None, "option", "--draft-tokens 0")
            return Drafters(max_tokens=0)
        why_none, self._choices = check_drafts(self.model, self.runner, load, self._choices, on_part)
        if why_none:
            self._draft = DraftSetup(None, "model", why_none)
            if load.draft_path is not None:
                self._warn(f"{load.path} runs without speculation: {why_none}")
            return Drafters(max_tokens=0)
        self._draft = self._load_draft(load, opened, on_part)
        model = self._draft.model
        is_asked = config.draft_ngrams or model is not None
        if is_asked:
            measure_small_steps(self.runner, costs)
        is_unwanted = load.draft_by == "option" and load.draft_path is None
        # Hybrids would have to keep states for them.
        has_ngrams = is_asked or (not is_unwanted and self.model.memory_kind in CUTTABLE)
        if has_ngrams and model is None:
            self._draft = replace(self._draft, file="ngram")
        return Drafters(
            model,
            NgramDrafter() if has_ngrams else None,
            max_tokens=config.draft_tokens,
            # --flash-attention off promises the same answer every time.
            spares_repeatable=not is_asked and self.runner.is_blocking and config.flash_attention == "off",
        )

    def _load_draft(self, load: Load, opened: Opened, on_part: Callable[[str], None]) -> DraftSetup:
        """Load the draft model. If there is none, return the reason; if it is unusable, also add a warning."""
        if load.draft_path is None:
            return DraftSetup(None, load.draft_by, load.draft_why)
        if opened.why_no_draft:
            draft = DraftSetup(None, "memory", opened.why_no_draft)
        else:
            config = opened.draft_config
            loader = DraftLoader(self.runner, config, self._block_keys, self._store, self._codec)
            draft = loader.load(load, on_part)
        if draft.runner is None:
            self._warn(f"runs without its draft: {draft.why}")
        else:
            self._runners.append(draft.runner)
        return draft

    def _warn(self, text: str) -> None:
        self.warnings = (*self.warnings, text)

    def _note(self, text: str) -> None:
        self.notes = (*self.notes, text)

    def _described(self, info: ModelInfo) -> ModelInfo:
        model = self.model
        return structs.replace(
            info,
            max_sequences=self.runner.num_sequences,
            memory_kind=model.memory_kind,
            supports_tools=self._template.supports_tools,
            supports_reasoning=self._template.supports_reasoning,
            draft=self._draft.file,
            draft_why=self._draft.why,
            conditions=machine_conditions(model.path),
            chat_template=model.chat_template or "",
            supports_infill=model.infill_tokens is not None,
            embedding_length=self._embedding_length,
            choices=(
                *self._choices,
                self._draft.choice,
                *derived_choices(self.runner, self._block_tokens, self._token_bytes),
            ),
            num_parallel=self.engine.max_running,
            media=() if self.media is None else self.media.projector.kinds,
            projector=None if self.media is None else str(self.media.projector.path),
        )
