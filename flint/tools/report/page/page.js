// Timelines: one canvas each, drawn from the JSON beside it. No library, nothing is fetched.
"use strict";
(() => {
  const AXIS = 22, ROW = 30, MEMORY = 56;
  const charts = [];

  const sums = steps => { let at = 0; return steps.map(step => at += step); };

  const duration = ns => {
    for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["us", 1e3]])
      if (ns >= size * 0.9995) return (ns / size).toPrecision(3) + " " + unit;
    return Math.round(ns) + " ns";
  };

  const bytes = count => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    while (count >= 1024 && at < 4) { count /= 1024; at++; }
    return count.toPrecision(3) + " " + units[at];
  };

  // The first index whose value is above `limit`; values ascend.
  const after = (values, limit) => {
    let low = 0, high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] <= limit) low = middle + 1; else high = middle;
    }
    return low;
  };

  class Timeline {
    constructor(canvas) {
      const d = JSON.parse(document.getElementById(canvas.id + "-data").textContent);
      this.canvas = canvas;
      this.said = document.getElementById(canvas.id + "-said");
      this.end = Math.max(1, d.end); this.streams = d.streams; this.rows = d.rows; this.row = d.row;
      this.stream = d.stream; this.start = sums(d.start); this.length = d.length;
      this.critical = new Set(sums(d.critical));
      this.at = d.at ? sums(d.at) : null; this.bytes = d.bytes; this.peak = d.peak;
      this.longest = Math.max(1, ...this.streams.map((_, s) =>
        this.length.reduce((most, l, i) => this.stream[i] === s && l > most ? l : most, 0)));
      this.from = 0; this.to = this.end; this.chosen = -1;
      this.listen();
      this.resize();
    }

    colour(name) {
      if (!(name in this.colours))
        this.colours[name] = this.style.getPropertyValue("--" + name).trim() || "#888";
      return this.colours[name];
    }

    resize() {
      const ratio = window.devicePixelRatio || 1;
      const height = +this.canvas.dataset.height;
      this.width = this.canvas.clientWidth;
      this.height = height;
      this.canvas.width = Math.round(this.width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
      this.style = getComputedStyle(this.canvas);
      this.colours = {};
      this.draw();
    }

    x(ns) { return (ns - this.from) / (this.to - this.from) * this.width; }

    draw() {
      const c = this.canvas.getContext("2d");
      c.clearRect(0, 0, this.width, this.height);
      c.font = "12px system-ui, sans-serif";
      c.textBaseline = "middle";
      this.drawAxis(c);
      this.streams.forEach((name, s) => {
        c.fillStyle = this.colour("track");
        c.fillRect(0, AXIS + s * ROW, this.width, ROW - 4);
      });
      const scale = this.width / (this.to - this.from);
      const last = after(this.start, this.to);
      const labels = [];
      for (let i = after(this.start, this.from - this.longest); i < last; i++) {
        const x = (this.start[i] - this.from) * scale, w = this.length[i] * scale;
        if (x + w < 0) continue;
        c.fillStyle = this.colour(this.rows[this.row[i]][0]);
        c.fillRect(x, AXIS + this.stream[i] * ROW, Math.max(w > 3 ? w - 0.5 : w, 0.4), ROW - 4);
        if (this.critical.has(i)) {
          c.fillStyle = this.colour("ink");
          c.fillRect(x, AXIS + this.stream[i] * ROW + ROW - 4, Math.max(w, 0.4), 2);
        }
        if (w > 46) labels.push(i);
      }
      this.names = this.streams.map(name => c.measureText(name).width + 8);
      c.fillStyle = this.colour("on-fill");
      for (const i of labels) this.drawLabel(c, i, scale);
      this.drawNames(c);
      if (this.at) this.drawMemory(c);
      this.drawChosen(c, scale);
    }

    drawLabel(c, i, scale) {
      const x = Math.max(this.names[this.stream[i]], (this.start[i] - this.from) * scale);
      const right = Math.min(this.width, (this.start[i] + this.length[i] - this.from) * scale);
      const [, kind, over, , , scope] = this.rows[this.row[i]];
      const name = kind.replace(/_/g, " ") + (over ? " " + over : scope ? " " + scope.split("/").pop() : "");
      const room = right - x - 8;
      const letters = Math.floor(room / 6.6);
      if (letters > 3)
        c.fillText(name.length > letters ? name.slice(0, letters - 1) + "\u2026" : name, x + 4,
          AXIS + this.stream[i] * ROW + (ROW - 4) / 2);
    }

    drawNames(c) {
      c.textAlign = "left";
      this.streams.forEach((name, s) => {
        const w = this.names[s], y = AXIS + s * ROW;
        c.globalAlpha = 0.85; c.fillStyle = this.colour("paper");
        c.fillRect(0, y + ROW - 18, w, 14);
        c.globalAlpha = 1; c.fillStyle = this.colour("ink");
        c.fillText(name, 4, y + ROW - 11);
      });
    }

    drawAxis(c) {
      const span = this.to - this.from, raw = span / Math.max(2, this.width / 110);
      const power = 10 ** Math.floor(Math.log10(raw));
      const step = [1, 2, 5, 10].map(m => m * power).find(m => m >= raw);
      c.strokeStyle = this.colour("grid"); c.fillStyle = this.colour("ink-2");
      c.lineWidth = 1; c.beginPath();
      for (let t = Math.ceil(this.from / step) * step; t <= this.to; t += step) {
        const x = Math.round(this.x(t)) + 0.5;
        c.moveTo(x, AXIS - 6); c.lineTo(x, this.height);
        c.textAlign = x < 30 ? "left" : x > this.width - 30 ? "right" : "center";
        c.fillText(t ? this.tick(t, step) : "0", x, 8);
      }
      c.stroke(); c.textAlign = "left";
    }

    tick(ns, step) {
      const [unit, size] = [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]].find(u => this.to >= u[1]) || ["ns", 1];
      const digits = Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9));
      return (ns / size).toFixed(digits) + " " + unit;
    }

    drawMemory(c) {
      const top = AXIS + this.streams.length * ROW + 4, high = MEMORY - 8;
      c.fillStyle = this.colour("area"); c.globalAlpha = 0.55; c.beginPath();
      c.moveTo(0, top + high);
      const first = Math.max(0, after(this.at, this.from) - 1);
      for (let i = first; i < this.at.length && this.at[i] < this.to; i++) {
        const y = top + high * (1 - this.bytes[i] / this.peak);
        c.lineTo(Math.max(0, this.x(this.at[i])), y);
        c.lineTo(Math.min(this.width, this.x(i + 1 < this.at.length ? this.at[i + 1] : this.end)), y);
      }
      c.lineTo(Math.min(this.width, this.x(this.end)), top + high); c.fill(); c.globalAlpha = 1;
      c.fillStyle = this.colour("ink");
      c.fillText("memory in use, peak " + bytes(this.peak), 4, top + high - 8);
    }

    drawChosen(c, scale) {
      if (this.chosen < 0) return;
      const i = this.chosen;
      c.strokeStyle = this.colour("ink"); c.lineWidth = 2;
      c.strokeRect((this.start[i] - this.from) * scale, AXIS + this.stream[i] * ROW - 1,
        Math.max(3, this.length[i] * scale), ROW - 2);
    }

    // What is chosen is said below the picture, also to screen readers.
    choose(i) {
      this.chosen = i;
      if (i >= 0) {
        const [, kind, over, phase, opcode, scope, location] = this.rows[this.row[i]];
        const moment = this.start[i];
        const parts = [kind.replace(/_/g, " ") + (over ? " over " + over : ""), duration(this.length[i]),
          "from " + (moment / 1e6).toFixed(3) + " ms", this.streams[this.stream[i]],
          this.critical.has(i) ? "on the critical path" : "", phase, scope, location, opcode];
        this.said.textContent = parts.filter(Boolean).join("  \u00b7  ");
      }
      this.draw();
    }

    zoom(factor, at = 0.5) {
      const span = Math.min(this.end, Math.max(50, (this.to - this.from) * factor));
      this.show(this.from + (this.to - this.from - span) * at, span);
    }

    show(from, span = this.to - this.from) {
      this.from = Math.max(0, Math.min(from, this.end - span));
      this.to = this.from + span;
      this.draw();
    }

    move(share) { this.show(this.from + (this.to - this.from) * share); }

    step(by) {
      const s = this.chosen >= 0 ? this.stream[this.chosen] : 0;
      let i = this.chosen >= 0 ? this.chosen + by : after(this.start, this.from - 1);
      while (i >= 0 && i < this.start.length && this.stream[i] !== s) i += by;
      if (i >= 0 && i < this.start.length) this.reveal(i);
    }

    jump(by) {
      const s = (this.chosen >= 0 ? this.stream[this.chosen] : -by) + by;
      if (s < 0 || s >= this.streams.length) return;
      const moment = this.chosen >= 0 ? this.start[this.chosen] : this.from;
      let best = -1;
      for (let i = 0; i < this.start.length; i++)
        if (this.stream[i] === s && (best < 0 || this.start[i] <= moment)) best = i;
      if (best >= 0) this.reveal(best);
    }

    reveal(i) {
      const span = this.to - this.from, middle = this.start[i] + this.length[i] / 2;
      if (middle < this.from || middle > this.to) this.show(middle - span / 2, span);
      this.choose(i);
    }

    find(x, y) {
      const s = Math.floor((y - AXIS) / ROW), ns = this.from + x / this.width * (this.to - this.from);
      const near = 2 * (this.to - this.from) / this.width;
      let best = -1, miss = near;
      for (let i = after(this.start, ns + near) - 1; i >= 0 && this.start[i] > ns - this.longest - near; i--) {
        if (this.stream[i] !== s) continue;
        const away = Math.max(this.start[i] - ns, ns - this.start[i] - this.length[i], 0);
        if (away < miss || (away === 0 && best < 0)) { best = i; miss = away; }
        if (away === 0) break;
      }
      return best;
    }

    act(name) {
      ({ in: () => this.zoom(0.5), out: () => this.zoom(2), left: () => this.move(-0.4),
        right: () => this.move(0.4), all: () => this.show(0, this.end) })[name]();
    }

    listen() {
      const canvas = this.canvas;
      let held = null;
      canvas.addEventListener("wheel", event => {
        if (document.activeElement !== canvas && !event.ctrlKey) return;
        event.preventDefault();
        if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.move(event.deltaX / this.width);
        else this.zoom(event.deltaY > 0 ? 1.25 : 0.8, event.offsetX / this.width);
      }, { passive: false });
      canvas.addEventListener("pointerdown", event => {
        held = { x: event.offsetX, from: this.from, moved: false };
        canvas.setPointerCapture(event.pointerId);
      });
      canvas.addEventListener("pointermove", event => {
        if (!held) { canvas.style.cursor = this.find(event.offsetX, event.offsetY) >= 0 ? "pointer" : "grab"; return; }
        const by = (event.offsetX - held.x) / this.width * (this.to - this.from);
        if (Math.abs(event.offsetX - held.x) > 3) held.moved = true;
        if (held.moved) this.show(held.from - by);
      });
      canvas.addEventListener("pointerup", event => {
        if (held && !held.moved) this.choose(this.find(event.offsetX, event.offsetY));
        held = null;
      });
      canvas.addEventListener("pointercancel", () => { held = null; });
      canvas.addEventListener("dblclick", event => this.zoom(0.25, event.offsetX / this.width));
      canvas.addEventListener("keydown", event => {
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        const does = { "+": "in", "=": "in", "-": "out", "0": "all", Home: "all", ArrowLeft: "left", ArrowRight: "right" }[event.key];
        if (does) this.act(does);
        else if (event.key === "." || event.key === ">") this.step(1);
        else if (event.key === "," || event.key === "<") this.step(-1);
        else if (event.key === "ArrowDown") this.jump(1);
        else if (event.key === "ArrowUp") this.jump(-1);
        else return;
        event.preventDefault();
      });
    }
  }

  for (const canvas of document.querySelectorAll("canvas.timeline")) charts.push(new Timeline(canvas));
  for (const button of document.querySelectorAll("button[data-for]"))
    button.addEventListener("click", () =>
      charts.find(chart => chart.canvas.id === button.dataset.for).act(button.dataset.does));
  const again = () => charts.forEach(chart => chart.resize());
  addEventListener("resize", again);
  addEventListener("beforeprint", again);
  addEventListener("afterprint", again);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
})();
