// How often each view was drawn, as bars.
"use strict";
(() => {
  const ps = window.plugstream;
  const HEIGHT = 150;

  // Arguments: element; usage, as plugstream.runs.pages.report makes it; damaged, views that were left out.
  function showUsage(element, usage, damaged) {
    const { size, counts } = usage;
    const views = counts.map((_, n) => n * size + (size - 1) / 2);
    const label = size > 1 ? `times drawn, mean of ${size} views` : "times drawn";
    const most = Math.max(...counts);
    const place = ps.make("div", {
      class: "ps-plot",
      role: "img",
      "aria-label": `How often each view was drawn: ${ps.formatNumber(Math.min(...counts))} to ${ps.formatNumber(most)} times.`,
    });
    element.replaceChildren(
      ps.make("figure", { class: "ps-chart", "data-chart": "usage" }, ps.make("figcaption", {}, label), place),
    );
    let plot = null;
    function draw() {
      plot?.destroy();
      const colour = (name) => getComputedStyle(place).getPropertyValue(name).trim();
      const axes = {
        stroke: colour("--faint"),
        grid: { stroke: colour("--grid"), width: 1 },
        ticks: { show: false },
        font: "11px system-ui, sans-serif",
        labelFont: "11px system-ui, sans-serif",
      };
      const plain = (u, ticks) =>
        ticks.map((tick) => ps.formatNumber(tick, ticks.length > 1 ? ticks[1] - ticks[0] : 0));
      const bad = new Set(size > 1 ? [] : damaged);
      plot = new uPlot(
        {
          width: Math.max(160, place.clientWidth),
          height: HEIGHT,
          padding: [10, 12, 0, 0],
          cursor: { y: false, points: { show: false } },
          scales: {
            x: { time: false, range: [-0.5, counts.length * size - 0.5] },
            y: { range: [0, 1.08 * (most || 1)] },
          },
          axes: [
            {
              ...axes,
              grid: { show: false },
              label: "view",
              labelSize: 16,
              size: 30,
              values: plain,
              incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000],
            },
            { ...axes, size: 50, values: plain },
          ],
          series: [
            { label: "view", value: (u, value) => (value === null ? "–" : ps.formatNumber(value)) },
            {
              label: "drawn",
              stroke: colour("--curve-0"),
              fill: colour("--curve-0"),
              width: 0,
              paths: uPlot.paths.bars({ size: [0.8, 40, 1] }),
              points: { show: false },
              value: (u, value) => (value === null ? "–" : `${ps.formatNumber(value)} times`),
            },
          ],
          hooks: { draw: [(u) => bad.forEach((view) => mark(u, view, colour("--bad")))] },
        },
        [views, counts],
        place,
      );
    }
    // A view that was left out has no bar, but a mark where it would stand.
    function mark(u, view, colour) {
      u.ctx.fillStyle = colour;
      const width = Math.max(2, (0.6 * u.bbox.width) / counts.length);
      u.ctx.fillRect(
        u.valToPos(view, "x", true) - width / 2,
        u.bbox.top + u.bbox.height - 4 * devicePixelRatio,
        width,
        4 * devicePixelRatio,
      );
    }
    new ResizeObserver(() => (plot && plot.width === Math.max(160, place.clientWidth) ? null : draw())).observe(place);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  }

  Object.assign(ps, { showUsage });
})();
