/* What is said of a plan before anything is drawn. */

const SPENT = [
  ["forward", "forward", "forward"], ["backward", "backward", "backward"], ["again", "recomputed", "recomputed"],
  ["copies", "copies", "copies and the host"], ["update", "optimizer", "optimizer"], ["exposed", "exposed", "waits for communication"],
  ["idle", "waits", "idle"],
];

function overview() {
  const of = DATA.overview;
  return h("div", {},
    h("div", { class: "card" }, h("p", { class: "lead", id: "sentence" }, sentence(of))),
    h("div", { class: "grid" }, figures(of)),
    card("Where the time goes", "one device of each kind", DATA.tracks.slice(0, 12).map(spent),
      legend(SPENT.map(([, name, word]) => [`var(--${name})`, word]))),
    h("div", { class: "two" },
      card("Proved", null, h("pre", { class: "wrap" }, of.proof.trim())),
      h("div", {},
        card("Made by", null, h("pre", { class: "wrap", id: "command" }, of.command),
          h("p", { class: "note" }, `Shardwright ${of.version}, graph ${of.digest.slice(0, 16)}, data ${DATA.schema}.`)),
        card("The plan as text", null, h("div", { class: "scroll" }, h("pre", {}, of.plan_text.trim()))))));
}

/* The plan in a sentence. */
function sentence(of) {
  const parts = [`${of.model} with ${countOf(of.parameters)} parameters runs on ${many(of.devices, "device")} of ${of.cluster.name} under the plan `,
    h("b", {}, of.plan), ": "];
  const operators = of.operators;
  const said = [`${operators.split} operators are split`];
  if (operators.replicated) said.push(`${operators.replicated} are replicated`);
  if (operators.single) said.push(`${operators.single} run on one device`);
  parts.push(said.join(", "), ".");
  if (of.blocks > 1) parts.push(` A pipeline of ${of.blocks} blocks runs ${many(of.micro_batches, "micro-batch")}.`.replace("batchs", "batches"));
  for (const kept of of.sharded_parameters) {
    parts.push(` ${many(kept.count, "parameter")} (${bytesOf(kept.bytes)}) are sharded over ${kept.over} devices.`);
  }
  if (of.recomputed) parts.push(` Backward recomputes ${many(of.recomputed, "operator")}.`);
  if (of.offloaded) parts.push(` What ${many(of.offloaded, "operator")} keep is on the host meanwhile.`);
  return parts;
}

function figures(of) {
  const figure = (name, value, what, ...more) =>
    h("div", { class: "card figure", "data-figure": name }, h("span", { class: "what" }, what), h("b", {}, value), ...more);
  const more = (text) => h("div", { class: "more" }, text);
  const meter = (part, style = "var(--accent)") =>
    h("div", { class: "meter" }, h("i", { style: `width: ${Math.min(100, 100 * part)}%; background: ${style}` }));
  const memory = of.memory;
  const used = memory.needed / memory.there;
  const found = [
    figure("seconds", timeOf(of.seconds), "a step takes", more(`${operationsOf(of.operations)} of the model, ${of.micro_batches} × ${of.rows_of_inputs ?? "?"} rows`)),
    of.tokens && of.seconds > 0 && figure("tokens", `${countOf(of.tokens / of.seconds)}`, "tokens a second", more(`${countOf(of.tokens)} tokens in a step`)),
    figure("utilisation", percentOf(of.utilisation), "of what the devices can compute", meter(of.utilisation)),
    figure("memory", bytesOf(memory.needed), used > 1 ? "memory: does not fit" : "memory at the peak",
      meter(used, used > 1 ? "var(--exposed)" : "var(--accent)"), more(`${percentOf(used)} of ${bytesOf(memory.there)}, rank ${memory.rank}, ${of.optimizer}`)),
  ];
  if (of.bound) {
    found.push(figure("bound", `${(of.seconds / of.bound).toFixed(2)}×`, "the lower bound",
      more(`no plan takes less than ${timeOf(of.bound)}`)));
  }
  return found;
}

/* The parts of a device's time, as one bar. */
function spent(row) {
  const seconds = DATA.timeline.seconds;
  const name = `${ranksOf(row.ranks)}${row.count > 1 ? ` (${many(row.count, "device")})` : ""}`;
  return h("div", { style: "display: grid; grid-template-columns: 190px minmax(0, 1fr); gap: 12px; margin: 4px 0; align-items: center" },
    h("span", {}, name),
    h("div", { class: "bar", role: "img", "aria-label": `time of devices ${name}` },
      SPENT.map(([part, style, word]) => row.seconds[part] > 0 && told(
        h("i", { style: `width: ${100 * row.seconds[part] / seconds}%; background: var(--${style})` }),
        () => [h("b", {}, word), `${timeOf(row.seconds[part])}, ${percentOf(row.seconds[part] / seconds)} of the step`]))));
}
