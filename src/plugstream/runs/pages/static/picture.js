// Pictures as plugstream.runs.pages.pictures writes them: decoded, sliced, compared, and turned into colours.
"use strict";
(() => {
  const NOT_FINITE = 65535;
  const LENGTHS = { m: 1, mm: 1e-3, µm: 1e-6, nm: 1e-9 };

  // Colours from low to high, evenly spaced, between which it is interpolated.
  const MAPS = {
    grey: ["#000000", "#ffffff"],
    viridis: [
      "#440154",
      "#482878",
      "#3e4989",
      "#31688e",
      "#26828e",
      "#1f9e89",
      "#35b779",
      "#6ece58",
      "#b5de2b",
      "#fde725",
    ],
    inferno: [
      "#000004",
      "#1b0c41",
      "#4a0c6b",
      "#781c6d",
      "#a52c60",
      "#cf4446",
      "#ed6925",
      "#fb9b06",
      "#f7d13d",
      "#fcffa4",
    ],
    cyclic: [
      "#301437",
      "#381145",
      "#45135c",
      "#511b77",
      "#592a8f",
      "#5d3da1",
      "#5e51ad",
      "#5f64b5",
      "#6276ba",
      "#6887be",
      "#7297c1",
      "#81a6c3",
      "#95b5c7",
      "#acc2cc",
      "#c4ced4",
      "#d7d7dd",
      "#e2d9e2",
      "#dfd4d6",
      "#d8c7be",
      "#d1b6a3",
      "#cca389",
      "#c89073",
      "#c27c63",
      "#bb6958",
      "#b25652",
      "#a64550",
      "#983550",
      "#872750",
      "#741e4f",
      "#5f174a",
      "#4a1342",
      "#3a113a",
      "#301437",
    ],
    difference: [
      "#053061",
      "#2166ac",
      "#4393c3",
      "#92c5de",
      "#d1e5f0",
      "#f7f7f7",
      "#fddbc7",
      "#f4a582",
      "#d6604d",
      "#b2182b",
      "#67001f",
    ],
  };
  const NOTHING = 0xff808080; // what is not finite, as 0xAABBGGRR

  async function inflate(text) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  // A panel with its values as numbers, NaN for those that are not finite.
  async function decodePanel(panel) {
    const planes = await inflate(panel.data);
    const count = planes.length / 2;
    const values = new Float32Array(count);
    for (let i = 0, n = 0; i < count; i++) {
      n = (n + planes[i] * 256 + planes[count + i]) & 65535;
      values[i] = n === NOT_FINITE ? NaN : panel.low + n * panel.scale;
    }
    const first = panel.shape.length - panel.axes.filter((axis) => axis.name !== "channel").length;
    return { ...panel, values, data: null, channels: first ? panel.shape[0] : 0, spatial: panel.axes.slice(first) };
  }

  async function decodePicture(picture) {
    return { ...picture, panels: await Promise.all(picture.panels.map(decodePanel)) };
  }

  // Values of two axes of a panel: rows and columns, at an index of the third axis, if it has one.
  function cutSlice(panel, channel, across, index) {
    const sizes = panel.spatial.map((axis) => axis.size);
    const offset = panel.channels ? Math.min(channel, panel.channels - 1) * sizes.reduce((a, b) => a * b, 1) : 0;
    const strides = sizes.map((_, n) => sizes.slice(n + 1).reduce((a, b) => a * b, 1));
    const kept = sizes.map((_, n) => n).filter((n) => n !== across);
    const [rows, columns] = kept.map((n) => sizes[n]);
    const begin = offset + (across === null ? 0 : index * strides[across]);
    if (strides[kept[1]] === 1 && strides[kept[0]] === columns) {
      return { rows, columns, values: panel.values.subarray(begin, begin + rows * columns) };
    }
    const values = new Float32Array(rows * columns);
    for (let r = 0, at = 0; r < rows; r++) {
      let from = begin + r * strides[kept[0]];
      for (let c = 0; c < columns; c++, at++, from += strides[kept[1]]) values[at] = panel.values[from];
    }
    return { rows, columns, values };
  }

  function valueAt(slice, row, column) {
    const r = Math.min(slice.rows - 1, Math.max(0, Math.floor(row * slice.rows)));
    const c = Math.min(slice.columns - 1, Math.max(0, Math.floor(column * slice.columns)));
    return slice.values[r * slice.columns + c];
  }

  // one - other on the grid of one; where they are complex, of (magnitude, phase) pairs, its magnitude and phase.
  function subtract(one, other) {
    const { rows, columns } = one[0];
    const results = one.map(() => ({ rows, columns, values: new Float32Array(rows * columns) }));
    const [first, second] = other;
    const nearest = (n, size, there) => Math.min(there - 1, Math.floor(((n + 0.5) / size) * there));
    const places = Uint32Array.from({ length: columns }, (_, c) => nearest(c, columns, first.columns));
    for (let r = 0, at = 0; r < rows; r++) {
      const begin = nearest(r, rows, first.rows) * first.columns;
      for (let c = 0; c < columns; c++, at++) {
        const from = begin + places[c];
        if (!second) {
          results[0].values[at] = one[0].values[at] - first.values[from];
          continue;
        }
        const [m, p, n, q] = [one[0].values[at], one[1].values[at], first.values[from], second.values[from]];
        results[0].values[at] = Math.hypot(m * Math.cos(p) - n * Math.cos(q), m * Math.sin(p) - n * Math.sin(q));
        results[1].values[at] = Math.atan2(Math.sin(p - q), Math.cos(p - q));
      }
    }
    return results;
  }

  const tables = {};
  function colourTable(name) {
    if (tables[name]) return tables[name];
    const stops = MAPS[name].map((hex) => [1, 3, 5].map((n) => parseInt(hex.slice(n, n + 2), 16)));
    const table = new Uint32Array(256);
    for (let i = 0; i < 256; i++) {
      const place = (i / 255) * (stops.length - 1);
      const n = Math.min(stops.length - 2, Math.floor(place));
      const [red, green, blue] = stops[n].map((v, k) => Math.round(v + (stops[n + 1][k] - v) * (place - n)));
      table[i] = (255 << 24) | (blue << 16) | (green << 8) | red;
    }
    tables[name] = table;
    return table;
  }

  // A canvas of one pixel a value; with y upwards the last row is on top.
  function paint(slice, [low, high], map, upwards) {
    const { rows, columns, values } = slice;
    const canvas = document.createElement("canvas");
    canvas.width = columns;
    canvas.height = rows;
    const context = canvas.getContext("2d");
    const image = context.createImageData(columns, rows);
    const pixels = new Uint32Array(image.data.buffer);
    const table = colourTable(map);
    const factor = 255 / (high > low ? high - low : 1);
    for (let r = 0; r < rows; r++) {
      const to = (upwards ? rows - 1 - r : r) * columns;
      for (let c = 0; c < columns; c++) {
        const share = (values[r * columns + c] - low) * factor;
        pixels[to + c] = share !== share ? NOTHING : table[share <= 0 ? 0 : share >= 255 ? 255 : (share + 0.5) | 0];
      }
    }
    context.putImageData(image, 0, 0);
    return canvas;
  }

  // Finite least and largest value, or the values below and above which a part of them lies.
  function spread(values, part = 0) {
    const finite = values.filter(Number.isFinite);
    if (!finite.length) return [0, 1];
    if (part > 0) {
      finite.sort();
      const cut = Math.floor(part * (finite.length - 1));
      return [finite[cut], finite[finite.length - 1 - cut]];
    }
    let low = Infinity;
    let high = -Infinity;
    for (const value of finite) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
    return [low, high];
  }

  // The unit to write lengths of some axes in: the largest of which there is at least one.
  function lengthUnit(axes) {
    const unit = axes[0].unit;
    if (axes.some((axis) => axis.spacing === null)) return { name: "", factor: 1 };
    if (!(unit in LENGTHS)) return { name: unit, factor: 1 };
    const furthest = Math.max(...axes.flatMap((axis) => edges(axis).map(Math.abs))) * LENGTHS[unit];
    const name = Object.keys(LENGTHS).find((known) => furthest >= LENGTHS[known]) || "nm";
    return { name, factor: LENGTHS[unit] / LENGTHS[name] };
  }

  // Where the outer edges of the first and the last element of an axis lie.
  function edges(axis) {
    const step = axis.spacing === null ? 1 : axis.spacing;
    const origin = axis.origin === null ? 0 : axis.origin;
    return [origin - step / 2, origin + (axis.size - 0.5) * step];
  }

  // Where a part of an axis, 0 to 1, lies, as text with its unit; of an axis without a scale the number of the element.
  function placeOn(axis, part, unit) {
    if (axis.spacing === null) return String(Math.min(axis.size - 1, Math.floor(part * axis.size)));
    const [from, to] = edges(axis);
    const at = from + part * (to - from);
    const value = Math.abs(at) < 1e-6 * axis.spacing ? 0 : at * unit.factor;
    return `${formatNumber(value)} ${unit.name}`;
  }

  // Round numbers between two, about so many of them.
  function niceTicks(low, high, about) {
    const rough = (high - low) / Math.max(1, about);
    if (!(rough > 0) || !Number.isFinite(rough)) return [low];
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((n) => n * power >= rough) * power;
    const ticks = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n++) ticks.push(n * step);
    return ticks;
  }

  // Digits behind the point that numbers need which lie so far apart.
  function placesOf(step) {
    const places = -Math.floor(Math.log10(step) + 1e-9);
    const whole = Math.abs(step * 10 ** places - Math.round(step * 10 ** places)) < 1e-6;
    return Math.max(0, whole ? places : places + 1);
  }

  // A number as short as it can be said; `step` is how far the next one that is to be told apart lies.
  function formatNumber(value, step = 0) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    if (value === 0 || Math.abs(value) < 1e-9 * step) return "0";
    const size = Math.abs(value);
    if (size >= 1e5 || size < 1e-4) {
      const [digits, exponent] = value.toExponential(2).split("e");
      return `${parseFloat(digits)}e${Number(exponent)}`.replace("-", "−");
    }
    const places = step > 0 ? placesOf(step) : Math.max(0, 3 - Math.floor(Math.log10(size)));
    const text = value.toFixed(Math.min(8, places));
    return (step > 0 || !text.includes(".") ? text : text.replace(/\.?0+$/, "")).replace("-", "−");
  }

  window.plugstream = Object.assign(window.plugstream || {}, {
    colourMaps: ["grey", "viridis", "inferno"],
    colourTable,
    cutSlice,
    decodePicture,
    edges,
    formatNumber,
    lengthUnit,
    niceTicks,
    paint,
    placeOn,
    spread,
    subtract,
    valueAt,
  });
})();
