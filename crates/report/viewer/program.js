/* The emitted program beside the operators of the graph, of one role at a time. */

function program() {
  const roles = DATA.program.roles;
  const place = h("div", {});
  const choose = h("select", { "aria-label": "Role", onchange: () => show(Number(choose.value)) },
    roles.map((role, at) => h("option", { value: at }, `${role.file}: devices ${ranksOf(role.ranks)}`)));
  function show(at) { place.replaceChildren(roleOf(at)); }
  show(0);
  return h("div", {}, roles.length > 1 && h("div", { class: "tools" }, "Role ", choose), place);
}

function roleOf(number) {
  const role = DATA.program.roles[number];
  if (role.text === null) return card(role.file, null, h("p", { class: "note" }, "There are so many files that this one is left out. `shardwright emit` writes it."));
  const links = linksOf(number);
  const lit = [];
  const codeLines = role.text.split("\n").map((text, at) => h("span", { class: "row", "data-line": at + 1 }, h("span", { class: "no" }, `${at + 1}`), painted(text)));
  const operatorLines = new Map();
  const operators = [...links.byOperator.keys()].sort((a, b) => a - b).slice(0, 1500);
  const list = operators.map((operator, at) => {
    const of = operatorOf(operator);
    const line = h("span", { class: "row", tabindex: 0 }, h("span", { class: "soft", style: "display: inline-block; min-width: 18ch; margin-right: 14px" }, of.line), `%${of.name} = ${shortTarget(of.target)}  `, h("span", { class: "soft" }, of.module));
    operatorLines.set(operator, line);
    line.addEventListener("mouseenter", () => light([operator], false));
    line.addEventListener("focus", () => light([operator], true));
    line.addEventListener("click", () => light([operator], true));
    /* A line of the model stands above the operators that it makes. */
    const isNew = at === 0 || operatorOf(operators[at - 1]).line !== of.line;
    return of.source && isNew ? [h("span", { class: "source" }, painted(of.source)), line] : line;
  });
  codeLines.forEach((line, at) => {
    const operators = links.byLine.get(at + 1);
    if (operators) line.addEventListener("mouseenter", () => lightLine(at, operators, false));
    if (operators) line.addEventListener("click", () => lightLine(at, operators, true));
  });

  function clear() { lit.splice(0).forEach((line) => line.classList.remove("lit")); }
  function mark(line) { line.classList.add("lit"); lit.push(line); }
  function light(operators, isFollowed) {
    clear();
    operators.forEach((operator) => {
      mark(operatorLines.get(operator));
      const lines = links.byOperator.get(operator);
      lines.forEach((line) => mark(codeLines[line - 1]));
      if (isFollowed) inView(codeLines[lines[0] - 1]);
    });
  }
  function lightLine(at, operators, isFollowed) {
    clear();
    mark(codeLines[at]);
    const shown = operators.map((operator) => operatorLines.get(operator)).filter(Boolean);
    shown.forEach(mark);
    if (isFollowed && shown[0]) inView(shown[0]);
  }

  return h("div", { class: "panes" },
    card("Graph", DATA.names.sources.length ? "the model's lines, and the operators of each" : "line of the model, operator, module", h("div", { class: "scroll" }, h("pre", { class: "codes", id: "graph" }, list))),
    card(role.file, "what these devices run; hover to see what belongs together", h("div", { class: "scroll" }, h("pre", { class: "codes", id: "emitted" }, codeLines))));
}

/* In its own pane, without moving the page. */
function inView(line) {
  const pane = line.closest(".scroll");
  const [own, around] = [line.getBoundingClientRect(), pane.getBoundingClientRect()];
  if (own.top < around.top || own.bottom > around.bottom) pane.scrollTop += own.top - around.top - around.height / 3;
}

/* The lines of the emitted files in which an operator of the model stands, by its name: the file, and numbers of lines. */
const emittedOf = (() => {
  const links = new Map();
  return (name) => {
    const operator = DATA.operators.findIndex(([own]) => own === name);
    return DATA.program.roles.flatMap((role, number) => {
      if (role.text === null) return [];
      if (!links.has(number)) links.set(number, linksOf(number).byOperator);
      const lines = links.get(number).get(operator);
      return lines ? [{ role, lines }] : [];
    });
  };
})();

/* The operators of an instruction, in its order. Most follow each other; of those that do not, all are listed. */
function computedBy(code, instr) {
  const [, first, count] = code.instrs.slice(3 * instr, 3 * instr + 3);
  return code.apart[instr] ?? Array.from({ length: count }, (_, at) => first + at);
}

/* Which operators stand in which lines of the emitted file. */
function linksOf(number) {
  const codes = DATA.timeline.codes[number];
  const byLine = new Map();
  const byOperator = new Map();
  const add = (map, key, value) => { const known = map.get(key) ?? []; if (!known.includes(value)) known.push(value); map.set(key, known); };
  DATA.program.roles[number].lines.forEach((lines, code) => lines.forEach((line, instr) => {
    const [own, ...inside] = Array.isArray(line) ? line : [line];
    if (own === 0) return;
    computedBy(codes[code], instr).forEach((operator, number) => {
      const at = inside[number];
      if (at) { add(byLine, at, operator); add(byOperator, operator, at); }
      add(byLine, own, operator);
      add(byOperator, operator, own);
    });
  }));
  return { byLine, byOperator };
}

/* A line of Python with its comment, strings and words apart. */
function painted(text) {
  const pieces = text.match(/#.*$|"[^"]*"|'[^']*'|\b(?:def|return|for|in|if|else|import|from|with|class|as|not|and|or|None|True|False)\b|[^#"'\w]+|\w+|./g) ?? [];
  return pieces.map((piece) => {
    if (piece.startsWith("#")) return h("span", { class: "comment" }, piece);
    if (/^["']/.test(piece) && piece.length > 1) return h("span", { class: "string" }, piece);
    if (/^(def|return|for|in|if|else|import|from|with|class|as|not|and|or|None|True|False)$/.test(piece)) return h("span", { class: "word" }, piece);
    return piece;
  });
}
