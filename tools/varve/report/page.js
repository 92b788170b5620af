// Makes the tables and charts of a report from the document in the page. Without Chart.js it has
// tables alone, and says so. All texts become text nodes: none can become markup.
"use strict";

(() => {
  const report = JSON.parse(document.getElementById("report").textContent);
  const haveCharts = typeof Chart !== "undefined";
  const mostRows = 500; // Of a table: the page of a long run must still open at once.
  const mostBars = 20;

  // ---- values as text ----

  const number = (value, digits = 3) => String(Number(value.toPrecision(digits)));
  const inBytes = (value) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = 0;
    while (value >= 1024 && unit + 1 < units.length) {
      value /= 1024;
      unit += 1;
    }
    return `${number(value)} ${units[unit]}`;
  };
  const inSeconds = (value) => `${number(value)} s`;
  const duration = (value) => {
    if (value < 120) return inSeconds(value);
    return value < 7200 ? `${number(value / 60)} min` : `${number(value / 3600)} h`;
  };
  const sizeOf = (bytes) => (bytes > 0 && bytes < 2 ** 64 ? inBytes(bytes) : "-");
  const speed = (value) => (value > 0 ? `${inBytes(value)}/s` : "-");
  const ifAny = (value, shown = String) => (value > 0 ? shown(value) : "-");
  const date = (value) => {
    const time = new Date(value * 1000);
    const known = value > 0 && value < 253402300800; // The year 10000.
    return known ? `${time.toISOString().slice(0, 19).replace("T", " ")} UTC` : "?";
  };
  const count = (value, noun) => `${value} ${noun}${value === 1 ? "" : "s"}`;
  const bandwidth = (save) => (save.seconds > 0 ? save.bytes / save.seconds : 0);
  const sorted = (list, key) => [...list].sort((one, other) => key(other) - key(one));

  // ---- elements ----

  const element = (tag, attributes, ...children) => {
    const made = Object.assign(document.createElement(tag), attributes);
    made.append(...children.filter((child) => child !== null));
    return made;
  };
  const faint = (text) => element("p", { className: "faint" }, text);
  const section = (title, ...body) => element("section", {}, element("h2", {}, title), ...body);

  // A title that begins with "#" is that of a column of numbers, with "~" of one of long texts.
  const table = (titles, rows) => {
    const classes = titles.map((title) => ({ "#": "number", "~": "text" })[title[0]] ?? "");
    const row = (tag, cells) => {
      const made = cells.map((cell, i) => element(tag, { className: classes[i] }, String(cell)));
      return element("tr", {}, ...made);
    };
    const head = element("thead", {}, row("th", titles.map((title) => title.replace(/^[#~]/, ""))));
    const body = element("tbody", {}, ...rows.map((cells) => row("td", cells)));
    return element("div", { className: "scroll" }, element("table", {}, head, body));
  };

  const figure = (id, title, bars = 0) => {
    const canvas = element("canvas", { id, role: "img", ariaLabel: title });
    const chart = element("div", { className: "chart" }, canvas);
    if (bars > 0) chart.style.height = `${3 + 2 * bars}rem`; // One line each.
    return element("figure", {}, element("figcaption", {}, title), chart);
  };

  // ---- sections ----

  const advice = () => {
    if (report.advice.length === 0) return faint("Too little is known of this run to advise anything.");
    const items = report.advice.map(({ kind, text }) =>
      element("li", { className: kind }, element("b", {}, kind), ` ${text}`));
    return element("ul", { className: "advice" }, ...items);
  };

  const summary = () => {
    const row = (name, of, shown, total) =>
      [name, of.count, shown(of.median), shown(of.p95), shown(of.most), total ? shown(of.total) : "-"];
    return table(["of the saves", "#number", "#median", "#95 of 100 below", "#most", "#in all"], [
      row("training stood still", report.stall_seconds, duration, true),
      row("until it was durable", report.write_seconds, duration, true),
      row("from one to the next", report.interval_seconds, duration, false),
      row("bandwidth", report.bytes_per_second, speed, false),
    ]);
  };

  const phases = () => {
    const rows = Object.entries(report.phases).map(([name, phase]) =>
      [name, phase.saves, duration(phase.seconds / Math.max(phase.saves, 1)), duration(phase.most)]);
    if (rows.length === 0) return null;
    return table(["phase of the saves", "#saves", "#mean, rank 0", "#most, any rank"], rows);
  };

  const savesCharts = () => {
    if (!haveCharts) {
      return [faint("Charts are left out: this varve was built without Chart.js " +
        "(Debian package libjs-chart.js).")];
    }
    const axis = (value, checked, text) => {
      const input = element("input", { type: "radio", name: "axis", value, checked, onchange: () => draw() });
      return element("label", {}, input, ` ${text}`);
    };
    const drawnOf = `${report.points.length} of ${count(report.saves, "save")} are drawn: ` +
      "the slowest ones of each stretch.";
    return [
      element("div", { className: "controls" }, "Over ",
        axis("step", true, "steps"), axis("time", false, "wall time")),
      element("div", { className: "charts" },
        figure("chart-stall", "Stall: seconds that training waited for a save"),
        figure("chart-write", "Seconds from the begin of a save until it was durable"),
        figure("chart-bandwidth", "Bandwidth of saves")),
      report.points.length < report.saves ? faint(drawnOf) : null,
    ];
  };

  const newestSaves = () => {
    const shown = report.points.slice(-200);
    const rows = shown.map((save) => [date(save.began), save.step, save.done ? "made" : "failed",
      duration(save.stall), ifAny(save.seconds, duration), sizeOf(save.bytes), speed(bandwidth(save))]);
    return element("details", {},
      element("summary", {}, `The newest ${shown.length} of ${count(report.saves, "save")}`),
      table(["time", "#step", "outcome", "#stall", "#durable after", "#size", "#bandwidth"], rows));
  };

  const saves = () => {
    if (report.saves > 0) return [summary(), phases(), ...savesCharts(), newestSaves()];
    return [faint(report.history
      ? "The history of this run has no save."
      : "This run has no history (varve-history.jsonl): only a CheckpointManager writes one.")];
  };

  const largestParts = report.model ? sorted(report.model.parts, (part) => part.bytes).slice(0, mostBars) : [];
  const model = () => {
    if (!report.model) return [faint(`Not known: ${report.no_model}.`)];
    const { step, tensors, bytes, parts, dtypes } = report.model;
    const sizes = (title, list) => table([`~${title}`, "#tensors", "#size", "#share"], list.map((part) =>
      [part.name, part.tensors, inBytes(part.bytes), `${(100 * part.bytes / Math.max(bytes, 1)).toFixed(2)} %`]));
    return [
      faint(`Of ${step}: ${count(tensors, "tensor")}, ${inBytes(bytes)}.`),
      haveCharts && parts.length > 0
        ? figure("chart-parts", "Stored bytes by part; a part includes those under it", largestParts.length)
        : null,
      sizes("part", parts), sizes("dtype", dtypes),
    ];
  };

  // The ranks that were the slowest most often, in any phase: [rank, saves].
  const phasesOfRanks = Object.entries(report.slowest_ranks)
    .filter(([, counts]) => Object.keys(counts).length > 0);
  const slowest = (() => {
    const totals = {};
    for (const [, counts] of phasesOfRanks) {
      for (const [rank, times] of Object.entries(counts)) totals[rank] = (totals[rank] ?? 0) + times;
    }
    return sorted(Object.entries(totals), ([, times]) => times).slice(0, mostBars);
  })();
  const ranks = () => {
    if (slowest.length === 0) return [faint("No save by several ranks is in the history.")];
    const titles = ["rank", ...phasesOfRanks.map(([name]) => `#${name}`)];
    const rows = slowest.map(([rank]) => [rank, ...phasesOfRanks.map(([, counts]) => counts[rank] ?? 0)]);
    return [
      faint("In how many saves a rank was the slowest, by phase."),
      haveCharts ? figure("chart-ranks", "Times that a rank was the slowest", slowest.length) : null,
      table(titles, rows),
    ];
  };

  const notes = (found, named, none) => {
    if (found.count === 0) return [faint(none)];
    const rows = [...found.newest].reverse().map((note) =>
      [date(note.time), ifAny(note.step), note.name, note.text, sizeOf(note.bytes)]);
    const part = found.count > rows.length ? faint(`The newest ${rows.length} of ${found.count}.`) : null;
    return [part, table(["time", "#step", named, "~why", "#size"], rows)];
  };

  const jobs = () => {
    if (report.jobs.length === 0) return [faint("No start is in the history.")];
    const ended = (job) => {
      if (job.outcome !== null) return job.outcome || "ended";
      return job.killed ? "killed, or lost" : "no end noted: runs, or was killed";
    };
    const rows = report.jobs.slice(-mostRows).map((job) => [date(job.start), job.attempt, job.world_size, job.host,
      job.resumed_from === null ? "-" : `step ${job.resumed_from}`, job.saves, job.failed, ended(job),
      ifAny(job.lost_seconds_at_most, duration), ifAny(job.steps_back)]);
    return [
      faint("Lost, at most: the time from the begin of a job's last save until it ended; " +
        "of one that was killed, until the next one started."),
      table(["start", "#attempt", "#ranks", "host", "resumed from", "#saves", "#failed", "~ended",
        "#at most lost", "#steps back"], rows),
    ];
  };

  const steps = () => {
    const stateOf = ({ state, detail }) => (detail ? `${state}: ${detail}` : state);
    const metric = ([name, value]) => `${name.slice(0, 100)} ${value === null ? "nan" : number(value, 6)}`;
    const total = report.steps.length;
    const shown = report.steps
      .filter((step, i) => i >= total - mostRows || step.pin !== null).slice(-2 * mostRows);
    const rows = shown.reverse().map((step) => [
      step.name, stateOf(step), inBytes(step.bytes), ifAny(step.world_size), date(step.saved),
      Object.entries(step.metrics).slice(0, mostBars).map(metric).join(", "),
      [...(step.keeps ? [] : ["the rules given would remove it"]), ...step.reasons].join(", ")]);
    const others = report.others.slice(0, mostRows).map((other) =>
      [other.name, other.state, other.detail, inBytes(other.bytes)]);
    return [
      total === 0 ? faint("No step is there.") : null,
      rows.length < total ? faint(`The newest and the pinned ones, ${rows.length} of ${total}.`) : null,
      total > 0 ? table(["step", "state", "#size", "#ranks", "saved", "~metrics", "~kept because"], rows) : null,
      others.length > 0 ? table(["beside the steps", "state", "~detail", "#size"], others) : null,
    ];
  };

  const license = () => element("details", {},
    element("summary", {}, "License of the chart library"),
    element("pre", {}, JSON.parse(document.getElementById("license").textContent)));

  document.title = `varve: ${report.run}`;
  document.body.append(
    element("header", {}, element("h1", {}, report.run), faint(`Report of a training run, ${date(report.time)}.`)),
    element("main", {},
      section("Advice", advice()),
      section("Saves", ...saves()),
      section("Size by part of the model", ...model()),
      section("Slowest ranks", ...ranks()),
      section("Failures", ...notes(report.failures, "error", "No save has failed.")),
      section("Jobs and restarts", ...jobs()),
      section("What is kept", ...steps()),
      section("Damaged steps", ...notes(report.damaged, "name", "No resume has found a damaged step.")),
      section("Removed steps", ...notes(report.removed, "name", "No step was removed by the manager's rules."))),
    element("footer", { className: "faint" },
      element("p", {}, `Written by varve ${report.version}. ` +
        `History: ${count(report.lines, "line")}, ${report.unreadable} of them unreadable.`),
      haveCharts ? license() : null));

  // ---- charts ----

  if (!haveCharts) return;
  const drawn = [];
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // The distance of the marks of an axis of bytes: round in its unit.
  const byteStep = (most) => {
    let unit = 1;
    while (most / unit >= 1024 && unit < 2 ** 60) unit *= 1024;
    const step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500].find((one) => most / unit / one <= 6);
    return step * unit;
  };

  const byTime = () => document.querySelector("input[name=axis]:checked")?.value === "time";

  // Returns the points of a chart. Points of different jobs are not joined.
  const series = (valueOf, wanted) => {
    const found = [];
    let job = null;
    for (const save of report.points.filter(wanted)) {
      if (job !== null && job !== save.job) found.push({ x: NaN, y: NaN });
      job = save.job;
      found.push({ x: byTime() ? save.began : save.step, y: valueOf(save), save });
    }
    return found;
  };

  const axis = (title, shown, step) => ({
    type: "linear",
    title: { display: title !== "", text: title, color: colour("--faint") },
    ticks: { color: colour("--faint"), maxTicksLimit: 8, stepSize: step, maxRotation: 0, callback: shown },
    grid: { color: colour("--line") },
  });

  const overSteps = (id, valueOf, shown, wanted, stepOf) => {
    const canvas = document.getElementById(id);
    if (!canvas) return;
    const most = Math.max(...report.points.map(valueOf), 0);
    const made = [{
      label: "made",
      data: series(valueOf, (save) => save.done && wanted(save)),
      borderColor: colour("--series"),
      backgroundColor: colour("--series"),
      borderWidth: 1.5,
      pointRadius: report.points.length > 300 ? 1 : 2.5,
      tension: 0,
      spanGaps: false,
    }];
    const failed = series(valueOf, (save) => !save.done);
    if (failed.length > 0 && id === "chart-stall") {
      made.push({
        label: "failed",
        data: failed,
        showLine: false,
        borderColor: colour("--bad"),
        backgroundColor: colour("--bad"),
        pointStyle: "crossRot",
        pointRadius: 6,
        borderWidth: 2,
      });
    }
    const x = byTime()
      ? axis("wall time, UTC", (value) => date(value).slice(5, 16))
      : axis("step", (value) => value);
    const y = { ...axis("", shown, stepOf?.(most)), beginAtZero: true };
    drawn.push(new Chart(canvas, {
      type: "line",
      data: { datasets: made },
      options: {
        animation: false,
        maintainAspectRatio: false,
        parsing: false,
        normalized: false,
        interaction: { mode: "nearest", intersect: false },
        scales: { x, y },
        plugins: {
          legend: { display: made.length > 1, labels: { color: colour("--text") } },
          tooltip: {
            callbacks: {
              title: (items) => items.map((item) => `step ${item.raw.save.step}, ${date(item.raw.save.began)}`),
              label: (item) => `${item.dataset.label}: ${shown(item.raw.y)}`,
            },
          },
        },
      },
    }));
  };

  const bars = (id, entries, shown, stepOf) => {
    const canvas = document.getElementById(id);
    if (!canvas || entries.length === 0) return;
    drawn.push(new Chart(canvas, {
      type: "bar",
      data: {
        labels: entries.map((entry) => entry[0]),
        datasets: [{ data: entries.map((entry) => entry[1]), backgroundColor: colour("--series") }],
      },
      options: {
        animation: false,
        indexAxis: "y",
        maintainAspectRatio: false,
        scales: {
          x: { ...axis("", shown, stepOf?.(Math.max(...entries.map((entry) => entry[1])))), beginAtZero: true },
          y: { ticks: { color: colour("--text"), autoSkip: false }, grid: { display: false } },
        },
        plugins: {
          legend: { display: false },
          tooltip: { callbacks: { label: (item) => shown(item.raw) } },
        },
      },
    }));
  };

  const draw = () => {
    while (drawn.length > 0) drawn.pop().destroy();
    overSteps("chart-stall", (save) => save.stall, inSeconds, () => true);
    overSteps("chart-write", (save) => save.seconds, inSeconds, () => true);
    overSteps("chart-bandwidth", bandwidth, speed, (save) => bandwidth(save) > 0, byteStep);
    const parts = largestParts.map((part) => [part.name.slice(0, 100), part.bytes]);
    bars("chart-parts", parts, inBytes, byteStep);
    const times = slowest.map(([rank, count]) => [`rank ${rank}`, count]);
    bars("chart-ranks", times, (value) => (Number.isInteger(value) ? String(value) : ""));
    document.documentElement.dataset.charts = String(drawn.length);
  };

  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  // Paper is white whatever the screen is.
  const closed = [];
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details:not([open])")) {
      closed.push(details);
      details.open = true;
    }
    draw();
  });
  addEventListener("afterprint", () => {
    while (closed.length > 0) closed.pop().open = false;
    draw();
  });
})();
