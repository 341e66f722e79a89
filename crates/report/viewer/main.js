/* Tabs. A view is made when it is first shown; the address says which one that is. */

const VIEWS = [
  ["overview", "Overview", overview], ["timeline", "Timeline", timeline], ["memory", "Memory", memory], ["model", "Model", model],
  ["communication", "Communication", communication], ["compare", "Compare", compare], ["program", "Program", program],
];

function main() {
  const of = DATA.overview;
  document.getElementById("title").textContent = `${of.model} under ${of.plan}`;
  document.getElementById("subtitle").textContent = `${many(of.devices, "device")} of ${of.cluster.name}, ${of.micro_batches === 1 ? "1 micro-batch" : `${of.micro_batches} micro-batches`}, ${timeOf(of.seconds)} a step`;
  const tabs = document.getElementById("tabs");
  const views = document.getElementById("views");
  VIEWS.forEach(([name, title], at) => {
    tabs.append(h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": name, title: `Key ${at + 1}`, onclick: () => show(name) }, title));
    views.append(h("section", { id: name, role: "tabpanel", "aria-labelledby": `tab-${name}`, hidden: true }));
  });

  function show(name) {
    tip.hide();
    VIEWS.forEach(([other, , make]) => {
      const [view, tab] = [document.getElementById(other), document.getElementById(`tab-${other}`)];
      const isShown = other === name;
      view.hidden = !isShown;
      tab.setAttribute("aria-selected", isShown);
      tab.tabIndex = isShown ? 0 : -1;
      if (isShown) tabs.scrollLeft = Math.min(tab.offsetLeft - tabs.offsetLeft, Math.max(tabs.scrollLeft, tab.offsetLeft - tabs.offsetLeft + tab.offsetWidth - tabs.clientWidth));
      if (isShown && view.childElementCount === 0) view.append(make());
    });
    if (location.hash !== `#${name}`) history.replaceState(null, "", `#${name}`);
  }

  const current = () => VIEWS.findIndex(([name]) => !document.getElementById(name).hidden);
  tabs.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    const next = VIEWS[(current() + by + VIEWS.length) % VIEWS.length][0];
    show(next);
    document.getElementById(`tab-${next}`).focus();
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) return;
    const view = VIEWS[Number(event.key) - 1];
    if (view) show(view[0]);
  });
  /* Paper has all views, on a light ground. */
  addEventListener("beforeprint", () => {
    document.documentElement.classList.add("printing");
    VIEWS.forEach(([name, , make]) => {
      const view = document.getElementById(name);
      view.hidden = false;
      if (view.childElementCount === 0) view.append(make());
    });
    dispatchEvent(new Event("redraw"));
  });
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("printing");
    show(named());
    dispatchEvent(new Event("redraw"));
  });
  addEventListener("hashchange", () => show(named()));
  const named = () => VIEWS.map(([name]) => name).find((name) => location.hash === `#${name}`) ?? "overview";
  show(named());
}

function start(data) {
  DATA = data;
  TICK = 1 / data.timeline.ticks_per_second;
  main();
}

function refuse(error) {
  document.getElementById("views").append(h("p", { class: "note" }, `The data of this page cannot be read (${error}). It needs a browser of 2023 or later.`));
}

read().then(start, refuse);
