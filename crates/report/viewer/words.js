/* What is in the page, and how its numbers are said. */

let DATA = null;
/* Seconds of a tick, in which times on the timeline are. */
let TICK = null;

/* Of a large model the JSON is packed. */
async function read() {
  const element = document.getElementById("data");
  if (element.type === "application/json") return JSON.parse(element.textContent);
  const bytes = Uint8Array.from(atob(element.textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

/* 12.3 ms, as the commands say it. */
function timeOf(seconds) {
  const size = Math.abs(seconds);
  if (size === 0) return "0";
  if (size >= 1) return `${digits(seconds)} s`;
  if (size >= 1e-3) return `${digits(seconds * 1e3)} ms`;
  if (size >= 1e-6) return `${digits(seconds * 1e6)} µs`;
  return `${digits(seconds * 1e9)} ns`;
}

/* Three digits that count. */
function digits(number) {
  const size = Math.abs(number);
  const places = size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return number.toFixed(places);
}

function bytesOf(bytes) {
  let size = bytes;
  for (const unit of ["B", "KiB", "MiB"]) {
    if (size < 1024) return unit === "B" ? `${Math.round(size)} B` : `${size.toFixed(1)} ${unit}`;
    size /= 1024;
  }
  return size < 1024 * 10 ? `${size.toFixed(1)} GiB` : `${(size / 1024).toFixed(1)} TiB`;
}

/* 70.6 billion is 70.6B. */
function countOf(number) {
  for (const [unit, of] of [["T", 1e12], ["B", 1e9], ["M", 1e6], ["K", 1e3]]) {
    if (number >= of) return `${digits(number / of)}${unit}`;
  }
  return `${Math.round(number)}`;
}

function operationsOf(number) {
  for (const [unit, of] of [["EFLOP", 1e18], ["PFLOP", 1e15], ["TFLOP", 1e12], ["GFLOP", 1e9], ["MFLOP", 1e6]]) {
    if (number >= of) return `${digits(number / of)} ${unit}`;
  }
  return `${Math.round(number)} FLOP`;
}

function percentOf(part) {
  const size = 100 * part;
  if (size > 0 && size < 0.05) return "<0.1%";
  return `${size !== 0 && size < 9.95 ? size.toFixed(1) : size.toFixed(0)}%`;
}

function many(count, what) {
  return `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;
}

/* `0..4` as plans write sets of devices, or `3`. */
function ranksOf(ranges, most = 4) {
  const said = ranges.slice(0, most).map(([a, b]) => (a === b ? `${a}` : `${a}..${b + 1}`));
  return said.join(", ") + (ranges.length > most ? ", …" : "");
}

/* An operator of the program's graph by its number, in words. */
function operatorOf(number) {
  const [name, target, module, line, makes] = DATA.operators[number];
  return {
    name,
    makes: DATA.names.shapes[makes],
    target: DATA.names.targets[target],
    module: DATA.names.modules[module],
    line: DATA.names.lines[line],
    source: sourceOf(line),
  };
}

/* What a line of the model says, if that is known. */
function sourceOf(line) {
  return DATA.names.sources[line] ?? null;
}

/* What marks in rules mean, as `shardwright ops show` says it. */
const MARKS = {
  "+": "parts give sums that are added up",
  "^": "not split",
  "@": "rewritten before it is split",
  "~": "a part knows where it begins",
  "!": "given to one part only",
};

/* `aten.linear.default` is short for `linear`. */
function shortTarget(target) {
  const words = target.split(".");
  return words[0] === "aten" && words.length > 1 ? words[1] : target;
}
