"use strict";
(() => {
  const EVERY_MS = 10_000;
  const code = new URLSearchParams(location.search).get("code");
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const seconds = text => Date.parse(text) / 1000;
  const charts = new Map();

  // --- charts of a resource: capacity with its changes, metrics, age; they share one cursor -----

  const clock = (at, step = 1) => new Date(at * 1000).toISOString().slice(11, step < 60 ? 19 : 16);
  const short = value => value >= 1e6 ? `${+(value / 1e6).toPrecision(3)}M` : value >= 1e4 ? `${+(value / 1e3).toPrecision(3)}k` : `${+value.toPrecision(3)}`;

  const legend = { markers: { dash: (plot, n) => plot.series[n].dash ? "dashed" : "solid" } };

  function axes(last) {
    const style = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false } };
    const times = (_, splits, axis, space, step) => splits.map(at => last ? clock(at, step) : "");
    return [{ ...style, size: last ? 28 : 8, space: 76, values: times }, { ...style, size: 56, values: (_, splits) => splits.map(short) }];
  }

  function marks(card) {
    return [...card.querySelectorAll("details[data-current]")]
      .filter(line => line.dataset.kind === "decision" && line.dataset.desired)
      .map(line => ({ line, at: seconds(line.dataset.time), to: +line.dataset.desired, out: +line.dataset.desired > +line.dataset.current }));
  }

  function drawMarks(card) {
    return plot => {
      const { ctx } = plot, size = 6 * devicePixelRatio;
      for (const mark of marks(card)) {
        const x = plot.valToPos(mark.at, "x", true), y = plot.valToPos(mark.to, "y", true);
        if (x < plot.bbox.left || x > plot.bbox.left + plot.bbox.width) continue;
        const tip = mark.out ? -size : size;
        ctx.fillStyle = css("--ink");
        ctx.beginPath(); ctx.moveTo(x - size, y); ctx.lineTo(x + size, y); ctx.lineTo(x, y + 1.6 * tip); ctx.fill();
      }
    };
  }

  function openNearest(card, plot, left) {
    const distance = mark => Math.abs(plot.valToPos(mark.at, "x") - left);
    const [nearest] = marks(card).sort((a, b) => distance(a) - distance(b));
    if (!nearest || distance(nearest) > 24) return;
    nearest.line.open = true;
    nearest.line.scrollIntoView({ block: "nearest" });
    nearest.line.querySelector("summary").focus({ preventScroll: true });
  }

  function chart(card, title, series, data, more = {}) {
    const element = card.querySelector(".charts");
    const options = {
      title, width: Math.max(element.clientWidth, 280), height: more.last ? 126 : 106, axes: axes(more.last), legend, padding: [null, 26, null, null],
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(high * 1.1, more.atLeast || 1)] } },
      tzDate: at => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      cursor: { sync: { key: card.dataset.resource } },
      series: [{ label: "at", value: (_, at) => at === null ? "" : clock(at) }, ...series.map(one => ({ width: 1.5, stroke: css("--main"), points: { show: false }, value: (_, value) => value === null ? "" : short(value), ...one }))],
      hooks: more.hooks || {},
    };
    const plot = new uPlot(options, data, element);
    plot.over.addEventListener("click", event => openNearest(card, plot, event.clientX - plot.over.getBoundingClientRect().left));
    return plot;
  }

  function drawResource(card) {
    const points = JSON.parse(card.querySelector("script").textContent);
    const times = points.map(point => seconds(point.time));
    const names = [...new Set(points.flatMap(point => Object.keys(point.metrics)))];
    const value = name => carried(points.map(point => point.metrics[name] ?? null));
    for (const old of charts.get(card.dataset.resource) || []) old.destroy();
    const drawn = [];
    if (points.length > 1) {
      const steps = uPlot.paths.stepped({ align: 1 });
      drawn.push(chart(card, "instances", [
        { label: "desired", stroke: css("--soft"), dash: [4, 4], paths: steps },
        { label: "actual", paths: steps, fill: css("--area") },
      ], [times, points.map(point => point.desired), points.map(point => point.capacity)], { hooks: { draw: [drawMarks(card)] } }));
      const colours = ["--main", "--warn", "--good", "--bad"];
      const ages = points.map(point => point.age_minutes), aged = ages.some(age => age !== null);
      drawn.push(chart(card, "metrics", names.map((name, n) => ({ label: name, stroke: css(colours[n % 4]) })), [times, ...names.map(value)], { last: !aged }));
      if (aged) {
        const [unit, per] = +card.dataset.ageLimit < 1 ? ["seconds", 60] : ["minutes", 1];
        const limit = +card.dataset.ageLimit * per;
        drawn.push(chart(card, `age of the oldest item, ${unit}`, [
          { label: "age" }, { label: "limit", stroke: css("--bad"), dash: [4, 4] },
        ], [times, ages.map(age => age === null ? null : age * per), times.map(() => limit)], { atLeast: limit, last: true }));
      }
    }
    charts.set(card.dataset.resource, drawn);
  }

  // A metric without a sample in a step keeps its last value for at most 4 steps.
  function carried(values) {
    let last = null, since = 0;
    return values.map(value => { if (value !== null) { last = value; since = 0; } else if (++since > 4) last = null; return last; });
  }

  // --- trends: raw and adjusted figures with a 95 % band and alarms; below them the sampling rate

  function drawTrend(place) {
    const days = JSON.parse(place.previousElementSibling.querySelector("script").textContent);
    for (const old of charts.get(place) || []) old.destroy();
    if (days.length < 2) return charts.set(place, []);
    const times = days.map(day => Date.parse(day.date) / 1000);
    const column = name => days.map(day => day[name]);
    const alarms = plot => {
      const { ctx } = plot;
      ctx.fillStyle = css("--bad");
      days.forEach((day, n) => {
        if (!day.verdict.includes("lost")) return;
        const x = plot.valToPos(times[n], "x", true), y = plot.valToPos(day.adjusted, "y", true);
        ctx.beginPath(); ctx.arc(x, y, 5 * devicePixelRatio, 0, 7); ctx.fill();
      });
    };
    const plain = { width: 0, stroke: "transparent", points: { show: false } };
    const top = trendChart(place, "daily total", [
      { ...plain, label: "low", class: "quiet" }, { ...plain, label: "high", class: "quiet" },
      { label: "adjusted" }, { label: "raw", stroke: css("--soft"), dash: [4, 4] },
    ], [times, column("low"), column("high"), column("adjusted"), column("raw")], {
      bands: [{ series: [2, 1], fill: css("--area") }], hooks: { draw: [alarms] }, height: 140,
    });
    const rate = trendChart(place, "sampling rate, %", [{ label: "rate", stroke: css("--warn") }], [times, column("sampling_rate")], { last: true, height: 100 });
    charts.set(place, [top, rate]);
  }

  function trendChart(place, title, series, data, more) {
    const [x, y] = axes(true);
    x.values = (_, splits) => splits.map(at => more.last ? new Date(at * 1000).toISOString().slice(5, 10) : "");
    x.size = more.last ? 28 : 8;
    return new uPlot({
      title, width: Math.max(place.clientWidth, 280), height: more.height, axes: [x, y], legend, padding: [null, 26, null, null], bands: more.bands, hooks: more.hooks || {},
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
      tzDate: at => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      cursor: { sync: { key: `trend-${[...document.querySelectorAll(".trend")].indexOf(place)}` } },
      series: [{ label: "on", value: (_, at) => at === null ? "" : new Date(at * 1000).toISOString().slice(0, 10) },
        ...series.map(one => ({ width: 1.5, stroke: css("--main"), points: { show: false }, value: (_, value) => value === null ? "" : short(value), ...one }))],
    }, data, place);
  }

  function drawCard(card) {
    if (card.dataset.resource) drawResource(card);
    card.querySelectorAll(".charts.trend").forEach(drawTrend);
  }

  const drawAll = () => document.querySelectorAll(".card").forEach(drawCard);

  // --- refresh: fetch the page again and replace the parts that changed --------------------------

  let freshAt = Date.now();
  async function refresh() {
    if (document.hidden) return;
    try {
      const url = new URL(location.href);
      url.searchParams.set("live", "true");
      const answer = await fetch(url, { cache: "no-store", signal: AbortSignal.timeout(EVERY_MS) });
      if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
      update(new DOMParser().parseFromString(await answer.text(), "text/html"));
      freshAt = Date.now();
      showFreshness("");
    } catch (error) {
      showFreshness(error.message);
    }
  }

  const parts = page => [...page.querySelectorAll("[data-live]")].map(part => part.dataset.live).sort().join("\n");

  function update(fetched) {
    if (!fetched.querySelector("main")) throw new Error("the server answered with another page; reload this one");
    if (parts(fetched) !== parts(document) && !document.activeElement?.closest("form")) return location.reload();
    const changed = new Set();
    const open = new Set([...document.querySelectorAll("details[open][id]")].map(line => line.id));
    const focus = document.activeElement?.closest("details[id], a[id]")?.id;
    for (const old of document.querySelectorAll("[data-live]")) {
      const fresh = fetched.querySelector(`[data-live="${CSS.escape(old.dataset.live)}"]`);
      if (!fresh || fresh.innerHTML === old.innerHTML) continue;
      const top = old.scrollTop;
      changed.add(old.closest(".card"));
      old.className = fresh.className;
      if (old.tagName === "SCRIPT") old.textContent = fresh.textContent;
      else old.replaceChildren(...fresh.childNodes);
      for (const line of old.querySelectorAll("details[id]")) line.open = open.has(line.id);
      old.scrollTop = top;
    }
    const lost = focus && document.activeElement === document.body && document.getElementById(focus);
    if (lost) (lost.querySelector("summary") || lost).focus({ preventScroll: true });
    for (const card of changed) drawCard(card);
  }

  function showFreshness(problem) {
    const fresh = document.getElementById("fresh");
    const at = new Date(freshAt).toISOString().slice(11, 19);
    fresh.textContent = problem ? `Out of date since ${at}: ${problem}` : `As of ${at}, updates automatically`;
    fresh.classList.toggle("stale", Boolean(problem));
    const urgent = document.querySelectorAll(".attention li.bad, .attention li.warn").length;
    document.title = problem ? "(?) Autoscaler" : urgent ? `(${urgent}) Autoscaler` : "Autoscaler";
  }

  // --- overrides -------------------------------------------------------------------------------

  function overrideOf(form) {
    const { what, count } = form.elements;
    const given = names => Object.fromEntries(names.map(name => [name, form.elements[name].value.trim()]).filter(([, text]) => text));
    if (what.value === "clear") return { clear: true, ...given(["by"]) };
    const common = given(["by", "reason", "for"]);
    if (what.value === "floor" || what.value === "exact") return { ...common, [what.value]: count.valueAsNumber };
    return what.value === "freeze" ? { ...common, freeze_scale_in: true } : { ...common, mode: what.value };
  }

  async function send(url, body) {
    const base = new URL(location.pathname.replace(/dashboard\/?$/, ""), location.origin);
    const key = sessionStorage.getItem("key") || code;
    const headers = { "content-type": "application/json", ...(key && { "x-functions-key": key }) };
    const answer = await fetch(new URL(url, base), { method: "POST", headers, body: JSON.stringify(body) });
    if (answer.status === 401) {
      const given = prompt("Enter the function key that allows changes:");
      if (given) { sessionStorage.setItem("key", given); return send(url, body); }
    }
    const reply = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(reply.error || `HTTP ${answer.status}`);
    return reply;
  }

  document.addEventListener("submit", async event => {
    const form = event.target.closest("form[data-url]");
    if (!form) return;
    event.preventDefault();
    const output = form.querySelector("output");
    try {
      const reply = await send(form.dataset.url, overrideOf(form));
      output.textContent = reply.said || "done";
      output.className = "";
      await refresh();
    } catch (error) {
      output.textContent = error.message;
      output.className = "bad";
    }
  });

  for (const kind of ["click", "auxclick"]) document.addEventListener(kind, event => {  // keeps the other parameters
    const link = event.target.closest("a[href^='?']"), query = new URLSearchParams(location.search);
    if (!link) return;
    for (const [name, value] of new URLSearchParams(link.search)) query.set(name, value);
    link.search = query;
  });
  if (code) for (const link of document.querySelectorAll("a[data-keyed]")) link.search = new URLSearchParams({ code });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let resized;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(drawAll, 150); });
  document.addEventListener("visibilitychange", refresh);
  drawAll();
  showFreshness("");
  setInterval(refresh, EVERY_MS);
})();
