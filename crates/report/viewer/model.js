/* The modules of the model, with how each is sharded and what it takes. */

const CHIPS = ["p0", "p2", "p3", "p6", "p7", "p1", "p8"];

/* Each dim has its colour, wherever it is. */
const chipOf = (() => {
  const known = new Map();
  return (word) => {
    if (!known.has(word)) known.set(word, CHIPS[known.size % CHIPS.length]);
    return known.get(word);
  };
})();

function model() {
  const details = h("div", { class: "details" });
  const body = h("tbody");
  const closed = new Map();
  const most = Math.max(...inners(DATA.model.tree).map((node) => node.takes[0] + node.takes[2]), 1e-12);

  function opened(node, depth) {
    return closed.get(node) ?? depth < (inners(DATA.model.tree).length < 30 ? 4 : 3);
  }

  function fill() {
    body.replaceChildren(...lines(DATA.model.tree, 0));
  }

  function lines(node, depth) {
    const isOpen = opened(node, depth);
    const has = node.inner.length + node.operators.length > 0;
    const toggle = () => { closed.set(node, !isOpen); fill(); [...body.rows].find((row) => row.node === node)?.focus(); pick(details, sayModule(node)); };
    const line = h("tr", { class: "opens", tabindex: 0, onclick: toggle, onkeydown: (event) => { if (event.key === "Enter") toggle(); }, "data-path": node.path },
      h("td", { style: `padding-left: ${10 + 18 * depth}px` }, h("span", { class: "fold" }, has ? (isOpen ? "▾" : "▸") : ""),
        h("b", {}, node.name || DATA.overview.model), node.count > 1 && h("span", { class: "soft" }, ` ${node.count} ×`), node.class && h("span", { class: "soft" }, ` ${node.class}`)),
      h("td", {}, node.is_even || !node.mostly ? chips(node.mostly) : [chips(node.mostly), h("span", { class: "soft" }, "mostly")]),
      h("td", {}, node.placement === null ? "" : devicesOf(node.everywhere), node.recomputed > 0 && h("span", { class: "soft" }, " recomputed")),
      h("td", { class: "number" }, percentOf(node.work)),
      h("td", { class: "number" }, timeOf(node.takes[0]), minibar([[node.takes[0] / most, "forward"], [node.takes[2] / most, "exposed"]])),
      h("td", { class: "number" }, node.takes[1] ? timeOf(node.takes[1]) : ""),
      h("td", { class: "number" }, node.takes[2] ? timeOf(node.takes[2]) : ""),
      h("td", { class: "number" }, node.takes[3] ? bytesOf(node.takes[3]) : ""),
      h("td", { class: "number" }, node.parameters ? bytesOf(node.parameters) : ""));
    line.node = node;
    if (!isOpen) return [line];
    return [line, ...operatorLines(node, depth + 1), ...node.inner.flatMap((inner) => lines(inner, depth + 1))];
  }

  /* Those of a module that has others inside are folded: they are seldom what is looked for. */
  function operatorLines(node, depth) {
    const own = node.operators.map((operator) => operatorLine(operator, depth));
    if (node.inner.length === 0 || own.length < 3) return own;
    const isOpen = closed.get(node.operators) ?? false;
    const toggle = () => { closed.set(node.operators, !isOpen); fill(); };
    const head = h("tr", { class: "opens", tabindex: 0, onclick: toggle, onkeydown: (event) => { if (event.key === "Enter") toggle(); } },
      h("td", { colspan: 9, style: `padding-left: ${10 + 18 * depth}px` }, h("span", { class: "fold" }, isOpen ? "▾" : "▸"), h("span", { class: "soft" }, `${own.length} operators of its own`)));
    return isOpen ? [head, ...own] : [head];
  }

  function operatorLine(operator, depth) {
    const open = () => {
      pick(details, sayOperator(operator));
      /* In a narrow window they are below all modules. */
      if (matchMedia("(max-width: 1000px)").matches) details.scrollIntoView({ block: "start" });
    };
    return h("tr", { class: "opens", tabindex: 0, onclick: open, onkeydown: (event) => { if (event.key === "Enter") open(); } },
      h("td", { style: `padding-left: ${10 + 18 * depth}px` }, h("span", { class: "fold" }), h("span", { class: "mono" }, shortTarget(DATA.names.targets[operator.target])), h("span", { class: "soft mono" }, ` %${operator.name}`)),
      h("td", {}, chips(operator.ways)), h("td", {}, devicesOf(operator.placement)),
      h("td", { class: "number" }, ""),
      h("td", { class: "number" }, operator.takes[0] ? [timeOf(operator.takes[0]), minibar([[operator.takes[0] / most, "forward"], [operator.takes[2] / most, "exposed"]])] : ""),
      h("td", { class: "number" }, operator.takes[1] ? timeOf(operator.takes[1]) : ""),
      h("td", { class: "number" }, operator.takes[2] ? timeOf(operator.takes[2]) : ""),
      h("td", { class: "number" }, operator.takes[3] ? bytesOf(operator.takes[3]) : ""), h("td", { class: "number" }, ""));
  }

  fill();
  pick(details, sayModule(DATA.model.tree));
  const heads = [["module", ""], ["sharded along", ""], ["devices", ""], ["work", "number"], ["computes", "number"], ["communicates", "number"], ["waits", "number"], ["moves", "number"], ["parameters", "number"]];
  return h("div", { class: "side" },
    card("Modules", "layers that are alike are one; times are of the device with most of it", h("div", { class: "scroll" },
      h("table", { class: "tree", id: "modules" }, h("thead", {}, h("tr", {}, heads.map(([name, kind]) => h("th", { class: kind, scope: "col" }, name)))), body))),
    h("div", { style: "position: sticky; top: 96px" }, details));
}

function pick(place, children) {
  place.replaceChildren(...children);
}

function inners(node) {
  return [...node.inner, ...node.inner.flatMap(inners)];
}

function minibar(parts) {
  return h("span", { class: "minibar" }, h("span", { style: "display: flex; height: 100%" }, parts.map(([part, name]) => h("i", { style: `width: ${100 * part}%; background: var(--${name})` }))));
}

function chips(ways) {
  if (!ways || ways.length === 0) return h("span", { class: "soft" }, "whole");
  return ways.map(([word, parts]) => h("span", { class: "chip", style: `--chip: var(--${word === "copies" ? "copies" : chipOf(word)})` }, `${word} ${parts}`));
}

/* Devices of a placement in the order of the parts. */
function placed(number) {
  return DATA.model.placements[number].flatMap(([first, step, count]) => Array.from({ length: count }, (_, at) => first + step * at));
}

function devicesOf(number) {
  const runs = DATA.model.placements[number];
  const devices = [...new Set(placed(number))].sort((a, b) => a - b);
  if (devices.length === 1) return `${devices[0]}`;
  const isRow = devices[devices.length - 1] - devices[0] + 1 === devices.length;
  return isRow ? `${devices[0]}..${devices[devices.length - 1] + 1}` : `${devices.length} of ${devices[0]}..${devices[devices.length - 1] + 1}${runs.length > 1 ? "" : ` by ${runs[0][1]}`}`;
}

/* Devices as a small grid: down the first dim that is split, across the others. */
function shardGrid(ways, number) {
  const devices = placed(number);
  const parts = ways.length ? ways : [["whole", devices.length || 1]];
  const down = parts.length > 1 ? parts[0][1] : parts[0][1] > 16 ? Math.ceil(parts[0][1] / 16) : 1;
  const across = Math.ceil(devices.length / down);
  const [rows, columns] = [Math.min(down, 12), Math.min(across, 16)];
  const size = Math.max(18, Math.min(44, Math.floor(300 / columns)));
  const cells = [];
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) {
      const at = r * across + c;
      if (at >= devices.length) continue;
      const place = coordinates(parts, at);
      const shade = parts[0][1] > 1 ? 18 + 62 * ((parts.length > 1 ? place[1] / Math.max(1, parts[1][1] - 1) : place[0] / (parts[0][1] - 1))) : 40;
      const name = parts.length > 1 ? chipOf(parts[1][0]) : ways.length ? chipOf(parts[0][0]) : "copies";
      const cell = svg("g", {}, svg("rect", { x: c * size + 1, y: r * size + 1, width: size - 2, height: size - 2, rx: 3, style: `fill: color-mix(in srgb, var(--${name}) ${shade.toFixed(0)}%, var(--card)); stroke: var(--line)` }),
        size >= 22 && svg("text", { x: c * size + size / 2, y: r * size + size / 2 + 4, "text-anchor": "middle", style: "font-size: 11px" }, `${devices[at]}`));
      cells.push(told(cell, () => [h("b", {}, `device ${devices[at]}`), ways.length ? parts.map(([word, of], n) => h("div", {}, `${word}: part ${place[n] + 1} of ${of}`)) : "all of it"]));
    }
  }
  const more = rows < down || columns < across;
  return h("div", {}, svg("svg", { width: columns * size, height: rows * size, role: "img", "aria-label": "devices and their parts" }, cells),
    h("p", { class: "note" }, ways.length > 1 ? `down: ${parts[0][0]} in ${parts[0][1]}; across: ${parts.slice(1).map(([word, of]) => `${word} in ${of}`).join(", ")}` : ways.length ? `${parts[0][0]} in ${parts[0][1]} parts` : "each of them computes all of it",
      more ? "; the first devices are shown" : ""));
}

/* Which part of each dim, the last running fastest. */
function coordinates(ways, at) {
  const found = [];
  for (const [, parts] of [...ways].reverse()) {
    found.unshift(at % parts);
    at = Math.floor(at / parts);
  }
  return found;
}

function sayModule(node) {
  return [card(node.path || DATA.overview.model, node.class,
    facts([
      ["alike", node.count > 1 ? `${node.count} modules` : null],
      ["operators", `${node.number}`],
      ["of the work", percentOf(node.work)],
      ["computes", timeOf(node.takes[0])], ["communicates", timeOf(node.takes[1])], ["waits", timeOf(node.takes[2])],
      ["moves", bytesOf(node.takes[3])],
      ["parameters", node.parameters ? bytesOf(node.parameters) : null],
      ["block", DATA.overview.blocks > 1 ? `${node.block}` : null],
      ["recomputed", node.recomputed ? many(node.recomputed, "operator") : null],
    ]),
    node.mostly && node.placement !== null && [h("h2", { style: "margin-top: 16px" }, node.is_even ? "Sharding" : "Sharding of most of the work"), chips(node.mostly), h("div", { style: "margin-top: 10px" }, shardGrid(node.mostly, node.placement))])];
}

function sayOperator(operator) {
  return [card(shortTarget(DATA.names.targets[operator.target]), `%${operator.name}`,
    facts([
      ["operator", h("code", {}, DATA.names.targets[operator.target])],
      ["line", [h("code", {}, DATA.names.lines[operator.line]), sourceOf(operator.line) && h("pre", { class: "wrap" }, painted(sourceOf(operator.line)))]],
      ["alike", operator.count > 1 ? many(operator.count, "operator") : null],
      ["reads", h("code", {}, operator.inputs.map((name, at) => `%${name} ${operator.reads[at]}`).join(", "))],
      ["makes", operator.makes && h("code", {}, operator.makes)],
      ["rule", operator.rule ? h("code", {}, operator.rule) : "none: every device computes it whole"],
      ["marks", marksOf(operator.rule)],
      ["may split", operator.rule && (operator.dims.map(([name, size]) => `${name} (${size})`).join(", ") || "nothing")],
      ["work", operator.work ? operationsOf(operator.work) : null],
      ["computes", timeOf(operator.takes[0])], ["communicates", timeOf(operator.takes[1])], ["waits", timeOf(operator.takes[2])],
      ["moves", operator.takes[3] ? bytesOf(operator.takes[3]) : null],
    ]),
    h("h2", { style: "margin-top: 16px" }, "Sharding"), chips(operator.ways),
    h("div", { style: "margin-top: 10px" }, shardGrid(operator.ways, operator.placement)),
    sayAlternatives(operator), sayEmitted(operator))];
}

/* What the marks of a rule mean; null if it has none. */
function marksOf(rule) {
  const found = Object.entries(MARKS).filter(([mark]) => rule?.includes(mark));
  return found.length ? found.map(([mark, meaning]) => h("div", {}, h("code", {}, mark), ` ${meaning}`)) : null;
}

/* The other ways to shard it among the plans that were compared: each by the quickest plan that has it. */
function sayAlternatives(operator) {
  if (operator.alternatives.length < 2) return null;
  const plans = DATA.compare.plans;
  const own = operator.ways.map(([word, parts]) => `${word} ${parts}`).join(" x ");
  const isOwn = (way) => (own ? way === own : way.startsWith("whole"));
  const line = ([way, number]) => {
    const plan = plans[number];
    return told(h("tr", { class: isOwn(way) ? "chosen" : null }, h("td", {}, way), h("td", { class: "number" }, plan.fits ? timeOf(plan.seconds) : "no room"), h("td", { class: "number" }, bytesOf(plan.memory[0]))),
      () => [h("b", {}, plan.plan), many(plan.micro_batches, "micro-batch").replace("batchs", "batches")]);
  };
  return [h("h2", { style: "margin-top: 16px" }, "Other ways", h("small", {}, "a step of the quickest plan with each")),
    h("table", { id: "alternatives" }, h("thead", {}, h("tr", {}, h("th", {}, "split"), h("th", { class: "number" }, "a step"), h("th", { class: "number" }, "memory"))), h("tbody", {}, operator.alternatives.map(line)))];
}

/* Where it stands in the emitted program. */
function sayEmitted(operator) {
  const found = emittedOf(operator.name);
  if (found.length === 0) return null;
  return [h("h2", { style: "margin-top: 16px" }, "Emitted"), found.slice(0, 2).map(({ role, lines }) => {
    const text = role.text.split("\n");
    return [h("p", { class: "note" }, role.file), h("pre", { class: "codes wrap", "data-emitted": role.file }, lines.slice(0, 6).map((line) => h("span", { class: "row" }, h("span", { class: "no" }, `${line}`), painted(text[line - 1].trim()))))];
  })];
}
