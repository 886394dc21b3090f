// Images of a run beside each other: which ones, how they are compared, their colours, and where one looks.
"use strict";
(() => {
  const ps = window.plugstream;
  const MODES = { single: "alone", side: "side by side", slider: "slider", difference: "difference", all: "all" };
  const NARROW = 640;
  let pictures = 0;

  // Show images in an element.
  //
  // Arguments: options.sources, [{key, label, stamp}], the one to show first; options.load(key), a promise of a picture
  // as plugstream.runs.pages.pictures makes it; options.name, for files; options.missing, what to say without an image.
  // Returns {prepare(sources), update(sources, missing), shown(), ready}: prepare loads what update would show, both are
  // promises, shown is the picture that one looks at, ready a promise of the first.
  function showImages(element, options) {
    let sources = options.sources;
    let missing = options.missing || "There is no image yet.";
    const loaded = new Map(); // key -> {stamp, picture}
    const state = {
      main: null,
      other: null,
      all: [],
      names: { main: "", other: "", all: [] },
      zones: {},
      cursor: {},
      channel: 0,
      range: [0, 1],
      map: "grey",
      split: 0.5,
      mode: "single",
      errors: [1, 1],
    };
    let chosen = { main: null, other: null, mode: null, range: null }; // what a person chose, null for none
    let views = [];
    let due = 0;

    const show = ps.choice("Show", [], "", (key) => choose({ main: key }));
    const against = ps.choice("Compare with", [], "", (key) =>
      choose({ other: key, mode: chosen.mode === "single" ? null : chosen.mode }),
    );
    const how = ps.choice("How", [], "", (key) => choose({ mode: key }));
    const colours = ps.choice(
      "Colours",
      ps.colourMaps.map((name) => [name, name]),
      "grey",
      (name) => {
        state.map = name;
        redraw();
      },
    );
    const channel = ps.choice("Channel", [], "0", (value) => {
      state.channel = Number(value);
      redraw();
    });
    const halves = { type: "range", min: 0, max: 1000, value: 500, "aria-label": "Compare slider", class: "ps-split" };
    const split = ps.make("input", { ...halves, oninput: () => slide(split.value / 1000) });
    const [low, high] = ["Value shown darkest", "Value shown brightest"].map((name, end) =>
      ps.make("input", { type: "range", min: 0, max: 1000, "aria-label": name, oninput: (event) => contrast(end, event.target.value) }),
    );
    const range = ps.make("output", { class: "ps-range", "aria-live": "off" });
    const contrasts = ps.make(
      "span",
      { class: "ps-field ps-contrast", role: "group", "aria-label": "Contrast" },
      "Contrast",
      low,
      high,
      range,
      ps.button("auto", () => choose({ range: null })),
      ps.button("98 %", () => choose({ range: ps.spread(firstPanel(state.main).values, 0.01) }), {
        title: "Without the lowest and highest hundredth of the values",
      }),
    );
    const zooms = ps.make(
      "span",
      { class: "ps-field", role: "group", "aria-label": "Zoom" },
      ps.button("−", () => zoom(0.8), { "aria-label": "Zoom out" }),
      ps.button("+", () => zoom(1.25), { "aria-label": "Zoom in" }),
      ps.button("whole", () => views.forEach((view) => view.reset()), { "aria-label": "Show the whole image" }),
    );
    const save = ps.button("PNG", savePicture, {
      title: "Download what is shown as a picture",
      "aria-label": "Download the images as PNG",
    });
    const cursors = ps.make("div", { class: "ps-cursors" });
    const grid = ps.make("div", { class: "ps-views" });
    const readout = ps.make("output", { class: "ps-readout", "aria-live": "off" });
    const help =
      "Drag to move, double-click for the whole image; click it first to zoom with the wheel, or use Ctrl and the wheel, two fingers, or + and −.";
    const told = ps.make("p", { class: "ps-empty", role: "status" });
    element.classList.add("ps-image"); // for phones
    element.replaceChildren(
      ps.make(
        "div",
        { class: "ps-toolbar", role: "toolbar", "aria-label": "Image" },
        show,
        against,
        how,
        channel,
        colours,
        contrasts,
        zooms,
        save,
      ),
      split,
      grid,
      cursors,
      ps.make("p", { class: "ps-under" }, readout, ps.make("span", { class: "ps-help" }, help)),
      told,
    );

    const label = (key) => sources.find((source) => source.key === key)?.label || key;
    const noteOf = (key, picture) =>
      Number.isInteger(picture?.step) ? `step ${picture.step}` : sources.find((source) => source.key === key)?.note;
    const titled = (key, picture) => [label(key), noteOf(key, picture)].filter(Boolean).join(", ");
    const firstPanel = (picture) => picture.panels.find((panel) => !panel.cyclic) || picture.panels[0];

    async function picture(key, among = sources) {
      const stamp = among.find((source) => source.key === key)?.stamp;
      const known = loaded.get(key);
      if (known && known.stamp === stamp) return known.picture;
      const entry = {
        stamp,
        picture: Promise.resolve(options.load(key, stamp))
          .then(ps.decodePicture)
          .then((made) => ({ ...made, id: ++pictures })),
      };
      loaded.set(key, entry);
      try {
        const made = await entry.picture;
        entry.picture = made;
        return made;
      } catch (error) {
        if (loaded.get(key) === entry) loaded.delete(key);
        throw error;
      }
    }

    function choose(changes) {
      chosen = { ...chosen, ...changes };
      return refresh();
    }

    // Which image is shown, which others there are, and the one to compare with, by choice or else as is usual.
    function pick(keys) {
      const main = keys.includes(chosen.main) ? chosen.main : keys[0];
      const others = keys.filter((key) => key !== main);
      const roles = ["truth", "filtered", "gridding", "backprojection"];
      const usual = roles.map((role) => others.find((key) => key.endsWith(role))).find(Boolean);
      return { main, others, usual, wanted: others.includes(chosen.other) ? chosen.other : (usual ?? others[0] ?? null) };
    }

    // An image of one value looks as if there were none.
    function emptiness({ panels }) {
      const flat = panels.every(({ range }) => range && range[0] === range[1]);
      return flat ? `Every value of this image is ${ps.formatNumber(panels[0].range[0])}: no step has changed it yet.` : "";
    }

    let turn = 0;
    async function refresh() {
      const mine = ++turn;
      const keys = sources.map((source) => source.key);
      if (!state.main) told.textContent = keys.length ? "The image is being loaded." : missing;
      element.classList.toggle("ps-without", !keys.length || !state.main);
      if (!keys.length) return;
      const { main, others, usual, wanted } = pick(keys);
      try {
        const first = await picture(main);
        const mode = wanted === null ? "single" : chosen.mode || usualMode(first, wanted === chosen.other || usual);
        const compared = mode === "single" ? null : await picture(wanted);
        const shown = mode === "all" ? await Promise.all(keys.map((key) => picture(key))) : [];
        if (mine !== turn) return; // something else was chosen meanwhile
        const second = compared && ps.turnTo(first, compared); // what is looked at stays as it is
        const all = shown.map((one) => ps.turnTo(first, one));
        Object.assign(state, { main: first, other: second, mode, all });
        state.names = {
          bare: [label(main), label(wanted)],
          main: titled(main, first),
          other: wanted === null ? "" : titled(wanted, second),
          all: keys.map((key, n) => titled(key, all[n])),
        };
      } catch (error) {
        told.textContent = `The image cannot be shown: ${error.message || error}`;
        return;
      }
      element.classList.remove("ps-without");
      told.textContent = emptiness(state.main);
      show.fill(
        sources.map((source) => [source.key, source.label]),
        main,
      );
      against.fill(
        others.map((key) => [key, label(key)]),
        wanted,
      );
      how.fill(
        Object.entries(MODES).filter(([key]) => key !== "all" || keys.length > 2),
        state.mode,
      );
      against.hidden = how.hidden = !others.length;
      const channels = firstPanel(state.main).channels;
      channel.hidden = !channels;
      if (channels && channel.control.options.length !== channels) {
        channel.fill(
          Array.from({ length: channels }, (_, n) => [String(n), String(n)]),
          "0",
        );
        state.channel = 0;
      }
      colours.hidden = contrasts.hidden = state.mode === "difference";
      settle();
      arrange();
    }

    // Beside what it is compared with where there is room for it, and a volume with a slider; alone where there is
    // nothing that a person would compare it with, such as the start.
    function usualMode(main, compared) {
      if (options.mode) return options.mode;
      if (!compared) return "single";
      if (firstPanel(main).spatial.length === 3) return "slider";
      return element.clientWidth < NARROW || main.panels.length > 1 ? "slider" : "side";
    }

    // Colours span what a person chose, else the truth's values or the image's, from zero if none is negative.
    function settle() {
      const by = state.other?.role === "truth" ? state.other : state.main;
      const own = firstPanel(by).range || [0, 1];
      const usual = [Math.min(0, own[0]), own[1] > Math.min(0, own[0]) ? own[1] : Math.min(0, own[0]) + 1];
      state.range = chosen.range || usual;
      const both = [state.main, state.other].filter(Boolean).map((one) => firstPanel(one).range || usual);
      state.span = [Math.min(0, ...both.map((ends) => ends[0])), Math.max(usual[1], ...both.map((ends) => ends[1]))];
      low.value = toSlider(state.range[0]);
      high.value = toSlider(state.range[1]);
      tellRange();
      if (state.mode === "difference" || state.mode === "side") state.errors = largestErrors();
    }
    const toSlider = (value) => Math.round((1000 * (value - state.span[0])) / (state.span[1] - state.span[0]));
    function tellRange() {
      const step = (state.span[1] - state.span[0]) / 500;
      range.textContent = state.range
        .map((value) => ps.formatNumber(value, 10 ** Math.floor(Math.log10(step || 1))))
        .join(" … ");
      low.setAttribute("aria-valuetext", ps.formatNumber(state.range[0]));
      high.setAttribute("aria-valuetext", ps.formatNumber(state.range[1]));
    }
    function contrast(end, text) {
      const value = state.span[0] + (Number(text) / 1000) * (state.span[1] - state.span[0]);
      const least = (state.span[1] - state.span[0]) / 1000;
      const [from, to] = state.range;
      chosen.range = state.range =
        end === 0 ? [Math.min(value, to - least), to] : [from, Math.max(value, from + least)];
      tellRange();
      redraw();
    }
    // Of the differences of values, or of magnitudes and phases where there are these.
    function largestErrors() {
      const parts = state.main.panels.some((panel) => panel.cyclic) ? 2 : 1;
      if (String(state.main.panels[0].shape) !== String(state.other.panels[0].shape)) {
        return [Math.max(...firstPanel(state.main).range.map(Math.abs)), Math.PI];
      }
      const flat = [state.main, state.other].map((one) =>
        one.panels.slice(0, parts).map(({ values, shape }) => {
          return { rows: values.length / shape.at(-1), columns: shape.at(-1), values };
        }),
      );
      const [magnitude, phase] = ps.subtract(...flat).map((slice) => slice.values);
      const most = (values) => Math.max(...ps.spread(values).map(Math.abs)) || 1;
      if (!phase) return [most(magnitude), 1];
      const least = ps.leastMagnitude(firstPanel(state.main));
      return [most(magnitude), most(phase.filter((_, n) => firstPanel(state.main).values[n] >= least))];
    }

    function arrange() {
      const specs = state.main.panels.flatMap((panel) => {
        const names = panel.spatial.map((axis) => axis.name);
        const pairs = names.length === 2 ? [names] : [0, 1, 2].map((n) => names.filter((_, k) => k !== n));
        const complex = state.main.panels.some((other) => other.cyclic);
        return pairs.map(([row, column]) => ({ row, column, cyclic: Boolean(panel.cyclic), complex }));
      });
      const error = state.other?.role === "truth";
      const layers = {
        single: ["main"],
        slider: ["slider"],
        difference: ["difference"],
        side: ["main", "other", ...(error ? ["difference"] : [])],
        all: state.all.map((_, n) => n),
      }[state.mode];
      const wanted = layers.flatMap((layer) => specs.map((spec) => ({ ...spec, layer })));
      if (JSON.stringify(wanted) !== JSON.stringify(views.map((view) => view.spec))) {
        views = wanted.map((spec) => ps.makeView(spec, state, actions));
        grid.replaceChildren(...views.map((view) => ps.make("div", { class: "ps-cell" }, view.canvas)));
      }
      grid.dataset.columns = String(
        specs.length > 1 ? Math.min(3, specs.length) : layers.length === 4 ? 2 : Math.min(3, layers.length),
      );
      split.hidden = state.mode !== "slider";
      arrangeCursors();
      redraw();
    }

    // A slider for where each axis of a volume is cut.
    function arrangeCursors() {
      const axes = firstPanel(state.main).spatial;
      const volume = axes.length === 3 ? axes : [];
      if (cursors.children.length !== volume.length) {
        cursors.replaceChildren(
          ...volume.map((axis) => {
            const control = ps.make("input", {
              type: "range",
              min: 0,
              max: axis.size - 1,
              step: 1,
              "data-axis": axis.name,
              oninput: () => moveCursor({ [axis.name]: (Number(control.value) + 0.5) / axis.size }),
            });
            return ps.labelled(axis.name, control);
          }),
        );
      }
      volume.forEach((axis, n) => {
        const control = cursors.children[n].querySelector("input");
        const at = state.cursor[axis.name] ?? 0.5;
        control.max = axis.size - 1;
        control.value = Math.min(axis.size - 1, Math.floor(at * axis.size));
        const text = ps.placeOn(axis, (Number(control.value) + 0.5) / axis.size, ps.lengthUnit(axes));
        cursors.children[n].querySelector("label").textContent = `${axis.name} = ${text}`;
        control.setAttribute("aria-valuetext", text);
      });
    }

    function moveCursor(places) {
      for (const [name, at] of Object.entries(places)) state.cursor[name] = Math.max(0, Math.min(1, at));
      arrangeCursors();
      redraw();
    }
    function slide(part) {
      state.split = Math.max(0, Math.min(1, part));
      split.value = Math.round(1000 * state.split);
      split.setAttribute("aria-valuetext", `${Math.round(100 * state.split)} % ${state.names.other}, left`);
      redraw();
      return true;
    }
    const zoom = (factor) =>
      [...new Map(views.map((view) => [`${view.spec.row} ${view.spec.column}`, view])).values()].forEach((view) =>
        view.zoomBy(factor),
      );

    function redraw() {
      cancelAnimationFrame(due);
      due = requestAnimationFrame(() => {
        if (!state.main || !element.clientWidth) return;
        const most = Math.max(220, Math.min(views.length > 1 ? 460 : 620, 0.7 * window.innerHeight));
        views.forEach((view) => view.draw(most));
      });
    }

    const actions = {
      redraw,
      slide,
      moveCursor,
      read: (text) => (readout.textContent = text || ""),
      layers: () =>
        state.mode === "all"
          ? state.all.map((one, n) => [state.names.all[n], one])
          : [
              [state.names.bare[0], state.main],
              ...(state.mode === "single" ? [] : [[state.names.bare[1], state.other]]),
            ],
    };

    function savePicture() {
      const canvases = views.map((view) => view.canvas);
      const columns = Math.max(1, Math.min(canvases.length, Number(grid.dataset.columns)));
      const sheet = ps.joinCanvases(canvases, columns, getComputedStyle(element).getPropertyValue("--paper"));
      sheet.toBlob((blob) => ps.saveFile(`${ps.fileName(options.name)}-image.png`, blob));
    }

    new ResizeObserver(redraw).observe(element);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    const ready = refresh();
    return {
      ready,
      shown: () => state.main,
      async prepare(now) {
        const { main, wanted } = pick(now.map((source) => source.key));
        const keys = state.mode === "all" ? now.map((source) => source.key) : [main, state.mode !== "single" && wanted];
        await Promise.allSettled(keys.filter(Boolean).map((key) => picture(key, now)));
      },
      async update(now, without) {
        const before = JSON.stringify([sources, missing]);
        [sources, missing] = [now, without || missing];
        if (JSON.stringify([sources, missing]) !== before) await refresh();
      },
    };
  }

  Object.assign(ps, { showImages });
})();
