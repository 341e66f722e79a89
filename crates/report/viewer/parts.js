/* Small things that views are made of. */

const SVG = "http://www.w3.org/2000/svg";

/* An element: attributes, then children, which are elements or text. */
function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

function card(title, more, ...children) {
  return h("div", { class: "card" }, title && h("h2", {}, title, more && h("small", {}, more)), ...children);
}

/* A picture that is drawn for the width that it has, so that its words stay as large as all others. */
function fitted(draw) {
  const most = 980;
  let width = most;
  const frame = h("div", {}, draw(width));
  new ResizeObserver(([{ contentRect }]) => {
    const now = Math.max(260, Math.min(most, Math.round(contentRect.width)));
    if (contentRect.width === 0 || now === width) return;
    width = now;
    frame.replaceChildren(draw(width));
  }).observe(frame);
  return frame;
}

/* A colour as the theme has it. */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function swatch(style) {
  return h("span", { class: "swatch", style: `background: ${style}` });
}

/* `entries` are pairs of a CSS colour and a word. */
function legend(entries) {
  return h("ul", { class: "legend" }, entries.map(([style, word]) => h("li", {}, swatch(style), word)));
}

function facts(pairs, attributes = { class: "facts" }) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h("dl", attributes, known.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/* What stands beside the pointer. */
const tip = {
  show(event, ...children) {
    const box = document.getElementById("tip");
    box.replaceChildren(...children);
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const right = event.clientX + 16 + width < innerWidth;
    box.style.left = `${Math.max(4, right ? event.clientX + 16 : event.clientX - width - 12)}px`;
    box.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 6))}px`;
  },
  hide() {
    document.getElementById("tip").hidden = true;
  },
};

function told(element, say) {
  element.addEventListener("mousemove", (event) => tip.show(event, ...say()));
  element.addEventListener("mouseleave", tip.hide);
  return element;
}

/* A table that sorts by each column and shows the rows in which a filter's words occur.

   `columns` have a name, `value(row)` to sort by, `cell(row)` to show, and whether they are numbers. */
function table(columns, rows, { filter = null, chosen = () => false, onRow = null, most = 500, sorted = null } = {}) {
  const body = h("tbody");
  const count = h("span", { class: "soft" });
  let order = sorted ?? { column: null, down: false };
  let words = [];
  const heads = columns.map((column, at) =>
    h("th", { class: column.number ? "number" : "", scope: "col" },
      h("button", { type: "button", onclick: () => sortBy(at) }, column.name)));

  function sortBy(at) {
    const again = order.column === at;
    order = { column: at, down: again ? !order.down : Boolean(columns[at].number) };
    fill();
  }

  function fill() {
    heads.forEach((head, at) => {
      if (order.column === at) head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    let shown = rows.filter((row) => words.every((word) => filter(row).includes(word)));
    if (order.column !== null) {
      const value = columns[order.column].value;
      const sign = order.down ? -1 : 1;
      const compare = (a, b) => (value(a) < value(b) ? -sign : value(a) > value(b) ? sign : 0);
      shown = [...shown].sort(compare);
    }
    count.textContent = shown.length === rows.length ? many(rows.length, "row") : `${shown.length} of ${many(rows.length, "row")}`;
    if (shown.length > most) count.textContent += `, the first ${most} are shown`;
    body.replaceChildren(...shown.slice(0, most).map(line));
  }

  function line(row) {
    const open = onRow && (() => onRow(row));
    return h("tr", {
      class: [chosen(row) ? "chosen" : "", onRow ? "opens" : ""].join(" ").trim() || null,
      tabindex: onRow ? 0 : null,
      onclick: open ?? (() => {}),
      onkeydown: (event) => { if (open && event.key === "Enter") open(); },
    }, columns.map((column) => h("td", { class: column.number ? "number" : null },
      column.cell ? column.cell(row) : `${column.value(row)}`)));
  }

  const search = filter && h("input", {
    type: "search", placeholder: "Filter: all_reduce mlp …", "aria-label": "Filter",
    oninput: (event) => { words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean); fill(); },
  });
  fill();
  return h("div", {},
    filter && h("div", { class: "tools" }, search, count),
    h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, heads)), body)));
}

/* Round places on an axis from 0 to `most`, about `count` of them. */
function ticks(from, to, count) {
  const span = to - from;
  if (!(span > 0)) return [from];
  const raw = span / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((by) => by * power).find((by) => by >= raw);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to + step * 1e-6; at += step) found.push(at);
  return found;
}

/* The same for bytes, whose round places are powers of two. */
function byteTicks(to, count) {
  const raw = to / count;
  const power = 2 ** Math.ceil(Math.log2(raw));
  const found = [];
  for (let at = 0; at <= to; at += power) found.push(at);
  return found;
}
