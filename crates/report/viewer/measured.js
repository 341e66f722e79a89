/* What was measured beside what was predicted. */

function measuredCard() {
  const of = DATA.recorded;
  const signed = (seconds) => `${seconds > 0 ? "+" : seconds < 0 ? "−" : ""}${timeOf(Math.abs(seconds))}`;
  const columns = [
    { name: "kind", value: (entry) => entry.kind, cell: (entry) => h("code", {}, entry.kind) },
    { name: "of", value: (entry) => entry.module, cell: (entry) => entry.module || h("span", { class: "soft" }, "parameters") },
    { name: "in", value: (entry) => entry.pass },
    { name: "times", number: true, value: (entry) => entry.count, cell: (entry) => `${Math.round(entry.count)}` },
    { name: "predicted", number: true, value: (entry) => entry.predicted, cell: (entry) => timeOf(entry.predicted) },
    { name: "measured", number: true, value: (entry) => entry.measured, cell: (entry) => timeOf(entry.measured) },
    { name: "of the predicted", number: true, value: (entry) => entry.times, cell: (entry) => `${entry.times.toFixed(1)}×` },
    { name: "difference", number: true, value: (entry) => Math.abs(entry.measured - entry.predicted), cell: (entry) => signed(entry.measured - entry.predicted) },
  ];
  const where = of.cluster && of.cluster !== DATA.overview.cluster.name ? ` It was recorded for ${of.cluster}; the page predicts for ${DATA.overview.cluster.name}.` : "";
  return card("Measured and predicted", many(of.steps, "recorded step"),
    h("div", { id: "measured" }, of.words.map((words) => h("p", { class: "lead" }, words)),
      of.entries.length > 0 && h("details", {}, h("summary", {}, "All kinds of communication"), table(columns, of.entries, { filter: (entry) => `${entry.name} ${entry.kind} ${entry.pass}`.toLowerCase() })),
      h("p", { class: "note" }, "Seconds of a step, of one device. Of each communication the least that any of its members measured: who comes early also measures the wait for the others.", where)));
}
