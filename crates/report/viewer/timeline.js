/* Who does what when: a line for devices that do the same, computation above communication. */

const SORT_STYLES = ["forward", "backward", "weights", "recomputed", "copies", "waits", "optimizer"];
const LINE = { height: 50, compute: 5, thick: 22, talk: 30, thin: 10, head: 28, left: 132, measured: 20 };
const SLICE = 4;
const PART = 4;
/* Numbers of a measured communication. */
const MEASURED = 7;

/* Turns of a row: code, micro-batch, start, and the two patterns, with where each ends. */
function turnsOf(row) {
  const flat = DATA.timeline.tasks[row];
  const found = [];
  for (let at = 0; at < flat.length; at += 5) {
    const [code, batch, start, slices, parts] = flat.slice(at, at + 5);
    found.push({ code, batch, start, slices, parts, end: start + Math.max(extent(DATA.timeline.slices[slices], 0, SLICE), extent(DATA.timeline.parts[parts], 1, PART)) });
  }
  return found;
}

/* Where the last slice of a pattern ends. */
function extent(pattern, from, width) {
  let end = 0;
  for (let at = 0; at < pattern.length; at += width) end = Math.max(end, pattern[at + from] + pattern[at + from + 1]);
  return end;
}

/* A pattern with slices of one sort in a row as one, for when it is drawn small. */
function coarse(pattern) {
  const found = [];
  for (let at = 0; at < pattern.length; at += SLICE) {
    const last = found[found.length - 1];
    if (last && last[2] === pattern[at + 2]) last[1] = pattern[at] + pattern[at + 1] - last[0];
    else found.push([pattern[at], pattern[at + 1], pattern[at + 2], -1]);
  }
  return found.flat();
}

/* Boxes side by side, of which those that nobody can see apart are one: there may be a million. */
function boxes() {
  const found = [];
  return {
    add(from, to) {
      const last = found[found.length - 1];
      if (last && from >= last[0] && from - last[1] < 0.5) last[1] = Math.max(last[1], to);
      else found.push([from, to]);
    },
    fill(pen, style, top, high) {
      pen.fillStyle = style;
      found.forEach(([from, to]) => pen.fillRect(from, top, Math.max(0.7, to - from), high));
    },
  };
}

/* Of slices that are thinner than pixels what takes most of each column of pixels, as runs of columns. */
function columns(slices, place) {
  const found = [];
  let [column, takes] = [null, {}];
  const close = () => {
    const most = Object.keys(takes).reduce((a, b) => (takes[b] > takes[a] ? b : a));
    const last = found[found.length - 1];
    if (last && last[1] === column && last[2] === Number(most)) last[1] += 1;
    else found.push([column, column + 1, Number(most)]);
  };
  for (let at = 0; at < slices.length; at += SLICE) {
    const [from, to] = [place(slices[at]), place(slices[at] + slices[at + 1])];
    for (let pixel = Math.floor(from); pixel < to; pixel += 1) {
      if (pixel !== column) {
        if (column !== null) close();
        [column, takes] = [pixel, {}];
      }
      takes[slices[at + 2]] = (takes[slices[at + 2]] ?? 0) + Math.min(to, pixel + 1) - Math.max(from, pixel);
    }
  }
  if (column !== null) close();
  return found;
}

function timeline() {
  const measured = DATA.recorded?.ranks ?? [];
  const whole = Math.max(DATA.timeline.seconds, ...measured.map((rank) => rank.seconds)) / TICK;
  const predicted = DATA.timeline.seconds / TICK;
  const turns = DATA.tracks.map((_, row) => turnsOf(row));
  const small = DATA.timeline.slices.map(coarse);
  const view = { from: 0, to: whole, byBatch: false, open: new Set(), picked: null, measured: measured.length > 0 };
  const canvas = h("canvas", { tabindex: 0, id: "timeline-canvas", role: "img", "aria-label": "Timeline of a step. Arrow keys move, plus and minus zoom, F shows all." });
  const frame = h("div", { class: "timeline" }, canvas);
  const details = h("div", { class: "card", id: "picked" });
  const mode = h("button", { type: "button", id: "by-batch", "aria-pressed": "false", onclick: toggleMode }, "Colour by micro-batch");
  const keys = h("div", {});

  /* Lines to draw: what was measured of a row's devices, what was predicted of it, and if it is open that of each device. */
  function lines() {
    let y = LINE.head;
    return DATA.tracks.flatMap((row, at) => {
      const own = { row: at, name: ranksOf(row.ranks, 2), count: row.count, isHead: true };
      const open = view.open.has(at) ? members(row).map((rank) => ({ row: at, name: `${rank}`, count: 1, isHead: false })) : [];
      const above = view.measured ? measured.filter((rank) => rank.track === at).map((rank) => ({ row: at, name: `${rank.rank} measured`, count: 1, rank })) : [];
      return [...above, own, ...open];
    }).map((line) => {
      const placed = { ...line, y, height: line.rank ? LINE.measured : LINE.height };
      y += placed.height;
      return placed;
    });
  }

  function scale() {
    const width = Math.max(100, canvas.clientWidth - LINE.left);
    return { width, x: (at) => LINE.left + ((at - view.from) / (view.to - view.from)) * width };
  }

  function draw() {
    const all = lines();
    const [width, height] = [frame.clientWidth - 2, LINE.head + all.reduce((sum, line) => sum + line.height, 0) + 6];
    if (width <= 0) return;
    const ratio = Math.min(devicePixelRatio || 1, 16000 / height);
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const paint = { pen, styles: SORT_STYLES.map(colour), ink: colour("ink"), soft: colour("soft"), track: colour("track"), line: colour("line"), card: colour("card"), talk: colour("communication"), exposed: colour("exposed"), width };
    pen.fillStyle = paint.card;
    pen.fillRect(0, 0, width, height);
    all.forEach((line) => (line.rank ? drawMeasured(paint, line) : drawLine(paint, line, line.y)));
    drawPath(paint, all);
    drawHead(paint, height, all);
  }

  function drawHead({ pen, ink, soft, line, card, width }, height, all) {
    const { x } = scale();
    pen.font = "12px system-ui, sans-serif";
    pen.fillStyle = card;
    pen.fillRect(0, 0, width, LINE.head - 4);
    pen.fillRect(0, 0, LINE.left, height);
    pen.textBaseline = "middle";
    for (const at of ticks(view.from, view.to, Math.max(3, width / 150))) {
      const place = Math.round(x(at)) + 0.5;
      if (place < LINE.left) continue;
      pen.strokeStyle = line;
      pen.beginPath(); pen.moveTo(place, LINE.head - 6); pen.lineTo(place, height); pen.globalAlpha = 0.5; pen.stroke(); pen.globalAlpha = 1;
      pen.fillStyle = soft;
      if (place + 40 < width) pen.fillText(timeOf(at * TICK), place + 3, 11);
    }
    all.forEach(({ row, name, count, isHead, y, height, rank }) => {
      pen.fillStyle = isHead ? ink : soft;
      pen.font = isHead ? "600 13px system-ui, sans-serif" : "12px system-ui, sans-serif";
      if (rank) { pen.font = "11.5px system-ui, sans-serif"; pen.fillText(name, 24, y + height / 2, LINE.left - 30); return; }
      const sign = count > 1 ? (view.open.has(row) ? "▾ " : "▸ ") : isHead ? "   " : "      ";
      pen.fillText(sign + name, 8, y + 16, LINE.left - 14);
      pen.font = "11.5px system-ui, sans-serif";
      pen.fillStyle = soft;
      if (isHead && count > 1) pen.fillText(`${count} devices`, 24, y + 33, LINE.left - 30);
      pen.strokeStyle = line;
      pen.beginPath(); pen.moveTo(0, y + LINE.height - 0.5); pen.lineTo(width, y + LINE.height - 0.5); pen.stroke();
    });
  }

  function drawLine(paint, { row }, y) {
    const { pen } = paint;
    const { x, width } = scale();
    pen.fillStyle = paint.track;
    pen.fillRect(x(Math.max(0, view.from)), y + LINE.compute, Math.max(0, x(Math.min(predicted, view.to)) - x(Math.max(0, view.from))), LINE.thick);
    const [talk, exposed] = [boxes(), boxes()];
    for (const turn of turns[row]) {
      if (turn.end < view.from || turn.start > view.to) continue;
      drawTurn(paint, turn, row, y, x, LINE.left + width);
      addParts(turn, x, LINE.left + width, talk, exposed);
    }
    talk.fill(pen, paint.talk, y + LINE.talk, LINE.thin);
    exposed.fill(pen, paint.exposed, y + LINE.talk + LINE.thin - 4, 4);
  }

  /* What a rank communicated when; what of that it did nothing else for is red. */
  function drawMeasured({ pen, track, talk, exposed }, { rank, y, height }) {
    const { x, width } = scale();
    const [left, right] = [LINE.left, LINE.left + width];
    const box = (from, to, top, high, style) => {
      const [a, b] = [Math.max(left, x(from)), Math.min(right, x(to))];
      if (b < left || a > right) return;
      pen.fillStyle = style;
      pen.fillRect(a, top, Math.max(0.7, b - a), high);
    };
    box(0, rank.seconds / TICK, y + 4, height - 7, track);
    for (let at = 0; at < rank.parts.length; at += MEASURED) {
      const [start, long, waited] = rank.parts.slice(at + 3, at + 6);
      box(start, start + long, y + 4, height - 7, talk);
      if (waited > 0) box(start + long - Math.min(long, waited), start + long, y + height - 7, 4, exposed);
    }
  }

  function drawTurn(paint, turn, row, y, x, right) {
    let slices = DATA.timeline.slices[turn.slices];
    const long = x(turn.end) - x(turn.start);
    const isSmall = slices.length > SLICE && long / (slices.length / SLICE) < 2;
    if (isSmall) slices = small[turn.slices];
    if (slices.length / SLICE > long) drawColumns(paint, turn, slices, y, x, right);
    else drawSlices(paint, turn, slices, row, y, x, right);
    if (isSmall && long > 20 && DATA.overview.micro_batches > 1) label(paint, `${turn.batch + 1}`, x(turn.start), x(turn.end), y);
  }

  function drawColumns(paint, turn, slices, y, x, right) {
    for (const [from, to, sort] of columns(slices, (at) => x(turn.start + at))) {
      if (to < LINE.left || from > right) continue;
      paint.pen.fillStyle = styleOf(paint, turn, sort);
      paint.pen.fillRect(from, y + LINE.compute, to - from, LINE.thick);
    }
  }

  function drawSlices(paint, turn, slices, row, y, x, right) {
    const { pen } = paint;
    for (let at = 0; at < slices.length; at += SLICE) {
      const [from, to] = [x(turn.start + slices[at]), x(turn.start + slices[at] + slices[at + 1])];
      if (to < LINE.left || from > right) continue;
      pen.fillStyle = styleOf(paint, turn, slices[at + 2]);
      const thick = Math.max(0.6, to - from - (to - from > 4 ? 0.8 : 0));
      pen.fillRect(from, y + LINE.compute, thick, LINE.thick);
      if (view.byBatch && slices[at + 2] in { 1: 0, 2: 0 }) {
        pen.fillStyle = paint.styles[slices[at + 2]];
        pen.fillRect(from, y + LINE.compute + LINE.thick - 4, thick, 4);
      }
      if (to - from > 46 && slices[at + 3] >= 0) label(paint, wordOf(row, turn, slices[at + 3]), from, to, y);
    }
  }

  /* What a turn communicates, and what of that its device waits for. */
  function addParts(turn, x, right, talk, exposed) {
    const parts = DATA.timeline.parts[turn.parts];
    for (let at = 0; at < parts.length; at += PART) {
      const [from, to] = [x(turn.start + parts[at + 1]), x(turn.start + parts[at + 1] + parts[at + 2])];
      if (to < LINE.left || from > right) continue;
      talk.add(from, to - (to - from > 4 ? 0.8 : 0));
      const waited = parts[at + 3] / Math.max(1, parts[at + 2]);
      if (waited > 0.01) exposed.add(to - (to - from) * Math.min(1, waited), to);
    }
  }

  function label({ pen }, text, from, to, y) {
    const left = Math.max(from, LINE.left);
    pen.font = "11.5px system-ui, sans-serif";
    pen.textBaseline = "middle";
    if (pen.measureText(text).width > to - left - 8) return;
    pen.fillStyle = "rgba(12, 16, 22, 0.88)";
    pen.fillText(text, left + 4, y + LINE.compute + LINE.thick / 2 + 0.5);
  }

  function styleOf(paint, turn, sort) {
    if (!view.byBatch || sort > 3) return paint.styles[sort];
    return batchColour(turn.batch, DATA.overview.micro_batches);
  }

  function drawPath({ pen, ink }, all) {
    const path = DATA.timeline.path ?? [];
    if (path.length === 0 || !view.path) return;
    const { x } = scale();
    const place = new Map(all.filter((line) => line.isHead).map((line) => [line.row, line.y]));
    pen.save();
    pen.beginPath();
    pen.rect(LINE.left, 0, scale().width, canvas.clientHeight);
    pen.clip();
    pen.strokeStyle = ink;
    pen.lineWidth = 2;
    pen.beginPath();
    for (const [row, from, to] of path) {
      const y = place.get(row) + LINE.compute - 2;
      pen.lineTo(x(from), y);
      pen.lineTo(x(to), y);
    }
    pen.stroke();
    pen.restore();
  }

  /* What is under a point: the turn, and the slice or part of it. */
  function at(event) {
    const box = canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    const line = lines().find((one) => py >= one.y && py < one.y + one.height);
    if (!line) return null;
    if (px < LINE.left) return { line, isLabel: true };
    const time = view.from + ((px - LINE.left) / scale().width) * (view.to - view.from);
    const below = py - line.y >= LINE.talk - 2;
    const slack = (2 / scale().width) * (view.to - view.from);
    if (line.rank) return { line, time, measured: partAt(line.rank.parts, time, slack) };
    const [list, begins, width] = below ? [DATA.timeline.parts, 1, PART] : [DATA.timeline.slices, 0, SLICE];
    let best = null;
    for (const turn of turns[line.row]) {
      const pattern = list[below ? turn.parts : turn.slices];
      for (let n = 0; n < pattern.length; n += width) {
        const start = turn.start + pattern[n + begins];
        const away = Math.max(start - time, time - start - pattern[n + begins + 1], 0);
        if (away <= slack && (!best || away < best.away)) best = { line, turn, below, away, start, numbers: pattern.slice(n, n + width) };
      }
    }
    return best ?? { line, time };
  }

  /* The measured communication at a time, or the nearest one that is close. */
  function partAt(parts, time, slack) {
    let best = null;
    for (let at = 0; at < parts.length; at += MEASURED) {
      const away = Math.max(parts[at + 3] - time, time - parts[at + 3] - parts[at + 4], 0);
      if (away <= slack && (!best || away < best.away)) best = { away, numbers: parts.slice(at, at + MEASURED) };
    }
    return best?.numbers ?? null;
  }

  function sayMeasured({ line, measured: numbers }) {
    if (!numbers) return [h("b", {}, "no communication"), `measured on rank ${line.rank.rank}`];
    const [code, batch, instr, start, long, waited, expected] = numbers;
    const { pass, block, sent } = DATA.timeline.codes[DATA.tracks[line.row].role][code];
    return [h("b", {}, `${kindOf(line.row, code, instr)}, measured`), facts([
      ...operatorsIn(line.row, code, instr),
      ["bytes", sent[instr] ? bytesOf(sent[instr][0]) : null],
      ["took", `${timeOf(long * TICK)}, from ${timeOf(start * TICK)}`],
      ["predicted", `${timeOf(expected * TICK)}${expected > 0 ? `, took ${(long / expected).toFixed(1)} times that` : ""}`],
      ["waited", waited > 0 ? `${timeOf(waited * TICK)}, also for ranks that came later` : "not at all"],
      ["micro-batch", `${batch + 1} of ${DATA.overview.micro_batches}`],
      ["code", `${pass} of block ${block}`],
      ["rank", `${line.rank.rank}`],
    ], {})];
  }

  function say(found) {
    if (!found || found.isLabel) return null;
    if (found.line.rank) return sayMeasured(found);
    if (!found.turn) return [h("b", {}, "idle"), `devices ${found.line.name}`];
    return found.below ? sayPart(found) : saySlice(found);
  }

  function saySlice({ line, turn, start, numbers }) {
    const [, long, sort, instr] = numbers;
    const code = DATA.timeline.codes[DATA.tracks[line.row].role][turn.code];
    return [h("b", {}, DATA.timeline.sorts[sort]), facts([
      ...operatorsIn(line.row, turn.code, instr),
      ["micro-batch", sort === 6 || !code ? null : `${turn.batch + 1} of ${DATA.overview.micro_batches}`],
      ["code", code && sort !== 6 ? `${code.pass} of block ${code.block}${instr >= 0 ? `, ${kindOf(line.row, turn.code, instr)} ${instr}` : ""}` : null],
      ["takes", `${timeOf(long * TICK)}, from ${timeOf(start * TICK)}`],
      ["devices", line.name],
    ], {})];
  }

  function sayPart({ line, turn, start, numbers }) {
    const [instr, , long, exposed] = numbers;
    const [bytes, share] = DATA.timeline.codes[DATA.tracks[line.row].role][turn.code].sent[instr];
    return [h("b", {}, kindOf(line.row, turn.code, instr)), facts([
      ...operatorsIn(line.row, turn.code, instr),
      ["bytes", bytesOf(bytes)],
      ["takes", `${timeOf(long * TICK)}, from ${timeOf(start * TICK)}`],
      ["exposed", exposed > 0 ? `${timeOf(exposed * TICK)}, ${percentOf(exposed / Math.max(1, long))} of it` : "nothing: it is hidden"],
      ["link", `${percentOf(share / 1000)} of its bandwidth`],
      ["micro-batch", `${turn.batch + 1} of ${DATA.overview.micro_batches}`],
      ["devices", line.name],
    ], {})];
  }

  function pick(found) {
    const said = say(found);
    details.replaceChildren(h("h2", {}, "What is picked"),
      ...(said ?? [h("p", { class: "note" }, "Click a slice to keep what it is here.")]));
  }

  function toggleMode() {
    view.byBatch = !view.byBatch;
    mode.setAttribute("aria-pressed", view.byBatch);
    keys.replaceChildren(legendOf(view.byBatch));
    draw();
  }

  function zoom(by, around = (view.from + view.to) / 2) {
    const long = Math.min(whole * 1.02, Math.max(whole * 1e-6, (view.to - view.from) * by));
    const part = (around - view.from) / (view.to - view.from);
    show(around - part * long, long);
  }

  function show(from, long) {
    const start = Math.max(-0.01 * whole, Math.min(from, whole * 1.01 - long));
    [view.from, view.to] = [start, start + long];
    draw();
  }

  const pan = (part) => show(view.from + part * (view.to - view.from), view.to - view.from);
  const fit = () => show(0, whole);

  canvas.addEventListener("keydown", (event) => {
    const act = { ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1.6), f: fit, m: toggleMode }[event.key];
    if (!act || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    act();
  });
  /* With Shift or Ctrl the wheel zooms; without it the page scrolls, as everywhere. */
  canvas.addEventListener("wheel", (event) => {
    if (!event.shiftKey && !event.ctrlKey && !event.altKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
    event.preventDefault();
    if (!event.shiftKey && !event.ctrlKey && !event.altKey) { pan(event.deltaX / scale().width); return; }
    const box = canvas.getBoundingClientRect();
    const around = view.from + ((event.clientX - box.left - LINE.left) / scale().width) * (view.to - view.from);
    zoom((event.deltaY || event.deltaX) > 0 ? 1.25 : 0.8, around);
  }, { passive: false });
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, from: view.from, moved: false }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    if (drag && Math.abs(event.clientX - drag.x) > 3) drag.moved = true;
    if (drag?.moved) {
      tip.hide();
      show(drag.from - ((event.clientX - drag.x) / scale().width) * (view.to - view.from), view.to - view.from);
      return;
    }
    const said = say(at(event));
    if (said) tip.show(event, ...said); else tip.hide();
  });
  canvas.addEventListener("pointerup", (event) => {
    const found = drag && !drag.moved ? at(event) : null;
    drag = null;
    if (found?.isLabel) {
      if (view.open.has(found.line.row)) view.open.delete(found.line.row); else if (found.line.count > 1) view.open.add(found.line.row);
      draw();
    } else if (found) pick(found);
  });
  canvas.addEventListener("pointerleave", tip.hide);
  new ResizeObserver(draw).observe(frame);
  addEventListener("redraw", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  pick(null);
  keys.replaceChildren(legendOf(false));
  const button = (name, label, act) => h("button", { type: "button", "aria-label": label, title: label, onclick: act }, name);
  const hasPath = (DATA.timeline.path ?? []).length > 0;
  const shown = h("button", { type: "button", id: "show-measured", "aria-pressed": "true", onclick: () => { view.measured = !view.measured; shown.setAttribute("aria-pressed", view.measured); draw(); } }, "Measured");
  const critical = h("button", { type: "button", "aria-pressed": "false", onclick: () => { view.path = !view.path; critical.setAttribute("aria-pressed", view.path); draw(); } }, "Critical path");
  return h("div", {},
    measured.length > 0 && measuredCard(),
    card("A step, predicted", `${timeOf(DATA.timeline.seconds)} on ${DATA.overview.cluster.name}`,
      h("div", { class: "tools" }, button("−", "Zoom out", () => zoom(1.6)), button("+", "Zoom in", () => zoom(0.6)), button("All", "Show all of the step", fit),
        DATA.overview.micro_batches > 1 && mode, measured.length > 0 && shown, hasPath && critical, h("span", { class: "space" }),
        h("span", { class: "soft" }, "Drag to move, ", h("kbd", {}, "Ctrl"), " + wheel to zoom; with the picture in focus ", h("kbd", {}, "←"), " ", h("kbd", {}, "→"), " ", h("kbd", {}, "+"), " ", h("kbd", {}, "−"), " ", h("kbd", {}, "F"))),
      frame, keys,
      !DATA.timeline.all_slices && h("p", { class: "note" }, "This step has more slices than fit into the page: operators of one sort that follow each other are one.")),
    details);
}

/* Single devices of a row, of many the first ones. */
function members(row, most = 64) {
  const found = [];
  for (const [first, last] of row.ranks) {
    for (let rank = first; rank <= last && found.length < most; rank++) found.push(rank);
  }
  return found;
}

/* From blue over green to yellow, even for who sees no red or no green. */
function batchColour(batch, batches) {
  const stops = [[86, 104, 184], [56, 150, 178], [66, 184, 140], [150, 208, 92], [240, 216, 72]];
  const place = batches > 1 ? (batch / (batches - 1)) * (stops.length - 1) : 0;
  const at = Math.min(stops.length - 2, Math.floor(place));
  const mixed = stops[at].map((value, n) => Math.round(value + (stops[at + 1][n] - value) * (place - at)));
  return `rgb(${mixed})`;
}

function legendOf(byBatch) {
  const talk = [["var(--communication)", "communication, hidden"], ["var(--exposed)", "communication, waited for"], ["var(--waits)", "waits"], ["var(--track)", "idle, or held up by the host"]];
  const used = new Set(DATA.timeline.slices.flatMap((pattern) => pattern.filter((_, at) => at % SLICE === 2)));
  const computed = SORT_STYLES.map((name, sort) => [`var(--${name})`, DATA.timeline.sorts[sort], sort]).filter(([, , sort]) => sort !== 5 && used.has(sort));
  if (!byBatch) return legend([...computed, ...talk]);
  const batches = DATA.overview.micro_batches;
  const shown = [...new Set([0, 0.25, 0.5, 0.75, 1].map((part) => Math.round(part * (batches - 1))))];
  return legend([...shown.map((batch) => [batchColour(batch, batches), `micro-batch ${batch + 1}`]), ["var(--backward)", "line below: backward"], ...talk]);
}

function instrOf(row, code, instr) {
  const of = DATA.timeline.codes[DATA.tracks[row].role][code];
  return of && instr >= 0 ? of.instrs.slice(3 * instr, 3 * instr + 3) : null;
}

function kindOf(row, code, instr) {
  const found = instrOf(row, code, instr);
  return found ? DATA.timeline.kinds[found[0]] : "";
}

/* The word that stands in a slice. */
function wordOf(row, turn, instr) {
  const found = instrOf(row, turn.code, instr);
  if (!found || found[1] < 0) return found ? DATA.timeline.kinds[found[0]] : "";
  const { module, target } = operatorOf(found[1]);
  return module.split(".").slice(-2).join(".") || shortTarget(target);
}

function operatorsIn(row, code, instr) {
  const found = instrOf(row, code, instr);
  if (!found || found[1] < 0) return [];
  const first = operatorOf(found[1]);
  const more = found[2] > 1 ? ` and ${found[2] - 1} more` : "";
  return [["operator", `${shortTarget(first.target)} %${first.name}${more}`], ["makes", found[2] > 1 ? null : first.makes], ["module", first.module || "the model itself"], ["line", first.line]];
}
