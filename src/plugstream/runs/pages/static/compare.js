// Several runs on one page: what came out of each, their images and curves together, and what they were asked that differs.
"use strict";
(() => {
  const ps = window.plugstream;

  // Show runs, [{content, pictures}], in an element.
  function compareRuns(element, runs) {
    const names = namesOf(runs.map((run) => run.content));
    const sources = runs.flatMap(({ content }, n) =>
      content.roles.length
        ? [
            {
              key: `${n}:${content.roles[0]}`,
              label: names[n],
              note: content.scores?.[content.roles[0]] ?? "",
              stamp: "",
            },
          ]
        : [],
    );
    const known = runs.findIndex(({ content }) => content.roles.includes("truth"));
    if (known >= 0) sources.push({ key: `${known}:truth`, label: "truth", stamp: "" });
    const load = (key) => {
      const [n, role] = key.split(":");
      const picture = runs[Number(n)].pictures[role];
      return picture ? Promise.resolve(picture) : Promise.reject(new Error(`the report has no image ${role}`));
    };
    const [images, curves] = [ps.make("div"), ps.make("div")];
    element.classList.add("ps-page");
    element.replaceChildren(
      ps.make("header", { class: "ps-head" }, ps.make("h1", {}, `${runs.length} runs compared`)),
      ps.section("Results", summary(runs, names)),
      ps.section("Images", images),
      ps.section("Curves", curves),
      ps.section("Settings that differ", differences(runs, names)),
      ps.section(
        "Commands",
        ...runs.map(({ content }, n) =>
          ps.make(
            "div",
            { class: "ps-repeat" },
            ps.make("strong", {}, names[n]),
            ps.make("code", { class: "ps-command" }, content.command || "not known"),
            ps.copyButton("Copy", () => content.command),
          ),
        ),
      ),
    );
    ps.showImages(images, { sources, load, name: "comparison", mode: sources.length > 2 ? "all" : "side" });
    ps.showCurves(
      curves,
      runs.map(({ content }, n) => ({ name: names[n], content })),
      "comparison",
    );
  }

  // What the runs are called: the names of their folders, or all of their paths where two have the same.
  function namesOf(contents) {
    const short = contents.map((content) => content.name);
    return new Set(short).size === short.length ? short : contents.map((content) => content.folder);
  }

  // A table with a column for each run; title is what it is of, and rows are [name, texts, n of the best or null].
  function columns(title, names, rows) {
    const head = ps.make(
      "tr",
      {},
      ps.make("td"),
      ...names.map((name, n) =>
        ps.make("th", { scope: "col" }, ps.make("span", { class: `ps-swatch ps-swatch-${n % 6}` }), name),
      ),
    );
    const body = rows.map(([name, texts, best]) =>
      ps.make(
        "tr",
        {},
        ps.make("th", { scope: "row" }, name),
        ...texts.map((text, n) =>
          ps.make("td", {}, n === best ? ps.make("strong", { title: "the best of them" }, text) : text),
        ),
      ),
    );
    return ps.make(
      "div",
      { class: "ps-scroll", tabindex: 0, role: "region", "aria-label": title },
      ps.make("table", { class: "ps-table ps-columns" }, ps.make("thead", {}, head), ps.make("tbody", {}, ...body)),
    );
  }

  // The words of all answers, "–" of a run that has not ended.
  function verdictOf(stop) {
    const words = Object.values(stop?.answers || {}).map((answer) => answer.word);
    return words.join(", ") || stop?.verdict || "–";
  }

  function summary(runs, names) {
    const contents = runs.map((run) => run.content);
    const rows = [
      ["does", contents.map((content) => content.title || "–")],
      ["ended", contents.map((content) => (content.stop ? content.stop.reason : ps.runState(content).text))],
      ["verdict", contents.map((content) => verdictOf(content.stop))],
      ["steps", contents.map((content) => String(content.step))],
      ["time", contents.map((content) => ps.duration(content.seconds))],
    ];
    const quantities = new Map(
      contents.flatMap((content) => content.quantities.map((quantity) => [quantity.name, quantity])),
    );
    for (const quantity of quantities.values()) {
      const values = contents.map(
        (content) => content.measured.values[quantity.name]?.findLast((value) => value !== null) ?? null,
      );
      const scores = values.map((value) =>
        value === null || quantity.smaller_is_better === null ? -Infinity : quantity.smaller_is_better ? -value : value,
      );
      const best = Math.max(...scores) > -Infinity ? scores.indexOf(Math.max(...scores)) : null;
      rows.push([
        quantity.title || quantity.name,
        values.map((value) => (value === null ? "–" : `${ps.formatNumber(value)} ${quantity.unit}`.trim())),
        best,
      ]);
    }
    return columns("Table of results", names, rows);
  }

  function differences(runs, names) {
    const settings = runs.map(({ content }) => content.settings);
    const keys = [
      ...new Set(
        settings.flatMap((all) =>
          Object.entries(all).flatMap(([part, values]) => Object.keys(values || {}).map((key) => `${part}.${key}`)),
        ),
      ),
    ];
    const valueOf = (all, key) => {
      const [part, ...rest] = key.split(".");
      const value = all[part]?.[rest.join(".")];
      return value === undefined ? "–" : Array.isArray(value) ? value.join(", ") : String(value);
    };
    const rows = keys
      .map((key) => [key, settings.map((all) => valueOf(all, key))])
      .filter(([, texts]) => new Set(texts).size > 1);
    return rows.length
      ? columns("Table of settings", names, rows)
      : ps.make("p", { class: "ps-empty" }, "They were asked the same.");
  }

  Object.assign(ps, { compareRuns });
})();
