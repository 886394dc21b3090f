// A run as a page: what it does and how it ended, its images, its curves, its settings and its machine.
"use strict";
(() => {
  const ps = window.plugstream;
  const LABELS = {
    result: "result",
    preview: "image now",
    checkpoint: "last checkpoint",
    filtered: "filtered back-projection",
    gridding: "gridding",
    backprojection: "first back-projection",
    uncertainty: "error from noise and views",
    start: "start",
    truth: "truth",
  };

  const PATIENCE = 1500; // milliseconds that numbers and curves wait for the image of their step

  const sourcesOf = (content) =>
    content.roles.map((role) => ({
      key: role,
      label: LABELS[role] || role,
      note: content.scores?.[role] ?? "",
      stamp: content.stamps[role],
    }));

  // Why there is no image.
  const waitingFor = ({ doing }) => {
    const why = " The run is getting ready for its first step, and the log below says how far it is.";
    return `There is no image yet.${doing === "starting" ? why : ""}`;
  };

  function section(title, ...children) {
    const id = ps.newId("heading");
    return ps.make(
      "section",
      { class: "ps-section", "aria-labelledby": id },
      ps.make("h2", { id }, title),
      ...children,
    );
  }

  // Show a run in an element.
  //
  // Arguments: content, as plugstream.runs.pages.content makes it; loadPicture(role), a promise of a picture.
  // Returns {update(content), tell(content), controls}: update shows all of it at once, when its images have come, tell its
  // state alone; controls is an element below the heading for who can steer the run.
  function showRun(element, content, loadPicture) {
    const head = ps.make("header", { class: "ps-head" });
    const controls = ps.make("div", { class: "ps-controls" });
    const images = ps.make("div");
    const moment = ps.make("p", { class: "ps-note ps-moment" });
    const curves = ps.make("div");
    const views = ps.make("div");
    const steering = ps.make("div");
    const settings = ps.make("div");
    const machine = ps.make("div");
    const notes = ps.make("div");
    const theirs = { steering: section("Changes while it ran", steering), views: section("Views", views) };
    element.classList.add("ps-page");
    element.replaceChildren(
      head,
      ...(content.about ? [ps.make("p", { class: "ps-about" }, content.about)] : []),
      controls,
      section("Image", moment, images),
      section("Curves", curves),
      theirs.views,
      theirs.steering,
      section("Settings", settings),
      section("Machine", machine),
      section("Log", notes),
    );

    const sources = sourcesOf(content);
    const viewer = ps.showImages(images, { sources, load: loadPicture, name: content.name, missing: waitingFor(content) });
    const charts = ps.showCurves(curves, [{ name: content.name, content }], content.name);
    const top = ps.showHead(head);
    let before = {};
    let latest = content; // what was last told, shown or not
    let busy = false;

    // Of which step the image is, beside that of numbers and curves; of a result the head says it.
    function tellMoment(now) {
      const { step = null } = viewer.shown() || {};
      moment.hidden = step === null || now.state === "ended";
      if (moment.hidden) return;
      const same = `Image, numbers and curves are of step ${step}.`;
      moment.textContent = step === now.step ? same : `The image is of step ${step}, numbers and curves of step ${now.step}.`;
    }

    function fill(now) {
      top.fill(now);
      tellMoment(now);
      const part = (name, value, make) => {
        const text = JSON.stringify(value);
        if (before[name] !== text) make();
        before[name] = text;
      };
      part("views", [now.views, now.step], () => showViews(views, now));
      part("steering", now.steering, () => {
        theirs.steering.hidden = !now.steering.length;
        steering.replaceChildren(steeringTable(now));
      });
      part("settings", [now.settings, now.command, now.files], () => settings.replaceChildren(settingsPart(now)));
      part("machine", [now.machine, now.versions, now.began], () => machine.replaceChildren(table(machineRows(now))));
      part("notes", now.notes, () => notes.replaceChildren(notesList(now)));
    }

    // What is shown waits for its images, so that all of it changes at once, but not for ones that do not come. What
    // comes meanwhile waits for its turn, and of several the newest.
    async function update(now) {
      top.tell(now);
      latest = now;
      if (busy) return;
      busy = true;
      for (let one = null; one !== latest; ) {
        one = latest;
        const sources = sourcesOf(one);
        const late = new Promise((done) => setTimeout(done, PATIENCE));
        await Promise.race([viewer.prepare(sources), late]);
        const drawn = viewer.update(sources, waitingFor(one));
        await Promise.race([drawn, late]);
        fill(one);
        charts.update([{ name: one.name, content: one }]);
        drawn.then(() => tellMoment(one)); // of a picture that was late
      }
      busy = false;
      top.tell(latest);
    }

    fill(content);
    viewer.ready.then(() => tellMoment(latest));
    return { controls, update, tell: top.tell };
  }

  // Rows of names and values; a value may be an element.
  function table(rows, caption) {
    const body = rows.map(([name, value]) =>
      ps.make("tr", {}, ps.make("th", { scope: "row" }, name), ps.make("td", {}, value)),
    );
    return ps.make(
      "div",
      { class: "ps-scroll" },
      ps.make(
        "table",
        { class: "ps-table" },
        caption ? ps.make("caption", {}, caption) : null,
        ps.make("tbody", {}, ...body),
      ),
    );
  }

  function showViews(element, content) {
    const chart = ps.make("div");
    element.replaceChildren(viewsTable(content), chart);
    if (content.views.usage) ps.showUsage(chart, content.views.usage, content.views.damaged);
  }

  function viewsTable(content) {
    const { now, total, damaged, ended, batch, arrivals, hold_out: every } = content.views;
    const rows = [
      ["views", ended || total !== null ? `${now}` : `${now} so far, and more may come`],
      ["in a step", batch ? `${batch} of them` : "all of them"],
    ];
    if (batch && now)
      rows.push([
        "used",
        `${content.step * batch} drawn, ${ps.formatNumber((content.step * batch) / now)} times all of them`,
      ]);
    const held = every ? Math.floor(now / every) : 0;
    if (held) rows.push(["held out", `${held}, every ${every}th: the misfit on them is measured`]);
    const unused = content.views.usage ? content.views.usage.unused - damaged.length - held : 0;
    if (unused > 0) rows.push(["never drawn", `${unused} of them`]);
    if (arrivals.length > 1)
      rows.push(["came", `in ${arrivals.length} parts, the last one before step ${arrivals.at(-1)[0]}`]);
    for (const stage of content.stages)
      rows.push([
        `stage ${stage.number} of ${stage.count}`,
        `from step ${stage.step + 1} on: ${stage.name}, ${stage.views} views, sigma ${ps.formatNumber(stage.sigma)}`,
      ]);
    rows.push([
      "damaged",
      damaged.length
        ? `${damaged.length} left out: ${damaged.slice(0, 40).join(", ")}${damaged.length > 40 ? ", …" : ""}`
        : "none",
    ]);
    return table(rows);
  }

  // What somebody asked of the run, in words.
  function describeSteering({ step, action, sigma, step_size: size }) {
    if (action === "pause") return `Paused at step ${step}.`;
    if (action === "resume") return `It goes on from step ${step}.`;
    if (action === "stop") return `It stops at step ${step}.`;
    const parts = [sigma !== null && `sigma is ${sigma}`, size !== null && `the step is ${size}`];
    return `From step ${step + 1} on ${parts.filter(Boolean).join(" and ")}.`;
  }

  function steeringTable(content) {
    return table(
      content.steering.map((event) => [new Date(1000 * event.at).toLocaleTimeString(), describeSteering(event)]),
    );
  }

  function settingsPart(content) {
    const command = ps.make(
      "code",
      { class: "ps-command", tabindex: 0, "aria-label": "The command that repeats the run" },
      content.command,
    );
    const parts = [];
    if (content.command)
      parts.push(
        ps.make(
          "div",
          { class: "ps-repeat" },
          command,
          ps.copyButton("Copy the command that repeats it", () => content.command),
        ),
      );
    const shown = (value) => {
      const text = Array.isArray(value) ? value.join(", ") : String(value);
      return text === "none" ? ps.make("span", { class: "ps-unset" }, text) : text;
    };
    const sections = Object.entries(content.settings).filter(
      ([, values]) => values && typeof values === "object" && Object.keys(values).length,
    );
    parts.push(
      ps.make(
        "div",
        { class: "ps-settings" },
        ...sections.map(([name, values]) =>
          table(
            Object.entries(values).map(([key, value]) => [key, shown(value)]),
            name,
          ),
        ),
      ),
    );
    const files = Object.entries(content.files || {});
    if (files.length)
      parts.push(
        table(
          files.map(([name, file]) => [name, `${file.path}, SHA-256 ${file.sha256}`]),
          "files that were read",
        ),
      );
    return ps.make("div", {}, ...parts);
  }

  function machineRows(content) {
    const { machine, versions, began } = content;
    const rows = [];
    if (machine) {
      rows.push(
        ["machine", `${machine.name}, ${machine.system}`],
        ["processor", `${machine.processor}, ${machine.cores} cores`],
      );
      if (machine.memory) rows.push(["memory", `${ps.formatNumber(machine.memory / 2 ** 30)} GiB`]);
      rows.push([
        "computed on",
        `${machine.device}, ${machine.threads} ${machine.threads === 1 ? "thread" : "threads"}${machine.processes > 1 ? `, ${machine.processes} processes` : ""}`,
      ]);
    }
    if (Object.keys(versions).length)
      rows.push([
        "versions",
        Object.entries(versions)
          .map((entry) => entry.join(" "))
          .join(", "),
      ]);
    if (began) rows.push(["begun", ps.clock(began)]);
    rows.push(["folder", content.folder]);
    return rows;
  }

  function notesList(content) {
    const items = content.notes.map(({ at, text }) =>
      ps.make(
        "li",
        text.startsWith("warning") ? { class: "ps-warning" } : {},
        ps.make("time", { datetime: new Date(1000 * at).toISOString() }, ps.clock(at, false)),
        ` ${text}`,
      ),
    );
    return ps.make("ol", { class: "ps-log", tabindex: 0, "aria-label": "What the run told" }, ...items);
  }

  // Show the runs that a report has in it, [{content, pictures}].
  function showReport(element, runs) {
    const missing = (role) => Promise.reject(new Error(`the report has no image ${role}`));
    if (runs.length > 1) return ps.compareRuns(element, runs);
    const [{ content, pictures }] = runs;
    return showRun(element, content, (role) => (pictures[role] ? Promise.resolve(pictures[role]) : missing(role)));
  }

  Object.assign(ps, {
    describeSteering,
    section,
    showReport,
    showRun,
    runTable: table,
    runSources: sourcesOf,
  });
})();
