// Keeps the page live: follows the stream of changes, redraws the rows that changed, filters, switches light and dark.
// Everything it shows is text (textContent), never markup.
"use strict";

(() => {
  const view = document.body.dataset.view, root = document.body.dataset.root;
  const byId = (id) => document.getElementById(id);
  const glyphs = { ok: "●", reserved: "◆", cordoned: "▲", gate_closed: "■", unhealthy: "✚", not_ready: "✖" };

  // Light and dark

  const kept = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
  if (kept) document.documentElement.dataset.theme = kept;
  const theme = byId("theme");
  const isDark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const nameTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; theme.title = "Switch the colours"; };
  theme.hidden = false;
  nameTheme();
  theme.addEventListener("click", () => {
    const next = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try { localStorage.setItem("theme", next); } catch { /* a browser that keeps nothing still switches */ }
    nameTheme();
    document.dispatchEvent(new Event("themechange"));
  });

  // Words

  function duration(s) {
    if (s < 60) return `${Math.max(0, Math.floor(s))} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min`;
    if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
    return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
  }
  const ageOf = (time) => (time ? (Date.now() - Date.parse(time)) / 1000 : 0);
  const etaText = (eta) =>
    eta && eta.low_s != null && eta.high_s != null ? `in ${duration(eta.low_s)} to ${duration(eta.high_s)}` : "";

  function link(key) {
    const [namespace, ...rest] = key.split("/");
    const a = document.createElement("a");
    a.href = `${root}jobs/${encodeURIComponent(namespace)}/${encodeURIComponent(rest.join("/"))}`;
    a.textContent = key;
    return a;
  }
  function strong(text) {
    const s = document.createElement("strong");
    s.className = "bad";
    s.textContent = text;
    return s;
  }
  function meter(used, nominal, text = `${used} of ${nominal}`) {
    const m = document.createElement("meter");
    m.min = 0;
    m.max = Math.max(nominal, used, 1);
    m.value = used;
    m.setAttribute("aria-hidden", "true");
    return [m, ` ${text}`];
  }
  function timeCell(text) {
    const t = document.createElement("time");
    t.dateTime = text;
    t.textContent = text.slice(0, 19).replace("T", " ");
    return [t];
  }

  // Tables: each row is remade only when its data changed; rows keep their element, so focus and position stay.

  class Table {
    constructor(id, cells, { order = null, keep = () => true, most = 2000 } = {}) {
      this.table = byId(id);
      this.body = this.table && this.table.tBodies[0];
      this.laidOut = this.table && this.table.hasAttribute("role");
      this.cells = cells;
      this.order = order;
      this.keep = keep;
      this.most = most;
      this.made = new Map();
      this.numbers = this.table ? [...this.table.tHead.rows[0].cells].map((c) => c.className === "n") : [];
      if (this.body) for (const tr of this.body.rows) this.made.set(tr.dataset.key, { tr, text: "" });
    }
    draw(rows) {
      if (!this.body) return;
      let wanted = [...rows].filter(([, row]) => this.keep(row));
      if (this.order) wanted.sort(this.order);
      wanted = wanted.slice(0, this.most);
      const keys = new Set(wanted.map(([key]) => key));
      for (const [key, { tr }] of this.made) if (!keys.has(key)) { tr.remove(); this.made.delete(key); }
      let before = this.body.firstElementChild;
      for (const [key, row] of wanted) {
        const text = JSON.stringify(row);
        let known = this.made.get(key);
        if (!known) {
          known = { tr: document.createElement("tr"), text: "" };
          known.tr.dataset.key = key;
          if (this.laidOut) known.tr.setAttribute("role", "row");
          this.made.set(key, known);
        }
        if (known.text !== text) {
          known.text = text;
          this.fill(known.tr, this.cells(key, row));
        }
        if (known.tr === before) before = before.nextElementSibling;
        else this.body.insertBefore(known.tr, before);
      }
      const empty = document.querySelector(`[data-empty="${this.table.id}"]`);
      if (empty) empty.hidden = keys.size > 0;
      filterAgain(this.table.id);
    }
    fill(tr, cells) {
      const focused = tr.contains(document.activeElement);
      tr.replaceChildren(...cells.map((content, i) => {
        const cell = document.createElement(i === 0 ? "th" : "td");
        if (i === 0) cell.scope = "row";
        if (this.numbers[i]) cell.className = "n";
        if (this.laidOut) cell.setAttribute("role", i === 0 ? "rowheader" : "cell");
        cell.append(...(Array.isArray(content) ? content : [content]).map((c) => (c instanceof Node ? c : String(c))));
        return cell;
      }));
      if (focused) { const a = tr.querySelector("a"); if (a) a.focus(); }
    }
  }

  const byQueue = ([, a], [, b]) =>
    a.cluster_queue < b.cluster_queue ? -1 : a.cluster_queue > b.cluster_queue ? 1 : (a.position || 0) - (b.position || 0);

  function age(row) {
    const t = document.createElement("span");
    t.dataset.since = row.since || "";
    t.textContent = duration(ageOf(row.since));
    return [t];
  }

  const tenths = (h) => h.toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

  const tables = {
    waiting: new Table("waiting", (key, r) => [
      [link(key)], r.team || r.cluster_queue, r.pool, r.position, r.size, r.priority, age(r), etaText(r.eta),
      r.state === "never" ? [strong("never: "), r.reason] : r.reason || "",
    ], { order: byQueue, keep: (r) => r.phase === "waiting" }),
    running: new Table("running", (key, r) => [
      [link(key)], r.team || r.cluster_queue, r.pool, r.phase === "running" ? "runs" : "starts", r.size,
      r.nodes.join(", ") + (r.nodes_total > r.nodes.length ? ` and ${r.nodes_total - r.nodes.length} more` : ""),
    ], { order: byQueue, keep: (r) => r.phase !== "waiting" }),
    quotas: new Table("quotas", (key, q) => [
      q.team || key, q.pool, meter(q.used_gpus, q.nominal_gpus), q.borrowed_gpus, Math.max(0, q.nominal_gpus - q.used_gpus),
      q.lent_by_others_now, q.running, q.waiting, q.steered ? (q.asks ? "yes" : "when a gang waits") : [strong("no")],
    ]),
    budgets: new Table("budgets", (key, b) => [
      b.project ? `${b.team}, project ${b.project}` : b.team, b.pool, b.period_name,
      meter(b.used_h, b.budget_h, `${tenths(b.used_h)} of ${b.budget_h.toLocaleString("en-US")}`), tenths(b.left_h),
      timeCell(b.period_end),
      [...(b.state === "used_up" ? [strong("used up: ")] : []), b.sentence + (b.held.length ? `; held: ${b.held.join(", ")}` : "")],
    ]),
    nodes: new Table("nodes", (name, n) => {
      const sign = document.createElement("span");
      sign.className = `sign s-${n.state}`;
      sign.setAttribute("aria-hidden", "true");
      sign.textContent = glyphs[n.state];
      const jobs = Object.entries(n.jobs).flatMap(([owner, gpus], i) => [
        i ? ", " : "", owner.split("/").length === 2 && owner[0] !== "/" ? link(owner) : owner || "no owner", ` (${gpus})`,
      ]);
      const state = window.MYRIAD_STATES ? window.MYRIAD_STATES[n.state] : n.state;
      return [
        name, n.place, n.pool, [sign, " " + state + (n.reason ? ` (${n.reason})` : "")], n.used - n.terminating,
        n.terminating, Math.max(0, n.gpus - n.used - n.missing), n.missing, jobs,
      ];
    }),
    decisions: new Table("decisions", (key, d) => {
      const nodes = Object.keys(d.assigned || d.nodes || {});
      const agree = d.agree === true ? "as planned" : d.agree === false ? "differs from the plan" : "";
      return [
        timeCell(d.time), d.event, [link(`${d.namespace || ""}/${d.name}`)],
        (d.domain || []).join("/") || d.assigned_tier || "", d.reason || agree || nodes.slice(0, 8).join(", "),
      ];
    }, { order: ([, a], [, b]) => (a.time < b.time ? 1 : a.time > b.time ? -1 : 0), most: 200 }),
  };

  setInterval(() => {
    for (const span of document.querySelectorAll("[data-since]")) span.textContent = duration(ageOf(span.dataset.since));
  }, 10000);

  // Filters

  const MOST_AT_ONCE = 150;
  const filters = [...document.querySelectorAll("[data-filter-of]")];
  const expanded = new Set();
  let map = null;

  // Long tables show their first rows until somebody asks for all; whoever filters searches all.
  function showRows(id, words) {
    const table = byId(id);
    if (!table) return 0;
    const rows = table.tBodies[0].rows;
    const all = words.length > 0 || expanded.has(id);
    let shown = 0;
    for (let i = 0; i < rows.length; i++) {
      const text = words.length ? rows[i].textContent.toLowerCase() : "";
      const hide = !words.every((w) => text.includes(w)) || (!all && i >= MOST_AT_ONCE);
      if (rows[i].hidden !== hide) rows[i].hidden = hide;
      if (!hide) shown++;
    }
    let more = document.querySelector(`[data-more="${id}"]`);
    if (!more && rows.length > MOST_AT_ONCE) {
      more = document.createElement("button");
      more.type = "button";
      more.className = "plain";
      more.dataset.more = id;
      more.addEventListener("click", () => { expanded.add(id); showRows(id, []); table.parentElement.focus(); });
      table.parentElement.after(more);
    }
    if (more) {
      more.hidden = all || rows.length <= MOST_AT_ONCE;
      more.textContent = `Show all ${rows.length} rows`;
    }
    return shown;
  }
  const wordsOf = (box) => box.querySelector("input").value.toLowerCase().split(/\s+/).filter(Boolean);
  function filterOne(box) {
    const words = wordsOf(box);
    let shown = 0;
    for (const id of box.dataset.filterOf.split(" ")) {
      shown += showRows(id, words);
      if (id === "nodes" && map) {
        map.mark(words.length ? (name, r) => {
          const state = window.MYRIAD_STATES[r.state];
          const text = `${name} ${r.place} ${r.pool} ${state} ${r.reason} ${Object.keys(r.jobs)}`.toLowerCase();
          return words.every((w) => text.includes(w));
        } : null);
      }
    }
    return words.length ? shown : -1;
  }
  function filterAgain(id) {
    for (const box of filters) if (box.dataset.filterOf.split(" ").includes(id)) showRows(id, wordsOf(box));
  }
  for (const box of filters) {
    box.hidden = false;
    box.querySelector("input").addEventListener("input", () => {
      const shown = filterOne(box);
      byId("said").textContent = shown < 0 ? "" : `${shown} rows`;
    });
    filterOne(box);
  }

  // Map

  const figure = document.querySelector("figure.map");
  const openJob = (job) => { const a = link(job); location.assign(a.href); };
  if (figure && window.ClusterMap) {
    figure.hidden = false;
    const only = figure.dataset.only ? new Set(JSON.parse(figure.dataset.only)) : null;
    map = new window.ClusterMap(byId("map"), byId("map-node"), { only, open: openJob });
    const data = byId("map-data");
    if (data) map.set(new Map(Object.entries(JSON.parse(data.textContent))));
    if (figure.dataset.src) {
      fetch(figure.dataset.src, { credentials: "same-origin" })
        .then((r) => (r.ok ? r.json() : Promise.reject(new Error(`the map answered ${r.status}`))))
        .then((d) => map.set(new Map(Object.entries(d.nodes))))
        .catch((e) => { byId("map-node").textContent = `The map cannot be shown: ${e.message}.`; });
    }
  }

  // Figures and notes

  function write(id, text) {
    const e = byId(id);
    if (e && e.textContent !== String(text)) e.textContent = text;
  }
  function totals(t) {
    if (t.status) {
      const s = t.status, x = s.extension;
      write("f-nodes", `${s.nodes_taking_work} of ${s.nodes_total}`);
      write("f-gpus", `${s.gpus_used} of ${s.gpus_allocatable}`);
      write("f-running", s.jobs_running);
      write("f-waiting", s.jobs_waiting);
      const notes = [];
      if (x.cache_behind.length) notes.push(`The cache does not follow yet: ${x.cache_behind.join(", ")}.`);
      if (!x.leader) notes.push("No replica leads: nothing is steered.");
      const since = s.unsteered ? ` (${s.unsteered})` : "";
      if (x.shadow) notes.push("Shadow: what is planned here is recorded and changes nothing.");
      else if (s.queues_not_steered.length) notes.push(`Not steered: ${s.queues_not_steered.join(", ")}${since}.`);
      if (x.brake === false) notes.push("The brake is off: domains are tainted in the middle of an outage too.");
      const box = byId("notes");
      if (box && box.textContent !== notes.join("")) {
        box.replaceChildren(...notes.map((n) => {
          const p = document.createElement("p");
          p.className = "note bad";
          p.textContent = n;
          return p;
        }));
        byId("said").textContent = notes.join(" ");
      }
    }
    if (t.map) {
      const g = t.map.gpus, n = t.map.nodes;
      write("m-used", g.used);
      write("m-free", g.free);
      write("m-terminating", g.terminating);
      write("m-held", g.held_back);
      write("m-missing", g.missing);
      write("m-nodes", `${n.ok + n.reserved} of ${Object.values(n).reduce((a, b) => a + b, 0)}`);
    }
  }

  // The stream

  if (!("live" in document.body.dataset) || !window.EventSource || new URLSearchParams(location.search).get("job")) return;
  const sections = { queue: "totals,quotas,budgets,jobs", map: "totals,nodes", decisions: "decisions" }[view];
  const data = { totals: new Map(), quotas: new Map(), budgets: new Map(), jobs: new Map(), nodes: new Map(), decisions: new Map() };
  const dirty = new Set();
  let planned = false;
  function draw() {
    planned = false;
    if (dirty.has("totals")) totals(Object.fromEntries(data.totals));
    if (dirty.has("jobs")) { tables.waiting.draw(data.jobs); tables.running.draw(data.jobs); }
    if (dirty.has("quotas")) tables.quotas.draw(data.quotas);
    if (dirty.has("budgets")) tables.budgets.draw(data.budgets);
    if (dirty.has("nodes")) {
      if (map) map.set(data.nodes);
      tables.nodes.draw(data.nodes);
    }
    if (dirty.has("decisions")) tables.decisions.draw(data.decisions);
    dirty.clear();
  }
  function changed(section, change) {
    const rows = data[section];
    if (change.full) rows.clear();
    for (const key of change.gone) rows.delete(key);
    for (const [key, row] of Object.entries(change.set)) rows.set(key, row);
    dirty.add(section);
    if (!planned) { planned = true; requestAnimationFrame(draw); }
  }
  const live = byId("live");
  function say(text, on) {
    live.hidden = false;
    live.dataset.state = on ? "on" : "off";
    if (live.textContent !== text) live.textContent = text;
  }
  const source = new EventSource(`${root}v1/stream?sections=${sections}`);
  source.addEventListener("open", () => say("live", true));
  source.addEventListener("error", () =>
    say(source.readyState === EventSource.CLOSED ? "not live: reload the page" : "reconnecting", false));
  source.addEventListener("dropped", (e) => {
    if (JSON.parse(e.data).why === "rights") { source.close(); location.reload(); }
  });
  for (const section of sections.split(",")) {
    source.addEventListener(section, (e) => changed(section, JSON.parse(e.data)));
  }
})();
