/* All plans that were looked at: time against memory. */

function compare() {
  return h("div", {}, comparedPlans(), sensitivity());
}

function comparedPlans() {
  const of = DATA.compare;
  if (!of || of.plans.length === 0) {
    return card("Compare", null, h("p", { class: "note" }, "Only this plan was looked at. With --compare the page also shows all plans with names, in all their shapes."));
  }
  const isChosen = (plan) => plan.is_this;
  const columns = [
    { name: "plan", value: (plan) => plan.plan, cell: (plan) => [h("code", {}, plan.plan), isChosen(plan) ? h("span", { class: "soft" }, " this one") : ""] },
    { name: "micro-batches", number: true, value: (plan) => plan.micro_batches },
    { name: "step", number: true, value: (plan) => plan.seconds, cell: (plan) => timeOf(plan.seconds) },
    { name: "of the quickest", number: true, value: (plan) => plan.seconds, cell: (plan) => `${(plan.seconds / of.plans[0].seconds).toFixed(2)}×` },
    { name: "utilisation", number: true, value: (plan) => plan.utilisation, cell: (plan) => percentOf(plan.utilisation) },
    { name: "memory", number: true, value: (plan) => plan.memory[0], cell: (plan) => bytesOf(plan.memory[0]) },
    { name: "fits", value: (plan) => (plan.fits ? "yes" : "no") },
  ];
  const opened = h("div", { id: "opened", "aria-live": "polite" }, h("p", { class: "note" }, "Click a plan for the command that makes its page."));
  const open = (plan) => opened.replaceChildren(...sayPlan(plan, isChosen(plan)));
  return h("div", {},
    card("Step time against memory", `${many(of.plans.length, "plan")} that were simulated`, fitted((width) => scatter(of, isChosen, open, width)), legendOfPlans(of)),
    card("Plans", "the quickest first", opened, h("div", { id: "plans" }, table(columns, of.plans, { filter: (plan) => plan.plan.toLowerCase(), chosen: isChosen, onRow: open }))));
}

/* The command that makes a plan's page. */
function sayPlan(plan, isChosen) {
  const head = h("h2", {}, plan.plan, h("small", {}, isChosen ? "this page" : `${timeOf(plan.seconds)}, ${bytesOf(plan.memory[0])}`));
  const command = isChosen ? DATA.overview.command : plan.command;
  if (!command) return [head, h("p", { class: "note" }, "This plan was found by the search and has no name. With --compare, plans are kept as `row:1` and so on.")];
  const copy = h("button", { type: "button", onclick: () => navigator.clipboard?.writeText(command) }, "Copy");
  return [head, h("pre", { class: "wrap", id: "opened-command" }, command), h("div", { class: "tools", style: "margin-top: 8px" }, copy)];
}

/* What the step would take on a cluster with quicker parts. */
function sensitivity() {
  const of = DATA.sensitivity;
  const now = DATA.overview.seconds;
  const part = (row) => Math.min(1, now > 0 ? row.seconds / now : 1);
  const columns = [
    { name: "with", value: (row) => row.what },
    { name: "step", number: true, value: (row) => row.seconds ?? now, cell: (row) => ("fits" in row ? (row.fits ? "fits" : "does not fit") : timeOf(row.seconds)) },
    { name: "of now", number: true, value: (row) => row.seconds ?? now, cell: (row) => ("fits" in row ? "" : [percentOf(part(row)), minibar([[part(row), "forward"]])]) },
  ];
  return card("What holds the step back", "this program on a changed cluster, one change at a time",
    h("div", { id: "sensitivity" }, of.words.map((words) => h("p", { class: "lead" }, words)), table(columns, of.rows)));
}

function scatter(of, isChosen, open, width) {
  const [height, left, right, top, bottom] = [width < 600 ? 340 : 420, 92, 24, 24, 46];
  const times = of.plans.map((plan) => plan.seconds);
  /* A bound that is far away would press all plans to the side. */
  const isNear = of.bound > 0 && Math.min(...times) / of.bound < 20;
  const [least, longest] = [Math.min(...times, isNear ? of.bound : Infinity), Math.max(...times)];
  /* Plans differ by orders of magnitude. */
  const log = (value) => Math.log(value);
  const [a, b] = [log(least) - 0.05, Math.max(log(longest) + 0.05, log(least) + 0.3)];
  const there = Math.max(...of.plans.map((plan) => plan.memory[1]));
  const high = Math.min(Math.max(...of.plans.map((plan) => plan.memory[0])) * 1.08, there * 4);
  const x = (seconds) => left + ((log(seconds) - a) / (b - a)) * (width - left - right);
  const y = (bytes) => height - bottom - (Math.min(bytes, high) / high) * (height - top - bottom);
  const frontier = [];
  for (const plan of [...of.plans].sort((p, q) => p.seconds - q.seconds || p.memory[0] - q.memory[0])) {
    if (frontier.length === 0 || plan.memory[0] < frontier[frontier.length - 1].memory[0]) frontier.push(plan);
  }
  const steps = frontier.map((plan, at) => `${at ? `H ${x(plan.seconds)} V ${y(plan.memory[0])}` : `M ${x(plan.seconds)} ${y(plan.memory[0])}`}`).join(" ");
  const marks = logTicks(Math.exp(a), Math.exp(b), width / 70);
  /* Of marks that lie close together not all say what they are. */
  const said = new Set();
  for (const at of marks) if (said.size === 0 || x(at) - x([...said].at(-1)) > 56) said.add(at);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "plot", role: "img", id: "scatter", "aria-label": "Step time against memory" },
    byteTicks(high, 6).map((at) => [svg("line", { class: "axis", x1: left, x2: width - right, y1: y(at), y2: y(at) }), svg("text", { class: "soft", x: left - 8, y: y(at) + 4, "text-anchor": "end" }, bytesOf(at))]),
    marks.map((at) => [svg("line", { class: "axis", x1: x(at), x2: x(at), y1: top, y2: height - bottom }), said.has(at) && svg("text", { class: "soft", x: x(at), y: height - bottom + 18, "text-anchor": "middle" }, timeOf(at))]),
    there < high && [svg("line", { x1: left, x2: width - right, y1: y(there), y2: y(there), stroke: "var(--exposed)", "stroke-width": 2, "stroke-dasharray": "7 4" }), svg("text", { x: width - right, y: y(there) - 6, "text-anchor": "end", class: "over", style: "fill: var(--exposed)" }, `a device has ${bytesOf(there)}`)],
    of.bound > 0 && !isNear && svg("text", { x: left + 6, y: top - 8, class: "over", style: "fill: var(--good)" }, `← lower bound ${timeOf(of.bound)}`),
    isNear && [svg("line", { x1: x(of.bound), x2: x(of.bound), y1: top, y2: height - bottom, stroke: "var(--good)", "stroke-width": 2 }), svg("text", { x: x(of.bound) + 6, y: top + 10, class: "over", style: "fill: var(--good)" }, "lower bound")],
    svg("path", { d: steps, fill: "none", stroke: "var(--accent)", "stroke-width": 1.5, "stroke-dasharray": "4 3" }),
    of.plans.map((plan) => told(svg("circle", { onclick: () => open(plan), cx: x(plan.seconds), cy: y(plan.memory[0]), r: isChosen(plan) ? 8 : 5, style: `fill: ${isChosen(plan) ? "var(--backward)" : plan.fits ? "var(--p0)" : "var(--exposed)"}; fill-opacity: ${isChosen(plan) ? 1 : 0.6}; stroke: var(--card); cursor: pointer` }),
      () => [h("b", {}, plan.plan), facts([["step", timeOf(plan.seconds)], ["memory", bytesOf(plan.memory[0])], ["micro-batches", `${plan.micro_batches}`], ["fits", plan.fits ? "yes" : "no"]], {})])),
    svg("text", { class: "soft", x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, "step time"),
    svg("text", { class: "soft", x: 10, y: height / 2, transform: `rotate(-90 10 ${height / 2})`, "text-anchor": "middle" }, "memory of the fullest device"));
}

function legendOfPlans(of) {
  return legend([["var(--backward)", "this plan"], ["var(--p0)", "other plans"], ...(of.plans.some((plan) => !plan.fits) ? [["var(--exposed)", "does not fit"]] : []), ["var(--accent)", "frontier: none is quicker with less memory"]]);
}

/* 1, 2 and 5 of each power of ten, or the powers alone where these are too many. */
function logTicks(from, to, most) {
  const found = [];
  for (let power = 10 ** Math.floor(Math.log10(from)); power <= to; power *= 10) {
    for (const by of [1, 2, 5]) if (by * power >= from && by * power <= to) found.push({ by, at: by * power });
  }
  const powers = found.filter(({ by }) => by === 1);
  const shown = (found.length > most && powers.length > 1 ? powers : found).map(({ at }) => at);
  return shown.length > 1 ? shown : ticks(from, to, 4);
}
