/* What devices have in memory over a step, stacked by what it is for. */

function memory() {
  const known = DATA.memory.tracks.map((of, row) => ({ ...of, row })).filter((of) => of.over.length > 0);
  const place = h("div", {});
  const fullest = known.reduce((most, of) => (of.most / of.there > most.most / most.there ? of : most), known[0]);
  if (!fullest) return card("Memory over time", null, h("p", { class: "note" }, "Of steps that go on into the next one, memory is known at its peak only."));
  const shown = known.slice(0, 64);
  const heads = h("div", { class: "tools", role: "group", "aria-label": "Devices" });
  function open(of) {
    place.replaceChildren(fitted((width) => chart(of, width)), legend(purposesOf(of)));
    side.replaceChildren(...peakOf(of));
    [...heads.children].forEach((head, at) => head.setAttribute("aria-pressed", shown[at] === of));
  }
  const side = h("div", {});
  heads.append(...shown.map((of) => h("button", { type: "button", onclick: () => open(of) }, ranksOf(DATA.tracks[of.row].ranks, 2))));
  open(fullest);
  return h("div", { class: "side" },
    h("div", {}, card("Memory over a step", "predicted, most bytes in each moment", shown.length > 1 && heads, place),
      shown.length > 1 && card("All devices", "the same scale", h("div", { class: "grid", style: "margin: 0" }, shown.map((of) => thumbnail(of, () => open(of)))))),
    side);
}

/* Times and sums of bytes, purpose by purpose. */
function stacked(of) {
  const steps = [];
  const width = DATA.memory.purposes.length + 1;
  for (let at = 0; at < of.over.length; at += width) {
    steps.push({ start: of.over[at], bytes: of.over.slice(at + 1, at + width) });
  }
  steps.forEach((step, at) => { step.end = steps[at + 1]?.start ?? of.end; });
  return steps;
}

const totalOf = (step) => step.bytes.reduce((sum, bytes) => sum + bytes, 0);

function purposesOf(of) {
  const steps = stacked(of);
  return DATA.memory.purposes.map((name, at) => [`var(--p${at})`, name, at])
    .filter(([, , at]) => steps.some((step) => step.bytes[at] > 0)).reverse();
}

/* Areas of purposes as paths, in a box. */
function areas(steps, x, y) {
  const below = steps.map(() => 0);
  return DATA.memory.purposes.map((name, purpose) => {
    if (!steps.some((step) => step.bytes[purpose] > 0)) return null;
    const [up, down] = [[], []];
    steps.forEach((step, at) => {
      const [low, high] = [below[at], below[at] + step.bytes[purpose]];
      up.push(`${x(step.start)},${y(high)} ${x(step.end)},${y(high)}`);
      down.unshift(`${x(step.end)},${y(low)} ${x(step.start)},${y(low)}`);
      below[at] = high;
    });
    return svg("polygon", { points: `${up.join(" ")} ${down.join(" ")}`, style: `fill: var(--p${purpose})`, "shape-rendering": "crispEdges" });
  });
}

function chart(of, width) {
  const steps = stacked(of);
  const [height, left, right, top, bottom] = [width < 600 ? 300 : 420, 74, 16, 18, 28];
  const whole = DATA.timeline.seconds / TICK;
  const most = Math.max(...steps.map(totalOf));
  const isNear = of.there < most * 1.8;
  const high = (isNear ? Math.max(most, of.there) : most) * 1.06;
  const x = (at) => (left + (at / whole) * (width - left - right)).toFixed(2);
  const y = (bytes) => (height - bottom - (bytes / high) * (height - top - bottom)).toFixed(2);
  const peak = steps.find((step) => totalOf(step) >= of.most) ?? steps.reduce((a, b) => (totalOf(b) > totalOf(a) ? b : a));
  const cursor = svg("line", { y1: top, y2: height - bottom, stroke: "var(--ink)", "stroke-dasharray": "2 3", visibility: "hidden" });
  const middle = (Number(x(peak.start)) + Number(x(peak.end))) / 2;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "plot", role: "img", id: "memory-chart", "aria-label": "Memory over a step, stacked by purpose" },
    byteTicks(high, 6).map((at) => [
      svg("line", { class: "axis", x1: left, x2: width - right, y1: y(at), y2: y(at) }),
      svg("text", { class: "soft", x: left - 8, y: Number(y(at)) + 4, "text-anchor": "end" }, bytesOf(at))]),
    areas(steps, x, y),
    ticks(0, whole, Math.min(7, Math.floor(width / 100))).map((at) => svg("text", { class: "soft", x: x(at), y: height - 8, "text-anchor": at === 0 ? "start" : width - x(at) < 30 ? "end" : "middle" }, timeOf(at * TICK))),
    isNear && [svg("line", { x1: left, x2: width - right, y1: y(of.there), y2: y(of.there), stroke: "var(--exposed)", "stroke-width": 2, "stroke-dasharray": "7 4" }),
      svg("text", { x: width - right - 4, y: Number(y(of.there)) - 5, "text-anchor": "end", class: "over", style: "fill: var(--exposed)" }, `the device has ${bytesOf(of.there)}`)],
    svg("circle", { cx: middle, cy: y(totalOf(peak)), r: 5, fill: "var(--card)", stroke: "var(--ink)", "stroke-width": 2 }),
    svg("text", { x: middle < width / 2 ? middle + 10 : middle - 10, y: Math.max(12, Number(y(totalOf(peak))) - 6), "text-anchor": middle < width / 2 ? "start" : "end", class: "over" }, `peak ${bytesOf(of.most)}`),
    cursor);
  picture.addEventListener("mousemove", (event) => {
    const box = picture.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width * width - left) / (width - left - right) * whole;
    const step = steps.find((step) => at >= step.start && at < step.end);
    if (!step) { cursor.setAttribute("visibility", "hidden"); tip.hide(); return; }
    cursor.setAttribute("visibility", "visible");
    cursor.setAttribute("x1", x(at)); cursor.setAttribute("x2", x(at));
    tip.show(event, h("b", {}, `${bytesOf(totalOf(step))} at ${timeOf(at * TICK)}`), facts(byPurpose(step.bytes), {}));
  });
  picture.addEventListener("mouseleave", () => { cursor.setAttribute("visibility", "hidden"); tip.hide(); });
  return picture;
}

function byPurpose(bytes) {
  return DATA.memory.purposes.map((name, at) => [name, bytes[at]]).filter(([, of]) => of > 0).reverse().map(([name, of]) => [name, bytesOf(of)]);
}

function thumbnail(of, open) {
  const steps = stacked(of);
  const high = Math.max(...DATA.memory.tracks.map((row) => row.most));
  const whole = DATA.timeline.seconds / TICK;
  const picture = svg("svg", { viewBox: "0 0 200 60", width: "100%", preserveAspectRatio: "none", height: 60, "aria-hidden": "true" },
    areas(steps, (at) => (at / whole * 200).toFixed(2), (bytes) => (60 - bytes / high * 58).toFixed(2)));
  return h("div", { role: "button", tabindex: 0, style: "cursor: pointer", onclick: open, onkeydown: (event) => { if (event.key === "Enter") open(); } },
    picture, h("div", { class: "soft" }, `${ranksOf(DATA.tracks[of.row].ranks, 2)}: ${bytesOf(of.most)} of ${bytesOf(of.there)}`));
}

function peakOf(of) {
  const rows = DATA.memory.purposes.map((name, at) => ({ name, at, bytes: of.peak[at] })).filter((it) => it.bytes > 0).sort((a, b) => b.bytes - a.bytes);
  return [card("At the peak", `device ${of.rank}${DATA.tracks[of.row].count > 1 ? `, the fullest of ${ranksOf(DATA.tracks[of.row].ranks, 2)}` : ""}`,
    h("div", { class: "figure" }, h("b", {}, bytesOf(of.most)), h("span", { class: "what" }, `${percentOf(of.most / of.there)} of ${bytesOf(of.there)}`)),
    h("div", { class: "bar", style: "margin: 12px 0; height: 14px" }, rows.map((it) => h("i", { style: `width: ${100 * it.bytes / of.most}%; background: var(--p${it.at})` }))),
    h("table", { id: "peak" }, h("tbody", {}, rows.map((it) => h("tr", {}, h("td", {}, swatch(`var(--p${it.at})`), " ", it.name), h("td", { class: "number" }, bytesOf(it.bytes)), h("td", { class: "number" }, percentOf(it.bytes / of.most)))))),
    of.at && h("p", { class: "note" }, `It is in ${of.at}.`),
    of.on_host > 0 && h("p", { class: "note" }, `Up to ${bytesOf(of.on_host)} more are on the host.`))];
}
