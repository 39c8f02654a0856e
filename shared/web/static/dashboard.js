"use strict";
(() => {
  const TIMEOUT_MS = 10_000, SLOW_MS = 60_000;
  const code = new URLSearchParams(location.search).get("code");
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const seconds = text => Date.parse(text) / 1000;
  const charts = new Map();

  // --- charts: uPlot with the same axes, legend and cursor everywhere ---------------------------

  const query = new URLSearchParams(location.search), fixed = Date.parse(query.get("before")) < Date.now();
  const stamp = at => new Date(at * 1000).toISOString();
  const clock = (at, step = 1) => stamp(at).slice(11, step < 60 ? 19 : 16);
  const own = at => new Date(at * 1000).toLocaleString([], { dateStyle: "short", timeStyle: "medium" });
  const both = at => new Date().getTimezoneOffset() ? `${clock(at)} UTC (${own(at)} here)` : `${clock(at)} UTC`;
  const short = value => value >= 1e6 ? `${+(value / 1e6).toPrecision(3)}M` : value >= 1e4 ? `${+(value / 1e3).toPrecision(3)}k` : `${+value.toPrecision(3)}`;

  function go(changes, hash = "") {
    for (const [name, value] of Object.entries(changes)) value === "" ? query.delete(name) : query.set(name, value);
    const [search, there] = [`?${query}`, location.search];
    location.href = search + hash;
    if (search === there) location.reload();
  }

  function chart(place, title, series, data, more = {}) {
    const style = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false } };
    const times = (_, splits, axis, space, step) => splits.map(at => !more.last ? "" : step >= 86400 || at % 86400 === 0 ? stamp(at).slice(5, 10) : clock(at, step));
    const drawn = { width: 1.5, stroke: css("--main"), points: { show: false }, value: (_, value) => value === null ? "" : short(value) };
    const select = plot => {
      const [from, to] = [0, plot.select.width].map(each => plot.posToVal(plot.select.left + each, "x"));
      if (more.pick && plot.select.width > 8) go({ hours: Math.max((to - from) / 3600, 0.01).toFixed(3), before: stamp(to), until: "" });
    };
    return new uPlot({
      title, width: Math.max(place.clientWidth, 280), height: more.height || (more.last ? 126 : 106), padding: [null, 26, null, null], bands: more.bands || [],
      axes: [{ ...style, size: more.last ? 28 : 8, space: 76, values: times }, { ...style, size: 56, values: (_, splits) => splits.map(short), ...(more.whole && { incrs: [1, 2, 5, 10, 20, 50, 100] }) }],
      legend: { markers: { dash: (plot, n) => plot.series[n].dash ? "dashed" : "solid" } },
      scales: { x: { time: true, ...(more.range && { range: more.range }) }, y: { range: (_, low, high) => [0, Math.max(high * 1.1, more.atLeast || 1)] } },
      tzDate: at => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      cursor: { sync: { key: more.key }, drag: { setScale: false, x: Boolean(more.pick) } },
      series: [{ label: more.pick ? "at" : "on", value: (_, at) => at === null ? "" : more.pick ? both(at) : stamp(at).slice(0, 10) }, ...series.map(one => ({ ...drawn, ...one }))],
      hooks: { setSelect: [select], draw: more.draw ? [more.draw] : [] },
    }, data, place);
  }

  // --- a resource: capacity with its changes, metrics, age --------------------------------------

  const drawMarks = marks => plot => {
    const { ctx } = plot, size = (marks.length > 60 ? 3 : 6) * devicePixelRatio;
    for (const [time, from, to] of marks) {
      const x = plot.valToPos(seconds(time), "x", true), y = plot.valToPos(to, "y", true);
      if (x < plot.bbox.left || x > plot.bbox.left + plot.bbox.width) continue;
      const tip = to > from ? -size : size;
      ctx.fillStyle = css("--ink");
      ctx.beginPath(); ctx.moveTo(x - size, y); ctx.lineTo(x + size, y); ctx.lineTo(x, y + 1.6 * tip); ctx.fill();
    }
  };

  function openNearest(name, marks, plot, left) {
    const distance = mark => Math.abs(plot.valToPos(seconds(mark[0]), "x") - left);
    const [nearest] = [...marks].sort((a, b) => distance(a) - distance(b));
    if (!nearest || distance(nearest) > 24) return;
    const id = `${name}/${nearest[3]}`;
    if (!open(id)) go({ until: stamp(seconds(nearest[0]) + 1), kind: "", guard: "", text: "" }, `#${encodeURIComponent(id)}`);
  }

  function open(id) {
    const line = document.getElementById(id);
    if (line?.tagName !== "DETAILS") return false;
    line.open = true;
    line.scrollIntoView({ block: "nearest" });
    line.querySelector("summary").focus({ preventScroll: true });
    return true;
  }

  function drawResource(card) {
    const { points, marks, since, end } = JSON.parse(card.querySelector("script").textContent);
    const name = card.dataset.resource, place = card.querySelector(".charts");
    const times = points.map(point => seconds(point.time));
    const names = [...new Set(points.flatMap(point => Object.keys(point.metrics)))];
    const values = (of, each) => carried(points.map(point => point[of][each] ?? null));
    const common = { key: name, pick: true, range: [fixed ? seconds(since) : Math.max(seconds(since), times[0] || 0), seconds(end)] };
    for (const old of charts.get(name) || []) old.destroy();
    const drawn = [];
    if (points.length > 1) {
      const steps = uPlot.paths.stepped({ align: 1 });
      drawn.push(chart(place, "instances", [
        { label: "desired", stroke: css("--soft"), dash: [4, 4], paths: steps },
        { label: "actual", paths: steps, fill: css("--area") },
      ], [times, points.map(point => point.desired), points.map(point => point.capacity)], { ...common, whole: true, draw: drawMarks(marks) }));
      const colours = ["--main", "--warn", "--good", "--bad"], ages = points.map(point => point.age_minutes), aged = ages.some(age => age !== null);
      const lines = names.flatMap((label, n) => {  // the last value, in the band from the lowest to the highest
        const stroke = css(colours[n % 4]), edge = { width: 0, stroke: "transparent", class: "quiet" };
        return [{ ...edge, label: `${label}, highest` }, { ...edge, label: `${label}, lowest` }, { label, stroke }];
      });
      const bands = names.map((_, n) => ({ series: [3 * n + 1, 3 * n + 2], fill: `${css(colours[n % 4])}33` }));
      drawn.push(chart(place, "metrics", lines, [times, ...names.flatMap(each => ["metrics", "lowest", "last"].map(of => values(of, each)))], { ...common, bands, last: !aged }));
      if (aged) {
        const [unit, per] = +card.dataset.ageLimit < 1 ? ["seconds", 60] : ["minutes", 1], limit = +card.dataset.ageLimit * per;
        drawn.push(chart(place, `≈ age of the oldest item, ${unit}`, [{ label: "age" }, { label: "limit", stroke: css("--bad"), dash: [4, 4] }],
          [times, ages.map(age => age === null ? null : age * per), times.map(() => limit)], { ...common, atLeast: limit, last: true }));
      }
    }
    for (const plot of drawn) plot.over.addEventListener("click", event => openNearest(name, marks, plot, event.clientX - plot.over.getBoundingClientRect().left));
    charts.set(name, drawn);
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
    const times = days.map(day => Date.parse(day.date) / 1000), column = name => days.map(day => day[name]);
    const key = `trend-${[...document.querySelectorAll(".trend")].indexOf(place)}`;
    const draw = plot => {
      const { ctx } = plot;
      ctx.fillStyle = css("--bad");
      days.forEach((day, n) => {
        if (!day.verdict.includes("lost")) return;
        const x = plot.valToPos(times[n], "x", true), y = plot.valToPos(day.adjusted, "y", true);
        ctx.beginPath(); ctx.arc(x, y, 5 * devicePixelRatio, 0, 7); ctx.fill();
      });
    };
    const edge = { width: 0, stroke: "transparent", class: "quiet" };
    const top = chart(place, "daily total", [{ ...edge, label: "low" }, { ...edge, label: "high" }, { label: "adjusted" }, { label: "raw", stroke: css("--soft"), dash: [4, 4] }],
      [times, ...["low", "high", "adjusted", "raw"].map(column)], { key, bands: [{ series: [2, 1], fill: css("--area") }], draw, height: 140 });
    const rate = chart(place, "sampling rate, %", [{ label: "rate", stroke: css("--warn") }], [times, column("sampling_rate")], { key, last: true, height: 100 });
    charts.set(place, [top, rate]);
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
      const answer = await fetch(url, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
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
    const fresh = document.getElementById("fresh"), at = both(freshAt / 1000);
    fresh.textContent = problem ? `Out of date since ${at}: ${problem}` : fixed ? `As of ${at}, not updated: a past time` : `As of ${at}, updates automatically`;
    document.body.classList.toggle("stale", Boolean(problem));
    if (problem) document.getElementById("attention").textContent = `Not known since ${at}`;
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

  async function send(url, body, method = "POST") {
    const base = new URL(location.pathname.replace(/dashboard\/?$/, ""), location.origin);
    const key = sessionStorage.getItem("key") || code;
    const headers = { "content-type": "application/json", ...(key && { "x-functions-key": key }) };
    const answer = await fetch(new URL(url, base), { method, headers, ...(body && { body: JSON.stringify(body) }) });
    if (answer.status === 401) {
      const given = prompt("Enter the function key that allows this:");
      if (given) { sessionStorage.setItem("key", given); return send(url, body, method); }
    }
    const reply = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(reply.error || `HTTP ${answer.status}`);
    return reply;
  }

  async function apply(form) {
    const body = overrideOf(form);
    if (!body.clear && !body.for && !confirm("This override lasts until somebody clears it, and notifications go on. Apply it?")) return "nothing was changed";
    return (await send(form.dataset.url, body)).said;
  }

  // --- dead letters: process one again, or delete those that are older than some days ------------

  const counts = ({ done, failed, gone }) => [`${done.length} done`, ...failed.map(each => `failed again: ${each.error}`), ...gone.map(() => "gone already")].join(", ");

  async function redrive(form) {
    const by = document.querySelector("form.purge [name=by]").value.trim();
    return counts(await send(form.dataset.url + (by && `&by=${encodeURIComponent(by)}`), {}));
  }

  async function purge(form) {
    const days = form.elements.days.valueAsNumber, by = form.elements.by.value.trim(), last = Date.now() - days * 86400e3;
    const { dead_letters: letters } = await send("dead-letters?limit=100", null, "GET");
    const number = letters.filter(each => Date.parse(each.failed_at) < last).length;
    if (!number) return "None of the first 100 is older than that.";
    if (prompt(`${number} dead letters will be deleted for good. Type ${number} to delete them:`)?.trim() !== `${number}`) return "nothing was deleted";
    return counts(await send("dead-letters/purge", { older_than_days: days, limit: number, ...(by && { by }) }));
  }

  // --- entries: those until a time, in a range around it if the one in view does not have it ---

  function find(form) {
    const until = form.querySelector("[type=datetime-local]").value, at = Date.parse(`${until}Z`);
    const { since, end } = JSON.parse(form.closest(".card").querySelector("script").textContent);
    const outside = at < Date.parse(since) || at > Date.parse(end);
    go({ ...Object.fromEntries(new FormData(form)), until, ...(outside && { before: stamp(at / 1000 + form.elements.hours.value * 1800) }) });
  }

  const does = { override: apply, redrive, purge };

  document.addEventListener("submit", async event => {
    const form = event.target, act = Object.keys(does).find(name => form.classList.contains(name));
    event.preventDefault();
    if (!act) return find(form);
    const output = form.querySelector("output") || document.querySelector("form.purge output");
    try {
      output.textContent = await does[act](form);
      output.className = "";
      await refresh();
    } catch (error) {
      output.textContent = error.message;
      output.className = "bad";
    }
  });

  document.addEventListener("input", event => {
    if (!event.target.matches("[data-filters]")) return;
    const text = event.target.value.toLowerCase();
    for (const line of document.querySelectorAll(event.target.dataset.filters)) line.hidden = !line.textContent.toLowerCase().includes(text);
  });

  document.addEventListener("pointerover", event => {
    const time = event.target.closest("time[datetime]");
    if (time) time.title = `${own(seconds(time.dateTime))} here`;
  });

  for (const kind of ["click", "auxclick"]) document.addEventListener(kind, event => {  // keeps the other parameters
    const link = event.target.closest("a[href^='?']"), merged = new URLSearchParams(location.search);
    if (!link) return;
    if (link.closest("nav")) merged.delete("until");
    if ("now" in link.dataset) merged.delete("before");
    for (const [name, value] of new URLSearchParams(link.search)) merged.set(name, value);
    link.search = merged;
  });
  if (code) for (const link of document.querySelectorAll("a[data-keyed]")) link.search = new URLSearchParams({ code });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let resized;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(drawAll, 150); });
  drawAll();
  showFreshness("");
  open(decodeURIComponent(location.hash.slice(1)));
  if (fixed) return;
  document.addEventListener("visibilitychange", refresh);
  setInterval(refresh, +query.get("hours") > 3 ? SLOW_MS : TIMEOUT_MS);
})();
