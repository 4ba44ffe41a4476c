// The board: what the daemon does now, how fast, and its models.

import { ago, button, bytes, h, milliseconds, number, replace } from "./dom.js";
import { histogram, readBuckets } from "./plot.js";
import { ask, request, stream } from "./session.js";

const EVERY_MS = 2000;

export class Board {
  constructor(element) {
    this.element = element;
    this.timer = 0;
    this.panels = null;
    this.isUpdating = false;
  }

  show(isShown) {
    clearInterval(this.timer);
    if (!isShown) return;
    this.build();
    this.update();
    this.timer = setInterval(() => document.hidden || this.update(), EVERY_MS);
  }

  build() {
    if (this.panels) return;
    const titles = {
      daemon: "Daemon",
      ttft: "Time to the first token",
      itl: "Time between tokens",
      models: "Models",
      slo: "Latency targets",
      cache: "Prompt cache",
      drafts: "Speculation",
      pull: "Download a model",
      remotes: "Remotes",
      egress: "What left this machine",
    };
    this.panels = {};
    const widths = { models: "full", egress: "full", cache: "two" };
    const grid = h("div");
    for (const [name, title] of Object.entries(titles)) {
      this.panels[name] = h("div");
      grid.append(h("section", { class: `panel ${widths[name] ?? ""}`, "aria-label": title }, h("h2", {}, title), this.panels[name]));
    }
    this.said = h("p", { role: "status", class: "trouble" });
    replace(this.element, this.said, grid);
    this.buildPull();
  }

  async update() {
    // A slow daemon would otherwise be asked again and again.
    if (this.isUpdating) return;
    this.isUpdating = true;
    try {
      const [status, listed, slo, egress, metrics] = await Promise.all([
        ask("/edgeagent/status"),
        ask("/v1/models"),
        ask("/edgeagent/slo"),
        ask("/edgeagent/egress?limit=20"),
        request("/metrics").then((answer) => answer.text()),
      ]);
      this.said.textContent = "";
      this.showDaemon(status);
      this.showSlo(slo);
      this.showPlot("ttft", metrics, "edgeagent_first_token_seconds");
      this.showPlot("itl", metrics, "edgeagent_inter_token_seconds");
      this.showModels(status, listed.data);
      this.showCache(status);
      this.showDrafts(status);
      this.showRemotes(status.route);
      this.showEgress(egress.rows);
    } catch (error) {
      this.said.textContent =
        error.status === 403 ? "This browser may chat, but not see the board: its token lacks the scope admin." : error.message;
    } finally {
      this.isUpdating = false;
    }
  }

  put(name, ...children) {
    replace(this.panels[name], ...children);
  }

  showDaemon(status) {
    const trouble = [status.trouble, status.token_trouble, status.response_trouble].filter(Boolean);
    this.put(
      "daemon",
      facts({
        Version: status.version,
        "Running for": ago(status.uptime_s),
        "Live requests": status.num_live_requests,
        "Requests so far": number(status.num_requests_total),
        "Tokens per second": number(status.tokens_per_second, 1),
        Connections: status.num_connections,
      }),
      ...trouble.map((text) => h("p", { class: "trouble" }, text)),
      ...status.advice.map((text) => h("p", { class: "faint" }, text)),
    );
  }

  showSlo({ objective, targets, tiers }) {
    const rows = tiers
      .filter((tier) => tier.num_answers)
      .map((tier) => [
        tier.tier,
        tier.window,
        `${number(100 * tier.attainment, 1)} % of ${number(tier.num_answers)}`,
        milliseconds(targets[tier.tier].ttft_ms),
      ]);
    this.put(
      "slo",
      rows.length
        ? table("Answers that kept their target", ["tier", "window", "kept", "target"], rows)
        : faint("No answers yet."),
      faint(`Objective: ${number(100 * objective, 1)} % of the answers.`),
    );
  }

  showPlot(name, metrics, metric) {
    const counted = readBuckets(metrics, metric);
    this.put(name, counted.num ? histogram(counted, this.panels[name].parentElement.getAttribute("aria-label")) : faint("Nothing measured yet."));
  }

  // `listed`: also the models that a request would load. An adapter is loaded with its base model.
  showModels({ models, default_model: chosen }, listed) {
    const names = new Set(models.map((model) => model.name));
    const others = listed.filter(({ id, parent }) => !names.has(id) && !parent);
    const here = others.map(({ id, edgeagent }) => ({ name: id, state: edgeagent.state, num_live: 0 }));
    const rows = [...models, ...here].map((model) => {
      const isLoaded = model.state === "ready" || model.state === "starting";
      const state = model.state === "starting" ? `starting, ${Math.round(100 * model.progress)} %` : model.state;
      return [
        model.name === chosen ? `${model.name} (default)` : model.name,
        model.is_remote ? "remote" : state,
        model.worker ? bytes(model.worker.rss_bytes) : "",
        model.num_live,
        model.cause ?? "",
        model.is_remote
          ? ""
          : button(isLoaded ? "Unload" : "Load", (event) => this.change(event.currentTarget, isLoaded ? "unload" : "load", model.name), {
              class: "quiet",
              "aria-label": `${isLoaded ? "Unload" : "Load"} ${model.name}`,
            }),
      ];
    });
    // A button that has the focus stays.
    if (this.panels.models.contains(document.activeElement) && document.activeElement.disabled) return;
    const focused = this.panels.models.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
    this.put("models", rows.length ? table("Models and their state", ["model", "state", "memory", "live", "cause", ""], rows) : faint("No model."));
    if (focused) [...this.panels.models.querySelectorAll("button")].find((each) => each.getAttribute("aria-label") === focused)?.focus();
  }

  async change(pressed, act, model) {
    pressed.disabled = true;
    try {
      await ask(`/edgeagent/${act}`, { body: { model } });
      this.said.textContent = "";
    } catch (error) {
      this.said.textContent = error.message;
    }
    pressed.disabled = false;
    this.update();
  }

  buildPull() {
    const field = h("input", { id: "pull-name", autocomplete: "off", placeholder: "owner/name:Q4_K_M", maxlength: 200 });
    const bar = h("progress", { hidden: true, max: 1, value: 0, "aria-label": "Download" });
    const said = h("p", { class: "faint", role: "status" });
    const start = h("button", { type: "submit" }, "Download");
    const onsubmit = async (event) => {
      event.preventDefault();
      if (!field.value.trim()) return;
      start.disabled = true;
      bar.hidden = false;
      bar.removeAttribute("value");
      try {
        for await (const step of stream("/v1/models/pull", { body: { model: field.value.trim() } })) {
          if (step.error) throw new Error(step.error.message);
          if (step.object === "model.pull") said.textContent = `${step.id} is on this machine (${bytes(step.size_bytes)}).`;
          else {
            if (step.total_bytes) bar.value = step.done_bytes / step.total_bytes;
            said.textContent = `${step.stage} ${bytes(step.done_bytes)} of ${bytes(step.total_bytes)}`;
          }
        }
      } catch (error) {
        said.textContent = error.message;
      }
      start.disabled = false;
      bar.hidden = true;
    };
    this.put(
      "pull",
      h("form", { onsubmit }, h("label", { for: "pull-name" }, "Model"), h("div", { class: "row" }, field, start), bar, said),
    );
  }

  showCache({ models }) {
    const rows = [];
    for (const { name, worker } of models) {
      if (!worker) continue;
      const read = worker.num_prompt_tokens_total;
      const fromCells = worker.num_cached_tokens_total - worker.num_tokens_from_memory_total - worker.num_tokens_from_disk_total;
      const share = (tokens) => (read ? `${number((100 * tokens) / read, 1)} %` : "");
      const size = (tier) => (tier ? `${bytes(tier.num_bytes)} of ${bytes(tier.max_bytes)}` : "off");
      rows.push([name, "KV cells", `${number(worker.num_cells_used)} of ${number(worker.num_cells)}`, share(fromCells)]);
      rows.push([name, "memory", size(worker.memory_cache), share(worker.num_tokens_from_memory_total)]);
      rows.push([name, "disk", size(worker.disk_cache), share(worker.num_tokens_from_disk_total)]);
    }
    this.put("cache", rows.length ? table("Tiers of the prompt cache", ["model", "tier", "used", "of the prompts"], rows) : faint("No model is loaded."));
  }

  showDrafts({ models }) {
    const rows = models.flatMap(({ name, worker }) =>
      (worker?.drafts ?? []).map((drafts) => {
        const verified = sum(drafts.num_verified);
        return [name, drafts.source, number(verified), verified ? `${number((100 * sum(drafts.num_accepted)) / verified, 1)} %` : ""];
      }),
    );
    const gains = models.filter((model) => model.worker?.draft_gain).map((model) => faint(`${model.name}: ${number(model.worker.draft_gain, 2)} times the tokens per second.`));
    this.put("drafts", rows.length ? table("Draft tokens by source", ["model", "source", "verified", "accepted"], rows) : faint("No drafts yet."), ...gains);
  }

  showRemotes(route) {
    const rows = route.remotes.map((remote) => [
      remote.name,
      remote.trouble ?? (remote.is_used ? "in use" : "ready"),
      remote.num_live,
      number(remote.num_tokens_today),
      number(remote.money_today, 4),
    ]);
    this.put(
      "remotes",
      rows.length ? table("Remotes and their state", ["remote", "state", "live", "tokens today", "spent today"], rows) : faint("There are none."),
      faint(`Where requests may run: ${route.mode}.`),
      ...[route.trouble, route.ledger_trouble].filter(Boolean).map((text) => h("p", { class: "trouble" }, text)),
    );
  }

  showEgress(rows) {
    const shown = rows.reverse().map((row) => [row.at.replace("T", " ").slice(0, 19), row.remote || row.host, row.model, row.outcome, number(row.num_bytes), row.reason]);
    this.put("egress", shown.length ? table("What was sent last", ["time (UTC)", "to", "model", "outcome", "bytes", "reason"], shown) : faint("Nothing."));
  }
}

function sum(numbers) {
  return numbers.reduce((total, each) => total + each, 0);
}

function faint(text) {
  return h("p", { class: "faint" }, text);
}

function facts(values) {
  return h("dl", {}, ...Object.entries(values).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))]));
}

function table(caption, headings, rows) {
  const cell = (value) => h("td", {}, value instanceof Node ? value : String(value));
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, ...headings.map((text) => (text ? h("th", { scope: "col" }, text) : h("td", {}))))),
      h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map(cell)))),
    ),
  );
}
