// One view of an image on a canvas: two of its axes in physical units, a colour bar, and what the pointer and keys do.
"use strict";
(() => {
  const ps = window.plugstream;
  const MARGINS = {
    wide: { left: 54, right: 74, top: 24, bottom: 40 },
    narrow: { left: 46, right: 70, top: 24, bottom: 40 },
  };
  const NARROW = 350; // pixels of a canvas below which it has less room for its numbers
  const MOST_STRETCH = 30; // times its height, and an image still has one scale in both directions
  const SLACK = 14; // pixels from the slider's line that still mean it
  const FAINT = 0.05; // part of the largest magnitude below which a phase says nothing

  // What a view shows of a picture: the slice across its third axis, if it has one, where the cursor is.
  function sliceFor(spec, picture, state, cyclic = spec.cyclic) {
    const panel = picture.panels.find((candidate) => {
      const names = candidate.spatial.map((axis) => axis.name);
      return Boolean(candidate.cyclic) === cyclic && names.includes(spec.row) && names.includes(spec.column);
    });
    if (!panel) return null;
    const across = panel.spatial.findIndex((axis) => axis.name !== spec.row && axis.name !== spec.column);
    const size = across < 0 ? 1 : panel.spatial[across].size;
    const name = across < 0 ? null : panel.spatial[across].name;
    const index = Math.min(size - 1, Math.floor((state.cursor[name] ?? 0.5) * size));
    const slice = ps.cutSlice(panel, state.channel, across < 0 ? null : across, index);
    const [row, column] = [spec.row, spec.column].map((axis) => panel.spatial.find((one) => one.name === axis));
    return { ...slice, panel, row, column, across: across < 0 ? null : panel.spatial[across], index, size };
  }

  // The colours of a view, and from which to which value.
  function shadesFor(spec, state) {
    if (spec.layer === "difference") {
      const most = state.errors[spec.cyclic ? 1 : 0] || 1;
      const size = spec.complex && !spec.cyclic; // the magnitude of a complex difference has no sign
      return size ? { map: "inferno", range: [0, most] } : { map: "difference", range: [-most, most] };
    }
    if (spec.cyclic) return { map: "cyclic", range: [-Math.PI, Math.PI] };
    return { map: state.map, range: state.range };
  }

  const leastMagnitude = (panel) => FAINT * Math.max(...(panel.range || [0]).map(Math.abs));

  // The phase where there is next to no magnitude is noise, and drawn as nothing.
  function fade(slice, spec, picture, state) {
    if (!spec.cyclic) return slice;
    const magnitude = sliceFor(spec, picture, state, false);
    if (!magnitude) return slice;
    const least = leastMagnitude(magnitude.panel);
    return { ...slice, values: slice.values.map((value, n) => (magnitude.values[n] < least ? NaN : value)) };
  }

  // A picture turned as a whole so that it is closest to another, where the data leave the phase of both free: only so
  // can their colours and their difference be compared. The angle is that of the sum of m n exp(i (p - q)).
  function turnTo(reference, picture) {
    const isFree = (one) => one.panels.some((panel) => panel.cyclic && panel.turned !== undefined);
    if (picture === reference || !isFree(reference) || !isFree(picture)) return picture;
    let [real, imaginary] = [0, 0];
    for (const [m, p, n, q] of commonParts(reference, picture)) {
      const nearest = (k, size, there) => Math.min(there - 1, Math.floor(((k + 0.5) / size) * there));
      for (let r = 0, at = 0; r < m.rows; r++) {
        const begin = nearest(r, m.rows, n.rows) * n.columns;
        for (let c = 0; c < m.columns; c++, at++) {
          const from = begin + nearest(c, m.columns, n.columns);
          const [size, angle] = [m.values[at] * n.values[from], p.values[at] - q.values[from]];
          if (!Number.isFinite(size) || !Number.isFinite(angle)) continue;
          real += size * Math.cos(angle);
          imaginary += size * Math.sin(angle);
        }
      }
    }
    const turn = Math.atan2(imaginary, real);
    const turned = (value) => value + turn - 2 * Math.PI * Math.round((value + turn) / (2 * Math.PI));
    const panels = picture.panels.map((one) => (one.cyclic ? { ...one, values: one.values.map(turned) } : one));
    return { ...picture, panels };
  }

  // Magnitude and phase of one picture and of the other, of all that both have: whole panels, or slices in the middle.
  function commonParts(one, other) {
    const shapes = (picture) => JSON.stringify(picture.panels.map((panel) => [panel.name, panel.shape]));
    const pairs = one.panels.filter((panel) => panel.cyclic);
    if (shapes(one) === shapes(other)) {
      const flat = (picture) =>
        pairs.map((panel) => {
          const size = picture.panels.find((candidate) => candidate.name === panel.name.replace(/phase$/, "magnitude"));
          const phase = picture.panels.find((candidate) => candidate.name === panel.name);
          const columns = panel.shape.at(-1);
          return [size, phase].map(({ values }) => ({ rows: values.length / columns, columns, values }));
        });
      const theirs = flat(other);
      return flat(one).map((parts, n) => [...parts, ...theirs[n]]);
    }
    const middle = { cursor: {}, channel: 0 };
    const specs = pairs.flatMap((panel) => {
      const names = panel.spatial.map((axis) => axis.name);
      return names.length === 2 ? [names] : [0, 1, 2].map((n) => names.filter((_, k) => k !== n));
    });
    return specs
      .map(([row, column]) =>
        [one, other].flatMap((picture) => [false, true].map((c) => sliceFor({ row, column }, picture, middle, c))),
      )
      .filter((slices) => slices.every(Boolean));
  }

  function difference(spec, state) {
    const parts = spec.complex ? [false, true] : [false];
    const [one, other] = [state.main, state.other].map((picture) =>
      parts.map((c) => sliceFor(spec, picture, state, c)),
    );
    if (one.some((slice) => !slice) || other.some((slice) => !slice)) return null;
    const part = spec.cyclic ? 1 : 0;
    return { ...one[part], values: ps.subtract(one, other)[part].values };
  }

  function makeView(spec, state, actions) {
    const canvas = document.createElement("canvas");
    canvas.className = "ps-view";
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
    canvas.setAttribute("aria-roledescription", "image");
    const context = canvas.getContext("2d");
    const painted = new Map(); // what was turned into colours, by all that it depends on
    const pair = `${spec.row} ${spec.column}`;
    const box = { x: 0, y: 0, width: 1, height: 1 };
    let margin = MARGINS.wide;
    let shown = null; // the slice that axes and readout go by

    const zone = () => (state.zones[pair] ||= { row: [0, 1], column: [0, 1] });
    const pictureOf = (layer) =>
      layer === "other" ? state.other : typeof layer === "number" ? state.all[layer] : state.main;

    // Which way the rows of what is shown go; runs that are compared may differ in it.
    const upwards = () => pictureOf(spec.layer).upwards;

    function layerCanvas(layer) {
      const picture = pictureOf(layer);
      const slice = layer === "difference" ? difference(spec, state) : picture && sliceFor(spec, picture, state);
      if (!slice) return null;
      const { map, range } = shadesFor(spec, state);
      const ids = [state.main.id, state.other?.id, picture?.id];
      const key = JSON.stringify([layer, ids, slice.index, state.channel, range, map]);
      if (!painted.has(key)) {
        if (painted.size > 3) painted.delete(painted.keys().next().value);
        const values = fade(slice, spec, picture, state);
        painted.set(key, ps.paint(values, range, map, upwards()));
      }
      return { slice, canvas: painted.get(key) };
    }

    // Fit the plot into the width there is, with one scale in both directions.
    function layOut(slice, most) {
      const [height, width] = [slice.row, slice.column].map((axis) => Math.abs(ps.edges(axis)[1] - ps.edges(axis)[0]));
      let ratio = height / width;
      if (ratio > MOST_STRETCH || ratio < 1 / MOST_STRETCH) ratio = 0.5;
      const style = getComputedStyle(canvas.parentElement);
      const all = canvas.parentElement.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
      margin = all < NARROW ? MARGINS.narrow : MARGINS.wide;
      const room = Math.max(60, all - margin.left - margin.right);
      box.width = Math.min(room, most / ratio);
      if (slice.across) {
        // All three slices of a volume have the scale of the one that needs most room.
        const [a, b, c] = slice.panel.spatial.map((axis) => Math.abs(ps.edges(axis)[1] - ps.edges(axis)[0]));
        const scale = Math.min(room / Math.max(b, c), most / Math.max(a, b));
        if (Math.max(a, b, c) < MOST_STRETCH * Math.min(a, b, c)) box.width = Math.max(40, scale * width);
      }
      box.height = box.width * ratio;
      box.x = margin.left + (room - box.width) / 2;
      box.y = margin.top;
      const scale = window.devicePixelRatio || 1;
      const size = [all, box.height + margin.top + margin.bottom];
      if (canvas.width !== Math.round(size[0] * scale) || canvas.height !== Math.round(size[1] * scale)) {
        [canvas.width, canvas.height] = size.map((n) => Math.round(n * scale));
        [canvas.style.width, canvas.style.height] = size.map((n) => `${n}px`);
      }
      context.setTransform(scale, 0, 0, scale, 0, 0);
      context.clearRect(0, 0, ...size);
    }

    function drawLayer(image) {
      const { row, column } = zone();
      const top = upwards() ? 1 - row[1] : row[0];
      const source = [column[0] * image.width, top * image.height];
      const size = [(column[1] - column[0]) * image.width, (row[1] - row[0]) * image.height];
      context.imageSmoothingEnabled = size[0] > 1.5 * box.width * (window.devicePixelRatio || 1);
      context.drawImage(image, ...source, ...size, box.x, box.y, box.width, box.height);
    }

    // Where a fraction of the image's rows or columns is on the canvas, and the other way round.
    const toX = (part) => box.x + ((part - zone().column[0]) / (zone().column[1] - zone().column[0])) * box.width;
    const toY = (part) => {
      const share = (part - zone().row[0]) / (zone().row[1] - zone().row[0]);
      return box.y + (upwards() ? 1 - share : share) * box.height;
    };
    function place(event) {
      const at = canvas.getBoundingClientRect();
      const [u, v] = [(event.clientX - at.left - box.x) / box.width, (event.clientY - at.top - box.y) / box.height];
      const { row, column } = zone();
      const w = upwards() ? 1 - v : v;
      return { u, v, column: column[0] + u * (column[1] - column[0]), row: row[0] + w * (row[1] - row[0]) };
    }

    function drawCursor(colours) {
      if (!shown.across) return;
      const [x, y] = [toX(state.cursor[spec.column] ?? 0.5), toY(state.cursor[spec.row] ?? 0.5)];
      context.strokeStyle = colours.mark;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x, box.y);
      context.lineTo(x, box.y + box.height);
      context.moveTo(box.x, y);
      context.lineTo(box.x + box.width, y);
      context.stroke();
    }

    function drawFrame(colours) {
      const { row, column, panel } = shown;
      const photograph = row.spacing === null && state.main.panels[0].spatial.length === 2;
      const axes = { row, column, zone: zone(), upwards: upwards(), photograph, left: margin.left };
      ps.drawAxes(context, box, colours, axes);
      const unit = panel.unit ? ` (${panel.unit})` : "";
      const against = state.other?.role === "truth" ? "error of " : "difference of ";
      const free = spec.cyclic && panel.turned !== undefined && spec.layer !== "difference" ? ", mean taken out" : "";
      const label = `${spec.layer === "difference" ? against : ""}${panel.quantity}${unit}${free}`;
      const bar = {
        ...shadesFor(spec, state),
        cyclic: spec.cyclic && spec.layer !== "difference",
        label,
        right: margin.right,
      };
      ps.drawBar(context, box, colours, bar);
    }

    function heading() {
      const name =
        typeof spec.layer === "number"
          ? state.names.all[spec.layer]
          : { slider: state.names.main, difference: state.names.bare.join(" − ") }[spec.layer] ||
            state.names[spec.layer];
      const part = spec.complex ? (spec.cyclic ? "phase" : "magnitude") : "";
      let where = "";
      if (shown.across) {
        const part = (shown.index + 0.5) / shown.size;
        where = `${shown.across.name} = ${ps.placeOn(shown.across, part, ps.lengthUnit(shown.panel.spatial))}`;
      } else if (shown.panel.name.includes("=")) where = shown.panel.name.replace(/ (magnitude|phase)$/, "");
      return [name, part, where].filter(Boolean).join(", ");
    }

    function draw(most) {
      const main = layerCanvas(spec.layer === "slider" ? "main" : spec.layer);
      if (!main) return;
      shown = main.slice;
      const style = getComputedStyle(canvas);
      const colours = {
        ink: style.getPropertyValue("--ink"),
        faint: style.getPropertyValue("--faint"),
        line: style.getPropertyValue("--line"),
        mark: style.getPropertyValue("--mark"),
        small: "11px system-ui, sans-serif",
      };
      layOut(shown, most);
      context.save();
      context.beginPath();
      context.rect(box.x, box.y, box.width, box.height);
      context.clip();
      drawLayer(main.canvas);
      if (spec.layer === "slider") {
        const other = layerCanvas("other");
        if (other) {
          context.save();
          context.beginPath();
          context.rect(box.x, box.y, state.split * box.width, box.height);
          context.clip();
          drawLayer(other.canvas);
          context.restore();
        }
      }
      drawCursor(colours);
      context.restore();
      if (spec.layer === "slider")
        ps.drawSlider(context, box, colours, state.split, [state.names.bare[1], state.names.bare[0]]);
      drawFrame(colours);
      const text = heading();
      context.fillStyle = colours.ink;
      context.font = "600 12px system-ui, sans-serif";
      context.textAlign = "left";
      context.textBaseline = "middle";
      context.fillText(ps.shorten(context, text, box.width + margin.right - 10), box.x, 11);
      canvas.setAttribute("aria-label", describe(text));
      canvas.style.touchAction = zoomed() ? "none" : "pan-y"; // else a page could not be scrolled on a phone
    }

    function describe(text) {
      const { row, column, panel } = shown;
      const range = panel.range
        ? `values from ${ps.formatNumber(panel.range[0])} to ${ps.formatNumber(panel.range[1])}`
        : "no finite values";
      const keys = "Plus and minus zoom, 0 shows all, arrow keys move" + (shown.across ? " the cursor" : "");
      return `${text}: ${panel.quantity}${panel.unit ? ` in ${panel.unit}` : ""}, ${row.size} by ${column.size} pixels, ${range}. ${keys}.`;
    }

    const zoomed = () => zone().column[1] - zone().column[0] < 1 || zone().row[1] - zone().row[0] < 1;

    // Show a part of the image that is 1 / factor as large, around a place that stays where it is.
    function zoomBy(factor, at) {
      for (const name of ["row", "column"]) {
        const [from, to] = zone()[name];
        const size = Math.min(1, Math.max(2 / shown[name].size, (to - from) / factor));
        const begin = at[name] - ((at[name] - from) / (to - from)) * size;
        shift(name, Math.max(0, Math.min(1 - size, begin)), size);
      }
      actions.redraw();
    }
    function shift(name, begin, size) {
      const from = Math.max(0, Math.min(1 - size, begin));
      zone()[name] = [from, from + size];
    }
    function panBy(rows, columns) {
      const { row, column } = zone();
      shift("row", row[0] + rows * (row[1] - row[0]), row[1] - row[0]);
      shift("column", column[0] + columns * (column[1] - column[0]), column[1] - column[0]);
      actions.redraw();
    }
    const middle = () => ({
      row: (zone().row[0] + zone().row[1]) / 2,
      column: (zone().column[0] + zone().column[1]) / 2,
    });

    function reset() {
      state.zones[pair] = { row: [0, 1], column: [0, 1] };
      actions.redraw();
    }

    function point(event) {
      const at = place(event);
      if (at.u < 0 || at.u > 1 || at.v < 0 || at.v > 1 || !shown) return actions.read(null);
      const unit = ps.lengthUnit([shown.row, shown.column]);
      const words = [shown.column, shown.row].map((axis) => {
        return `${axis.name} ${ps.placeOn(axis, axis === shown.row ? at.row : at.column, unit)}`;
      });
      const values = actions.layers().map(([name, picture]) => {
        const slice = sliceFor(spec, picture, state);
        return slice ? `${name} ${ps.formatNumber(ps.valueAt(slice, at.row, at.column))}` : "";
      });
      return actions.read([words.join(", "), ...values.filter(Boolean)].join("   "));
    }

    ps.followPointer(canvas, {
      place,
      zoomBy,
      panBy,
      point,
      reset,
      middle,
      leave: () => actions.read(null),
      volume: () => Boolean(shown && shown.across),
      slides: (at) => {
        const near = Math.abs(at.u - state.split) * box.width < SLACK;
        return spec.layer === "slider" && (near || !(zoomed() || shown?.across));
      },
      slide: (at) => actions.slide(at.u),
      slideBy: (by) => spec.layer === "slider" && actions.slide(state.split + by),
      moveCursor: (at) => actions.moveCursor({ [spec.row]: at.row, [spec.column]: at.column }),
      step: (rows, columns) => {
        const up = upwards() ? -1 : 1;
        actions.moveCursor({
          [spec.row]: (state.cursor[spec.row] ?? 0.5) + (up * rows) / shown.row.size,
          [spec.column]: (state.cursor[spec.column] ?? 0.5) + columns / shown.column.size,
        });
      },
      upwards,
    });
    return { canvas, draw, spec, reset, zoomBy: (factor) => shown && zoomBy(factor, middle()), slice: () => shown };
  }

  Object.assign(ps, { makeView, leastMagnitude, turnTo });
})();
