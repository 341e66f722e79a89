/* What is communicated in a step: by kind and link, who with whom, and each entry. */

function communication() {
  const entries = DATA.communication.entries;
  if (entries.length === 0) return card("Communication", null, h("p", { class: "note" }, "Devices communicate nothing."));
  /* What all devices of a row do. */
  const times = (entry) => DATA.tracks[entry.track].count;
  const kinds = sums(entries, (entry) => entry.kind, times);
  const links = sums(entries, (entry) => `${many(entry.members, "device")} ${entry.link}`, times);
  return h("div", {},
    h("div", { class: "two wide" },
      h("div", {}, card("By kind", "all devices together", bars(kinds)), card("By group and link", null, bars(links))),
      card("Who sends how much to whom", "bytes in a step", matrix())),
    card("Each communication", "what is alike in layers and micro-batches is one row", entriesTable(entries)));
}

function sums(entries, name, times) {
  const found = new Map();
  for (const entry of entries) {
    const known = found.get(name(entry)) ?? { bytes: 0, seconds: 0, exposed: 0, count: 0 };
    const all = times(entry);
    known.bytes += entry.bytes * entry.count * all;
    known.seconds += entry.seconds * all;
    known.exposed += entry.exposed * all;
    known.count += entry.count * all;
    found.set(name(entry), known);
  }
  return [...found].sort(([, a], [, b]) => b.seconds - a.seconds);
}

/* Of each name the time, what of it is waited for, and the bytes. */
function bars(found) {
  const most = Math.max(...found.map(([, sum]) => sum.seconds), 1e-12);
  const devices = DATA.overview.devices;
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["", "a device, on average", "bytes, all devices", "times"].map((name, at) => h("th", { class: at > 1 ? "number" : null }, name)))),
    h("tbody", {}, found.map(([name, sum]) => h("tr", {}, h("td", { style: "white-space: nowrap" }, name),
      h("td", {}, h("div", { style: "display: flex; align-items: center; gap: 8px" },
        h("div", { class: "bar", style: `height: 12px; width: 120px; flex: none; background: none` }, told(h("i", { style: `width: ${100 * (sum.seconds - sum.exposed) / most}%; background: var(--communication)` }), () => [h("b", {}, "hidden"), timeOf((sum.seconds - sum.exposed) / devices)]),
          told(h("i", { style: `width: ${100 * sum.exposed / most}%; background: var(--exposed)` }), () => [h("b", {}, "waited for"), timeOf(sum.exposed / devices)])),
        h("span", { style: "white-space: nowrap" }, timeOf(sum.seconds / devices), h("span", { class: "soft" }, `, ${percentOf(sum.seconds ? sum.exposed / sum.seconds : 0)} exposed`)))),
      h("td", { class: "number" }, bytesOf(sum.bytes)), h("td", { class: "number" }, sum.count.toLocaleString("en")))))));
}

function matrix() {
  const { each, lines, bytes } = DATA.communication.matrix;
  const most = Math.max(...bytes, 1);
  const [left, top, size] = [46, 40, 400 / lines];
  const name = (at) => (each === 1 ? `${at}` : `${at * each}..${(at + 1) * each}`);
  const shade = (of) => (of > 0 ? 10 + 90 * Math.sqrt(of / most) : 0);
  const cells = [];
  for (let from = 0; from < lines; from++) {
    for (let to = 0; to < lines; to++) {
      const of = bytes[from * lines + to];
      if (of === 0 && lines > 24) continue;
      cells.push(told(svg("rect", { x: left + to * size, y: top + from * size, width: Math.max(0.5, size - (lines > 24 ? 0 : 1.5)), height: Math.max(0.5, size - (lines > 24 ? 0 : 1.5)), rx: lines > 24 ? 0 : 2, style: of > 0 ? `fill: color-mix(in srgb, var(--p0) ${shade(of).toFixed(0)}%, var(--card))` : "fill: var(--track)" }),
        () => [h("b", {}, `${name(from)} to ${name(to)}`), of > 0 ? bytesOf(of) : "nothing"]));
    }
  }
  /* Long numbers need more room. */
  const every = Math.ceil(lines / (lines * each > 100 ? 8 : 16));
  const marks = Array.from({ length: Math.ceil(lines / every) }, (_, at) => at * every);
  return h("div", {},
    svg("svg", { viewBox: "0 0 452 446", width: "100%", style: "max-width: 460px", role: "img", id: "matrix", "aria-label": "Bytes from each device to each other" },
      svg("text", { class: "soft", x: left, y: 12 }, "to device →"), svg("text", { class: "soft", x: 12, y: top + 70, transform: `rotate(-90 12 ${top + 70})` }, "from ↓"),
      marks.map((at) => [svg("text", { class: "soft", x: left + (at + 0.5) * size, y: top - 8, "text-anchor": "middle", style: "font-size: 10px" }, `${at * each}`),
        svg("text", { class: "soft", x: left - 6, y: top + (at + 0.5) * size + 4, "text-anchor": "end", style: "font-size: 10px" }, `${at * each}`)]),
      lines > 24 && svg("rect", { x: left, y: top, width: 400, height: 400, style: "fill: var(--track)" }), cells),
    h("p", { class: "note" }, "A message goes from one device to another. What a device gives in a collective is drawn as going to all others of its group alike, whatever algorithm moves it.",
      each > 1 ? ` A cell is ${each} × ${each} devices.` : ""));
}

function entriesTable(entries) {
  const words = (entry) => `${entry.kind} ${entry.pass} ${DATA.names.modules[entry.module]} ${DATA.names.targets[entry.target]} ${entry.dtype} ${entry.link} ${ranksOf(DATA.tracks[entry.track].ranks)}`.toLowerCase();
  const columns = [
    { name: "kind", value: (entry) => entry.kind, cell: (entry) => h("code", {}, entry.kind) },
    { name: "devices", value: (entry) => entry.track, cell: (entry) => ranksOf(DATA.tracks[entry.track].ranks, 2) },
    { name: "in", value: (entry) => `${entry.pass} ${entry.block}`, cell: (entry) => (DATA.overview.blocks > 1 ? `${entry.pass} ${entry.block}` : entry.pass) },
    { name: "of", value: (entry) => DATA.names.modules[entry.module], cell: (entry) => [DATA.names.modules[entry.module] || (entry.target !== undefined && DATA.names.targets[entry.target] ? "" : h("span", { class: "soft" }, "parameters")), " ", h("span", { class: "soft mono" }, shortTarget(DATA.names.targets[entry.target]))] },
    { name: "group", value: (entry) => entry.members, cell: (entry) => told(h("span", {}, many(entry.members, "device"), h("span", { class: "soft" }, entry.link === "between nodes" ? " ↔ nodes" : "")), () => [h("b", {}, entry.link), `${entry.group.join(", ")}${entry.members > entry.group.length ? ", …" : ""}`]) },
    { name: "type", value: (entry) => entry.dtype },
    { name: "bytes", number: true, value: (entry) => entry.bytes, cell: (entry) => bytesOf(entry.bytes) },
    { name: "times", number: true, value: (entry) => entry.count },
    { name: "each takes", number: true, value: (entry) => entry.seconds / entry.count, cell: (entry) => timeOf(entry.seconds / entry.count) },
    { name: "in a step", number: true, value: (entry) => entry.seconds, cell: (entry) => timeOf(entry.seconds) },
    { name: "waited for", number: true, value: (entry) => entry.exposed, cell: (entry) => [timeOf(entry.exposed), minibar([[entry.seconds ? Math.min(1, entry.exposed / entry.seconds) : 0, "exposed"]])] },
    { name: "of its link", number: true, value: (entry) => entry.share, cell: (entry) => percentOf(entry.share) },
  ];
  return h("div", { id: "entries" }, table(columns, entries, { filter: words }));
}
