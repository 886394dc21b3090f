// What was measured of one or several runs, as curves on uPlot: against steps or seconds, with linear or log axes.
"use strict";
(() => {
  const ps = window.plugstream;
  const HEIGHT = 230;
  const WHOLE = [1, 2, 5].flatMap((n) => [0, 1, 2, 3, 4, 5, 6].map((power) => n * 10 ** power)).sort((a, b) => a - b);
  const FEW = 80; // measurements up to which each has a dot

  // The curves of runs, one chart a quantity: {key, label, logarithmic, stepped, lines: [{name, step, time, value}]}.
  function chartsOf(runs) {
    const charts = new Map();
    const add = (key, about, line) => {
      if (!charts.has(key)) charts.set(key, { key, lines: [], ...about });
      charts.get(key).lines.push(line);
    };
    runs.forEach(({ name, content }, run) => {
      const { step, time, values } = content.measured;
      for (const quantity of content.quantities) {
        add(
          quantity.name,
          {
            label: quantity.label,
            title: quantity.title || quantity.name,
            unit: quantity.unit,
            logarithmic: quantity.logarithmic,
            better: quantity.smaller_is_better,
          },
          { name, run, step, time, value: values[quantity.name] },
        );
      }
    });
    runs.forEach(({ name, content }, run) => {
      const { step, time } = content.measured;
      if (step.length > 1)
        add(
          "seconds",
          { label: "seconds of steps", title: "time", unit: "s", bySteps: true },
          { name, run, step, time, value: time },
        );
      const { arrivals, now } = content.views;
      if (arrivals.length > 1) {
        const last = Math.max(content.step, arrivals.at(-1)[0]);
        const steps = [...arrivals.map(([at]) => at), last];
        add(
          "views",
          { label: "views that have come", title: "views", unit: "", stepped: true, fromZero: true },
          {
            name,
            run,
            step: steps,
            time: steps.map((at) => timeOf(content, at)),
            value: [...arrivals.map(([, count]) => count), now],
          },
        );
      }
    });
    return [...charts.values()];
  }

  // Seconds after which a step was done, as far as what was measured tells.
  function timeOf(content, step) {
    const { step: steps, time } = content.measured;
    if (!steps.length) return 0;
    const n = steps.findIndex((at) => at >= step);
    if (n === 0) return time[0];
    if (n < 0) return time.at(-1);
    const share = (step - steps[n - 1]) / Math.max(1e-9, steps[n] - steps[n - 1]);
    return time[n - 1] + share * (time[n] - time[n - 1]);
  }

  // Show the curves of runs, [{name, content}], in an element. Returns {update(runs)}.
  function showCurves(element, runs, fileStem) {
    const state = { x: "step", logX: false, logY: {} };
    let charts = new Map();
    const axis = ps.choice(
      "Against",
      [
        ["step", "iteration"],
        ["time", "seconds"],
      ],
      "step",
      (value) => {
        state.x = value;
        rebuild();
      },
    );
    const logX = ps.make("input", {
      type: "checkbox",
      onchange: () => {
        state.logX = logX.checked;
        rebuild();
      },
    });
    const save = ps.button("CSV", () => ps.saveFile(`${ps.fileName(fileStem)}-curves.csv`, asCsv(runs), "text/csv"), {
      "aria-label": "Download what was measured as CSV",
      title: "Download what was measured as a table",
    });
    const grid = ps.make("div", { class: "ps-charts" });
    const told = ps.make("p", { class: "ps-empty" });
    element.replaceChildren(
      ps.make(
        "div",
        { class: "ps-toolbar", role: "toolbar", "aria-label": "Curves" },
        axis,
        ps.labelled("log", logX, { class: "ps-field ps-check" }),
        save,
      ),
      grid,
      told,
    );

    function rebuild() {
      for (const chart of charts.values()) chart.destroy();
      const wanted = chartsOf(runs);
      charts = new Map(wanted.map((about) => [about.key, makeChart(about, state, () => runs, fileStem, rebuild)]));
      grid.replaceChildren(...[...charts.values()].map((chart) => chart.figure));
      for (const chart of charts.values()) chart.mount();
      told.textContent = wanted.length ? "" : "Nothing has been measured yet.";
    }

    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", rebuild);
    rebuild();
    return {
      update(now) {
        runs = now;
        const wanted = chartsOf(runs);
        const same =
          wanted.length === charts.size && wanted.every((about) => charts.get(about.key)?.lines === about.lines.length);
        if (!same) rebuild();
        else wanted.forEach((about) => charts.get(about.key).update(about));
      },
    };
  }

  function makeChart(about, state, runs, fileStem, rebuild) {
    const heading = ps.make("figcaption", {}, ps.make("span", {}, about.label));
    const log = ps.make("input", { type: "checkbox" });
    log.checked = state.logY[about.key] ?? Boolean(about.logarithmic);
    log.addEventListener("change", () => {
      state.logY[about.key] = log.checked;
      rebuild();
    });
    const png = ps.button("PNG", () => savePicture(), { "aria-label": `Download the curve of ${about.label} as PNG` });
    heading.append(
      ps.make("span", { class: "ps-chart-tools" }, ps.labelled("log", log, { class: "ps-field ps-check" }), png),
    );
    const place = ps.make("div", { class: "ps-plot", tabindex: 0, role: "img" });
    const figure = ps.make(
      "figure",
      { class: "ps-chart", "data-chart": about.key },
      heading,
      place,
    );
    let plot = null;
    let observer = null;

    const byStep = () => about.bySteps || state.x === "step";
    const positive = () => log.checked && about.lines.some((line) => line.value.some((value) => value > 0));
    function data() {
      const tables = about.lines.map((line) => {
        const xs = byStep() ? line.step : line.time;
        const kept = xs.map((x, n) => n).filter((n) => !state.logX || xs[n] > 0);
        return [
          kept.map((n) => xs[n]),
          kept.map((n) => (line.value[n] === null || (positive() && !(line.value[n] > 0)) ? null : line.value[n])),
        ];
      });
      return tables.length === 1 ? tables[0] : uPlot.join(tables);
    }

    function options(width) {
      const style = getComputedStyle(place);
      const colour = (name) => style.getPropertyValue(name).trim();
      const axes = {
        stroke: colour("--faint"),
        grid: { stroke: colour("--grid"), width: 1 },
        ticks: { stroke: colour("--grid"), width: 1 },
        font: "11px system-ui, sans-serif",
        labelFont: "11px system-ui, sans-serif",
      };
      const plain = {
        values: (u, ticks) => ticks.map((tick) => ps.formatNumber(tick, ticks.length > 1 ? ticks[1] - ticks[0] : 0)),
      };
      const decades = {
        splits: (u, n, low, high) => powers(low, high),
        filter: (u, ticks) => ticks,
        values: (u, ticks) => asPowers(ticks),
      };
      return {
        width,
        height: HEIGHT,
        padding: [10, 12, 0, 0],
        cursor: { sync: { key: byStep() ? "steps" : "seconds" }, y: false, points: { size: 7 } },
        legend: { live: true },
        scales: {
          x: { time: false, distr: state.logX ? 3 : 1 },
          y: {
            distr: positive() ? 3 : 1,
            range: positive()
              ? (u, low, high) => wholeDecades(low, high)
              : (u, low, high) => padded(about.fromZero ? 0 : low, high),
          },
        },
        axes: [
          {
            ...axes,
            label: byStep() ? "iteration" : "seconds",
            labelSize: 16,
            size: 34,
            ...(state.logX ? decades : plain),
          },
          { ...axes, size: 62, ...(positive() ? decades : plain), ...(about.fromZero ? { incrs: WHOLE } : {}) },
        ],
        series: [
          { label: byStep() ? "iteration" : "seconds", value: (u, value) => ps.formatNumber(value) },
          ...about.lines.map((line, n) => ({
            label: about.lines.length > 1 ? line.name : about.title,
            stroke: colour(`--curve-${line.run % 6}`),
            width: 1.75,
            spanGaps: true,
            paths: about.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
            points: { show: line.step.length <= FEW && !about.stepped, size: 5 },
            value: (u, value) =>
              value === null || value === undefined ? "–" : `${ps.formatNumber(value)} ${about.unit || ""}`.trim(),
          })),
        ],
        hooks: { draw: [(u) => drawMarks(u, colour("--mark"))] },
      };
    }

    // Where a person changed something of the run, and where views came.
    function drawMarks(u, colour) {
      if (runs().length !== 1) return;
      const { content } = runs()[0];
      const context = u.ctx;
      const x = (step) => u.valToPos(byStep() ? step : timeOf(content, step), "x", true);
      const inside = (at) => at >= u.bbox.left && at <= u.bbox.left + u.bbox.width;
      context.save();
      context.strokeStyle = colour;
      context.lineWidth = devicePixelRatio;
      context.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
      for (const entry of [...content.steering, ...content.stages.slice(1)]) {
        const at = x(entry.step);
        if (!inside(at)) continue;
        context.beginPath();
        context.moveTo(at, u.bbox.top);
        context.lineTo(at, u.bbox.top + u.bbox.height);
        context.stroke();
      }
      context.setLineDash([]);
      for (const [step] of content.views.arrivals.slice(1)) {
        const at = x(step);
        if (!inside(at)) continue;
        context.beginPath();
        context.moveTo(at, u.bbox.top + u.bbox.height);
        context.lineTo(at, u.bbox.top + u.bbox.height - 6 * devicePixelRatio);
        context.stroke();
      }
      context.restore();
    }

    function describe() {
      const texts = about.lines.map((line) => {
        const known = line.value.map((value, n) => [value, n]).filter(([value]) => Number.isFinite(value));
        if (!known.length) return `${line.name}: no values`;
        const [[first, from], [last, to]] = [known[0], known.at(-1)];
        return `${about.lines.length > 1 ? `${line.name}: ` : ""}from ${ps.formatNumber(first)} at step ${line.step[from]} to ${ps.formatNumber(last)} at step ${line.step[to]}`;
      });
      place.setAttribute(
        "aria-label",
        `Curve of ${about.label}, ${texts.join("; ")}. Left and right arrow keys read its values.`,
      );
    }

    function savePicture() {
      const sheet = ps.make("canvas");
      const from = plot.ctx.canvas;
      const top = 30 * devicePixelRatio;
      [sheet.width, sheet.height] = [from.width, from.height + top];
      const context = sheet.getContext("2d");
      const style = getComputedStyle(place);
      context.fillStyle = style.getPropertyValue("--paper");
      context.fillRect(0, 0, sheet.width, sheet.height);
      context.fillStyle = style.getPropertyValue("--ink");
      context.font = `600 ${13 * devicePixelRatio}px system-ui, sans-serif`;
      context.fillText(about.label, 12 * devicePixelRatio, 20 * devicePixelRatio);
      context.drawImage(from, 0, top);
      sheet.toBlob((blob) => ps.saveFile(`${ps.fileName(fileStem)}-${ps.fileName(about.key)}.png`, blob));
    }

    place.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by || !plot) return;
      const count = plot.data[0].length;
      const now = plot.cursor.idx ?? (by > 0 ? -1 : count);
      const next = Math.max(0, Math.min(count - 1, now + by));
      plot.setCursor({ left: plot.valToPos(plot.data[0][next], "x"), top: HEIGHT / 2 });
      event.preventDefault();
    });

    return {
      figure,
      lines: about.lines.length,
      mount() {
        const width = () => Math.max(160, place.clientWidth);
        plot = new uPlot(options(width()), data(), place);
        observer = new ResizeObserver(() => plot.setSize({ width: width(), height: HEIGHT }));
        observer.observe(place);
        describe();
      },
      update(now) {
        about = now;
        const { min, max } = plot.scales.x;
        const before = plot.data[0];
        const enlarged = before.length > 1 && (min > before[0] || max < before.at(-1));
        plot.setData(data(), !enlarged);
        if (enlarged) plot.setScale("x", { min, max });
        describe();
      },
      destroy() {
        observer?.disconnect();
        plot?.destroy();
      },
    };
  }

  // Powers of ten between two numbers, no more than a chart has room for; of less than two decades their multiples, too.
  function powers(low, high) {
    const [first, last] = [Math.floor(Math.log10(low) + 1e-9), Math.ceil(Math.log10(high) - 1e-9)];
    const every = Math.ceil((last - first) / 7);
    const factors = last - first <= 1 ? [1, 2, 5] : last - first === 2 ? [1, 3] : [1];
    const ticks = [];
    for (let n = first; n <= last; n++)
      if (n % Math.max(1, every) === 0) for (const factor of factors) ticks.push(factor * 10 ** n);
    return ticks.filter((tick) => tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9));
  }

  // Ticks of a log axis as powers of ten, where they are too small or large to be written out.
  function asPowers(ticks) {
    const exponents = ticks.map((tick) => Math.floor(Math.log10(tick) + 1e-9));
    if (exponents.every((exponent) => exponent > -3 && exponent < 5)) return ticks.map((tick) => ps.formatNumber(tick));
    return ticks.map((tick, n) => {
      const power = `10${[...String(exponents[n])].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("")}`;
      const factor = Math.round(tick / 10 ** exponents[n]);
      return factor === 1 ? power : `${factor}·${power}`;
    });
  }

  function wholeDecades(low, high) {
    if (!(low > 0) || !(high > 0)) return [0.1, 1];
    const room = Math.max(0.04 * Math.log10(high / low), 0.02);
    return [low * 10 ** -room, high * 10 ** room];
  }

  function padded(low, high) {
    if (low === null || high === null) return [0, 1];
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
  }

  // Step, seconds and every quantity, a row a measurement; of several runs with the name of each.
  function asCsv(runs) {
    const names = [...new Set(runs.flatMap(({ content }) => Object.keys(content.measured.values)))];
    const quote = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const several = runs.length > 1;
    const rows = [[...(several ? ["run"] : []), "step", "time", ...names]];
    for (const { name, content } of runs) {
      const { step, time, values } = content.measured;
      step.forEach((at, n) =>
        rows.push([...(several ? [name] : []), at, time[n], ...names.map((key) => values[key]?.[n] ?? "")]),
      );
    }
    return rows.map((row) => row.map((cell) => quote(String(cell))).join(",") + "\n").join("");
  }

  Object.assign(ps, { showCurves });
})();
