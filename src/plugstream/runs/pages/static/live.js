// The pages of the server: one run as it goes on, with its controls, or the list of all of them.
"use strict";
(() => {
  const ps = window.plugstream;
  const { follow, loadPicture, run, single } = ps.stream;
  const main = document.querySelector("main");

  // A line that says what is wrong, which screen readers are told, too.
  function notice() {
    const element = ps.make("p", { class: "ps-notice", role: "status", hidden: true });
    const say = (text) => {
      element.textContent = text;
      element.hidden = !text;
    };
    return { element, say };
  }

  function showOne() {
    const page = ps.make("div");
    const { element, say } = notice();
    const link = ps.make("a", { href: "/" }, "← all runs");
    const back = single ? [] : [ps.make("nav", { class: "ps-back", "aria-label": "Runs" }, link)];
    main.replaceChildren(...back, element, page);
    let shown = null;
    let steer = null;
    let last = null;
    const tell = (doing) => shown.tell({ ...last, doing: doing || last.doing });
    follow((now) => {
      last = now;
      if (!shown) {
        shown = ps.showRun(page, now, loadPicture);
        steer = ps.showControls(shown.controls, tell);
      }
      const content = steer(now);
      shown.update(content);
      document.title = `${progressOf(content)}${content.name} - plugstream`;
    }, say);
  }

  function progressOf(content) {
    if (content.state !== "running" || content.doing) return `${ps.runState(content).text}, `;
    const { step, iterations } = content;
    return iterations ? `${Math.floor((100 * Math.min(step, iterations)) / iterations)} %, ` : "";
  }

  function showList() {
    const { element, say } = notice();
    const cards = ps.make("ul", { class: "ps-runs" });
    const empty = ps.make("p", { class: "ps-empty" }, "There are no runs here yet; they appear as they begin.");
    main.replaceChildren(ps.make("h1", {}, "Runs"), element, empty, cards);
    const known = new Map();
    follow((runs) => {
      const names = sortNames(runs);
      empty.hidden = names.length > 0;
      for (const [name, card] of known) {
        if (names.includes(name)) continue;
        card.element.remove();
        known.delete(name);
      }
      names.forEach((name, place) => {
        if (!known.has(name)) known.set(name, makeCard(name));
        const card = known.get(name);
        card.update(runs[name]);
        if (cards.children[place] !== card.element) cards.insertBefore(card.element, cards.children[place] || null);
      });
    }, say);
  }

  // Those that go on first, then those that did most recently.
  function sortNames(runs) {
    const goes = (name) => Number(runs[name].state === "running" || runs[name].state === "paused");
    const names = Object.keys(runs).filter((name) => runs[name] !== null); // null: it is gone
    return names.sort((a, b) => goes(b) - goes(a) || (runs[b].began || 0) - (runs[a].began || 0));
  }

  function makeCard(name) {
    const link = ps.make("a", { href: `/?run=${encodeURIComponent(name)}` }, name);
    const size = { width: 120, height: 120 };
    const image = ps.make("img", { class: "ps-thumb", alt: `The image of ${name}`, hidden: true, loading: "lazy", ...size });
    const pill = ps.make("span", { class: "ps-pill" });
    const title = ps.make("p", { class: "ps-what" });
    const bar = ps.make("progress", { "aria-label": `Steps of ${name} that are done` });
    const facts = ps.make("p", { class: "ps-small" });
    const head = ps.make("div", { class: "ps-title" }, ps.make("h2", {}, link), pill);
    const element = ps.make(
      "li",
      { class: "ps-run" },
      ps.make("div", { class: "ps-frame" }, image),
      ps.make("div", { class: "ps-about" }, head, title, bar, facts),
    );
    let before = "";
    let stamp = null;

    function update(now) {
      const text = JSON.stringify(now);
      if (text === before) return;
      before = text;
      const unreadable = now.state === "unreadable";
      const { text: words, kind } = unreadable ? { text: now.state, kind: "failed" } : ps.runState(now);
      pill.className = `ps-pill ps-${kind}`;
      pill.textContent = words;
      title.textContent = unreadable ? now.reason : now.title;
      bar.hidden = !now.iterations || !(now.state === "running" || now.state === "paused");
      if (!bar.hidden) Object.assign(bar, { max: now.iterations, value: Math.min(now.step, now.iterations) });
      facts.textContent = unreadable ? "" : factsOf(now).join(" · ");
      if (now.thumbnail && now.thumbnail !== stamp) {
        stamp = now.thumbnail;
        image.src = `/api/thumbnail?${new URLSearchParams({ run: name, stamp })}`;
        image.hidden = false;
      }
    }
    return { element, update };
  }

  function factsOf({ step, iterations, left, at_most: atMost, values }) {
    const facts = [`step ${step}${iterations ? ` of ${iterations}` : ""}`];
    if (left) facts.push(`${atMost ? "at most" : "about"} ${ps.duration(left)} left`);
    return [...facts, ...values.map(({ title, unit, value }) => `${title} ${ps.formatNumber(value)} ${unit}`.trim())];
  }

  if (run !== null || single) showOne();
  else showList();
})();
