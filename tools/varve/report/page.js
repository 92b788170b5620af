// Draws the charts of a report from the data in the page. Without Chart.js, or without scripts, the
// page has the same numbers in its tables.
"use strict";

(() => {
  if (typeof Chart === "undefined") return;
  const data = JSON.parse(document.getElementById("data").textContent);
  const drawn = [];

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const bytes = (value) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = 0;
    while (value >= 1024 && unit + 1 < units.length) {
      value /= 1024;
      unit += 1;
    }
    return `${Number(value.toPrecision(3))} ${units[unit]}`;
  };
  const seconds = (value) => `${Number(value.toPrecision(3))} s`;
  const date = (value) => {
    const time = new Date(value * 1000);
    return Number.isNaN(time.getTime()) ? "?" : time.toISOString().slice(0, 19).replace("T", " ");
  };

  // The distance of the marks of an axis of bytes: round in its unit.
  const byteStep = (most) => {
    let unit = 1;
    while (most / unit >= 1024 && unit < 2 ** 60) unit *= 1024;
    const step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500].find((one) => most / unit / one <= 6);
    return step * unit;
  };

  // A point is [time, step, stall, seconds, bandwidth, done, job].
  const byTime = () => document.querySelector("input[name=axis]:checked")?.value === "time";

  // Returns the points of a chart. Points of different jobs are not joined.
  const series = (column, wanted) => {
    const found = [];
    let job = null;
    for (const point of data.points) {
      if (!wanted(point)) continue;
      if (job !== null && job !== point[6]) found.push({ x: NaN, y: NaN });
      job = point[6];
      found.push({ x: byTime() ? point[0] : point[1], y: point[column], point });
    }
    return found;
  };

  const axis = (title, shown, step) => ({
    type: "linear",
    title: { display: title !== "", text: title, color: colour("--faint") },
    ticks: { color: colour("--faint"), maxTicksLimit: 8, stepSize: step, maxRotation: 0, callback: shown },
    grid: { color: colour("--line") },
  });

  const overSteps = (id, column, shown, wanted, stepOf) => {
    const canvas = document.getElementById(id);
    if (!canvas) return;
    const most = Math.max(...data.points.map((point) => point[column]), 0);
    const made = [{
      label: "made",
      data: series(column, (point) => point[5] && wanted(point)),
      borderColor: colour("--series"),
      backgroundColor: colour("--series"),
      borderWidth: 1.5,
      pointRadius: data.points.length > 300 ? 1 : 2.5,
      tension: 0,
      spanGaps: false,
    }];
    const failed = series(column, (point) => !point[5]);
    if (failed.length > 0 && column === 2) {
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
              title: (items) => items.map((item) => `step ${item.raw.point[1]}, ${date(item.raw.point[0])} UTC`),
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
    overSteps("chart-stall", 2, seconds, () => true);
    overSteps("chart-write", 3, seconds, () => true);
    overSteps("chart-bandwidth", 4, (value) => `${bytes(value)}/s`, (point) => point[4] > 0, byteStep);
    bars("chart-parts", data.parts, bytes, byteStep);
    bars("chart-ranks", data.ranks, (value) => (Number.isInteger(value) ? String(value) : ""));
    document.documentElement.dataset.charts = String(drawn.length);
  };

  draw();
  for (const input of document.querySelectorAll("input[name=axis]")) input.addEventListener("change", draw);
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
