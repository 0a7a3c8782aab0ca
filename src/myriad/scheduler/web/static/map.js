// The cluster map: room > block > rack > node > GPU on one canvas. Shapes differ before colours do, the arrow keys go
// where the pointer goes, and what is chosen is said in words below (and again in the table).
"use strict";

class ClusterMap {
  constructor(canvas, words, { only = null, open = null } = {}) {
    this.canvas = canvas;
    this.words = words;
    this.only = only;
    this.open = open;
    this.rows = new Map();
    this.boxes = [];
    this.frames = [];
    this.chosen = -1;
    this.matches = null;
    this.base = document.createElement("canvas");
    this.canvas.addEventListener("keydown", (e) => this.key(e));
    this.canvas.addEventListener("pointermove", (e) => this.point(e));
    this.canvas.addEventListener("click", (e) => { this.point(e); this.enter(e.detail > 1); });
    this.canvas.addEventListener("focus", () => { if (this.chosen < 0 && this.boxes.length) this.choose(0); });
    this.width = 0;
    this.tiles = new Map();
    new ResizeObserver(() => {
      if (this.canvas.clientWidth !== this.width) this.layout();
    }).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint());
    document.addEventListener("themechange", () => this.paint());
  }

  set(rows) {
    const name = this.chosen >= 0 && this.boxes[this.chosen] ? this.boxes[this.chosen].name : "";
    const before = this.shape;
    this.rows = rows;
    // Positions follow from names and places alone: most changes only paint.
    this.shape = [...rows].map(([n, r]) => n + "|" + r.path.join("/") + "|" + r.gpus).join(";");
    if (this.shape !== before || !this.boxes.length) {
      this.layout();
      this.chosen = this.boxes.findIndex((b) => b.name === name);
      this.show();
    } else {
      this.paint();
    }
    if (this.chosen >= 0) this.tell();
  }

  mark(matches) {
    this.matches = matches;
    this.paint();
  }

  layout() {
    const width = this.canvas.clientWidth;
    if (!width || !this.rows.size) return;
    this.width = width;
    const most = Math.max(1, ...[...this.rows.values()].map((r) => r.gpus));
    const across = Math.min(8, most), lines = Math.ceil(most / 8);
    const sign = 12, pad = 8, head = 16;
    const blocks = new Map();
    for (const [name, row] of this.rows) {
      const path = row.path;
      const block = path.slice(0, -1).join("/") || "no place";
      const rack = path.length ? path[path.length - 1] || "?" : "?";
      if (!blocks.has(block)) blocks.set(block, new Map());
      const racks = blocks.get(block);
      if (!racks.has(rack)) racks.set(rack, []);
      racks.get(rack).push(name);
    }
    this.boxes = [];
    this.frames = [];
    // The size of a GPU that lets the widest blocks fill the width best.
    const widest = Math.max(...[...blocks.values()].map((racks) => racks.size));
    const widthAt = (size) => widest * (sign + across * size + 10) + 2 * pad;
    const filled = (size) => {
      const side = Math.floor((width - pad) / widthAt(size));
      return side ? (Math.min(side, blocks.size) * widthAt(size)) / width : 0;
    };
    const cell = [7, 8, 9, 10, 11].reduce((best, size) => (filled(size) > filled(best) + 0.02 ? size : best), 7);
    const nodeW = sign + across * cell + 2, nodeH = lines * cell + 4;
    const rackW = nodeW + 8;
    const columns = Math.max(1, Math.floor((width - 3 * pad) / rackW));
    let x = pad, y = pad, rowHeight = 0, rackNumber = 0;
    for (const [block, racks] of blocks) {
      const cols = Math.min(columns, racks.size);
      const w = cols * rackW + pad;
      const tall = Math.max(...[...racks.values()].map((names) => names.length));
      const rackH = tall * nodeH + head + 4;
      const h = Math.ceil(racks.size / cols) * rackH + head + 4;
      if (x > pad && x + w > width - pad) { x = pad; y += rowHeight + pad; rowHeight = 0; }
      this.frames.push({ x, y, w, h, text: block });
      let i = 0;
      for (const [rack, names] of racks) {
        const left = x + pad / 2 + (i % cols) * rackW, top = y + head + Math.floor(i / cols) * rackH;
        this.frames.push({ x: left, y: top, w: 0, h: 0, text: rack });
        names.forEach((name, k) => this.boxes.push(
          { name, x: left, y: top + head + k * nodeH, w: nodeW, h: nodeH, rack: rackNumber, at: k, cell, sign }));
        i++;
        rackNumber++;
      }
      rowHeight = Math.max(rowHeight, h);
      x += w + pad;
    }
    this.height = y + rowHeight + pad;
    const scale = Math.min(2, window.devicePixelRatio || 1);
    for (const c of [this.canvas, this.base]) {
      c.width = Math.round(width * scale);
      c.height = Math.round(this.height * scale);
    }
    this.canvas.style.setProperty("height", this.height + "px");
    this.scale = scale;
    this.paint();
  }

  paint() {
    if (!this.boxes.length) return;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const c = {
      ground: colour("--ground"), line: colour("--line"), dim: colour("--dim"), ink: colour("--ink"),
      used: colour("--gpu-used"), edge: colour("--gpu-line"), stop: colour("--gpu-stop"), bad: colour("--bad"),
    };
    for (const s of ["ok", "reserved", "cordoned", "gate_closed", "unhealthy", "not_ready"]) c[s] = colour("--s-" + s);
    this.focusColour = colour("--focus");
    const looks = JSON.stringify(c) + this.scale + this.boxes[0].w + "," + this.boxes[0].h;
    if (looks !== this.looks) { this.looks = looks; this.tiles = new Map(); }
    const g = this.base.getContext("2d");
    g.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    g.clearRect(0, 0, this.width, this.height);
    g.lineWidth = 1;
    g.font = "11px system-ui, sans-serif";
    g.textBaseline = "top";
    for (const f of this.frames) {
      if (f.w) {
        g.strokeStyle = c.line;
        g.strokeRect(f.x + 0.5, f.y + 0.5, f.w, f.h);
        g.fillStyle = c.ink;
      } else {
        g.fillStyle = c.dim;
      }
      g.fillText(f.text, f.x + (f.w ? 5 : 0), f.y + 3);
    }
    for (const box of this.boxes) {
      const row = this.rows.get(box.name);
      if (!row) continue;
      const faint = (this.only && !this.only.has(box.name)) || (this.matches && !this.matches(box.name, row));
      g.globalAlpha = faint ? 0.25 : 1;
      g.drawImage(this.tile(row, box, c), box.x - 2, box.y - 2, box.w + 4, box.h + 4);
      g.globalAlpha = 1;
      if (this.only && this.only.has(box.name)) {
        g.strokeStyle = c.ink;
        g.strokeRect(box.x - 0.5, box.y - 1.5, box.w, box.h);
      }
    }
    this.show();
  }

  // Nodes in the same state look the same: each look is drawn once and copied, so a thousand nodes cost a thousand copies.
  tile(row, box, c) {
    const key = [row.state, row.gpus, row.used, row.terminating, row.missing].join();
    let found = this.tiles.get(key);
    if (!found) {
      found = document.createElement("canvas");
      found.width = Math.ceil((box.w + 4) * this.scale);
      found.height = Math.ceil((box.h + 4) * this.scale);
      const g = found.getContext("2d");
      g.setTransform(found.width / (box.w + 4), 0, 0, found.height / (box.h + 4), 0, 0);
      g.translate(2, 2);
      this.sign(g, row.state, 5, box.h / 2 - 1, c[row.state]);
      this.gpus(g, row, { ...box, x: 0, y: 0 }, c);
      this.tiles.set(key, found);
    }
    return found;
  }

  sign(g, state, x, y, colour) {
    g.fillStyle = g.strokeStyle = colour;
    g.beginPath();
    if (state === "ok") g.arc(x, y, 2.5, 0, 7);
    else if (state === "reserved") { g.moveTo(x, y - 4.5); g.lineTo(x + 4.5, y); g.lineTo(x, y + 4.5); g.lineTo(x - 4.5, y); }
    else if (state === "cordoned") { g.moveTo(x, y - 4); g.lineTo(x + 4.5, y + 3.5); g.lineTo(x - 4.5, y + 3.5); }
    else if (state === "gate_closed") g.rect(x - 3.5, y - 3.5, 7, 7);
    else if (state === "unhealthy") { g.rect(x - 1.5, y - 4.5, 3, 9); g.rect(x - 4.5, y - 1.5, 9, 3); }
    else {
      g.lineWidth = 2.4;
      g.moveTo(x - 4, y - 4); g.lineTo(x + 4, y + 4); g.moveTo(x + 4, y - 4); g.lineTo(x - 4, y + 4);
      g.stroke();
      g.lineWidth = 1;
      return;
    }
    g.fill();
  }

  gpus(g, row, box, c) {
    const kept = row.used - row.terminating, held = row.state !== "ok";
    const size = box.cell - 2;
    for (let i = 0; i < row.gpus; i++) {
      const x = box.x + box.sign + (i % 8) * box.cell, y = box.y + Math.floor(i / 8) * box.cell + 1;
      if (i < kept) {
        g.fillStyle = c.used;
        g.fillRect(x, y, size + 1, size + 1);
        continue;
      }
      if (i >= row.gpus - row.missing) {
        g.strokeStyle = c.bad;
        g.beginPath();
        g.moveTo(x, y); g.lineTo(x + size, y + size); g.moveTo(x + size, y); g.lineTo(x, y + size);
        g.stroke();
        continue;
      }
      const stopping = i < row.used;
      g.strokeStyle = stopping ? c.stop : c.edge;
      g.strokeRect(x + 0.5, y + 0.5, size, size);
      if (stopping) {
        g.fillStyle = c.stop;
        g.beginPath();
        g.moveTo(x, y); g.lineTo(x, y + size + 1); g.lineTo(x + size + 1, y + size + 1);
        g.fill();
      } else if (held) {
        g.fillStyle = c.edge;
        g.fillRect(x + size / 2 - 0.5, y + size / 2 - 0.5, 2, 2);
      }
    }
  }

  show() {
    const g = this.canvas.getContext("2d");
    g.setTransform(1, 0, 0, 1, 0, 0);
    g.clearRect(0, 0, this.canvas.width, this.canvas.height);
    if (this.base.width) g.drawImage(this.base, 0, 0);
    const box = this.boxes[this.chosen];
    if (!box) return;
    g.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    g.strokeStyle = this.focusColour;
    g.lineWidth = 2.5;
    g.strokeRect(box.x - 1.5, box.y - 2.5, box.w + 2, box.h + 2);
  }

  choose(i) {
    this.chosen = Math.max(0, Math.min(this.boxes.length - 1, i));
    this.show();
    this.tell();
  }

  tell() {
    const box = this.boxes[this.chosen], row = this.rows.get(box.name);
    if (!row) return;
    const states = window.MYRIAD_STATES;
    const free = Math.max(0, row.gpus - row.used - row.missing);
    const parts = [`${row.used - row.terminating} used`, `${free} free`];
    if (row.terminating) parts.push(`${row.terminating} stopping`);
    if (row.missing) parts.push(`${row.missing} missing`);
    const jobs = Object.entries(row.jobs).map(([job, n]) => `${job} (${n})`).join(", ");
    const reason = row.reason ? ` (${row.reason})` : "";
    this.words.textContent =
      `${box.name}, ${row.place}: ${states[row.state]}${reason}. GPUs: ${parts.join(", ")}.` + (jobs ? ` Jobs: ${jobs}.` : "");
  }

  key(e) {
    const n = this.boxes.length;
    if (!n) return;
    const at = this.chosen, box = this.boxes[at];
    const rack = (number, line) => {
      const first = this.boxes.findIndex((b) => b.rack === number);
      if (first < 0) return at;
      const count = this.boxes.filter((b) => b.rack === number).length;
      return first + Math.min(line, count - 1);
    };
    let to = at;
    if (e.key === "ArrowDown") to = at + 1;
    else if (e.key === "ArrowUp") to = at - 1;
    else if (e.key === "ArrowRight" && box) to = rack(box.rack + 1, box.at);
    else if (e.key === "ArrowLeft" && box) to = rack(box.rack - 1, box.at);
    else if (e.key === "PageDown" && box) to = rack(box.rack + 1, 0);
    else if (e.key === "PageUp" && box) to = rack(box.rack - 1, 0);
    else if (e.key === "Home") to = 0;
    else if (e.key === "End") to = n - 1;
    else if (e.key === "Enter") { this.enter(true); e.preventDefault(); return; }
    else return;
    e.preventDefault();
    this.choose(to);
    const y = this.boxes[this.chosen].y + this.canvas.getBoundingClientRect().top;
    if (y < 40 || y > innerHeight - 90) scrollBy({ top: y - innerHeight / 2 });
  }

  point(e) {
    const r = this.canvas.getBoundingClientRect();
    const x = e.clientX - r.left, y = e.clientY - r.top;
    const i = this.boxes.findIndex((b) => x >= b.x - 2 && x < b.x + b.w + 2 && y >= b.y - 1 && y < b.y + b.h);
    if (i >= 0 && i !== this.chosen) this.choose(i);
  }

  enter(go) {
    const box = this.boxes[this.chosen];
    const row = box && this.rows.get(box.name);
    const job = row && Object.keys(row.jobs).find((owner) => owner.split("/").length === 2 && owner[0] !== "/");
    if (go && job && this.open) this.open(job);
  }
}

window.ClusterMap = ClusterMap;
window.MYRIAD_STATES = {
  ok: "takes work", reserved: "reserved for a gang that has waited too long", cordoned: "cordoned",
  gate_closed: "gate closed", unhealthy: "unhealthy", not_ready: "NotReady",
};
