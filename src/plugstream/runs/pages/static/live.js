// The page of runs that go on: it is fed by server-sent events, and asks a run for what a person wants.
"use strict";
(() => {
  const ps = window.plugstream;
  const main = document.querySelector("main");
  const single = document.documentElement.dataset.single === "yes";
  const here = new URLSearchParams(location.search);
  const run = here.get("run");
  const token = takeToken();

  // The token of the printed address is kept for this tab alone, and taken out of what the browser shows and remembers.
  function takeToken() {
    const given = here.get("token");
    try {
      if (given) sessionStorage.setItem("plugstream-token", given);
      if (given) {
        here.delete("token");
        history.replaceState(null, "", `${location.pathname}${here.size ? `?${here}` : ""}${location.hash}`);
      }
      return given || sessionStorage.getItem("plugstream-token");
    } catch {
      return given; // where a browser allows no storage the token is gone with the page
    }
  }

  const address = (path, values = {}) => {
    const query = new URLSearchParams(Object.entries({ run, ...values }).filter(([, value]) => value !== null));
    return `/api/${path}${query.size ? `?${query}` : ""}`;
  };

  async function load(path, values) {
    const answer = await fetch(address(path, values));
    if (!answer.ok) throw new Error((await answer.text()).trim());
    return answer.json();
  }

  async function ask(command) {
    const headers = { "Content-Type": "application/json", "X-Plugstream-Token": token || "" };
    const answer = await fetch(address("commands"), { method: "POST", headers, body: JSON.stringify(command) });
    if (!answer.ok) throw new Error((await answer.text()).trim());
  }

  // What there is by now, from messages: first all of it, then what changed.
  //
  // Arguments: show(content), called with it, no more often than the page is drawn, and not while nobody sees it; say,
  // called with what is wrong, or with nothing where all is well.
  function follow(show, say) {
    const source = new EventSource(address("events"));
    let content = null;
    let waiting = false;
    const draw = () => {
      waiting = false;
      if (content) show(content);
    };
    const soon = () => {
      if (waiting || document.hidden) return;
      waiting = true;
      requestAnimationFrame(draw);
    };
    document.addEventListener("visibilitychange", soon);
    source.addEventListener("content", (event) => {
      content = JSON.parse(event.data);
      say("");
      soon();
    });
    source.addEventListener("change", (event) => {
      const { set, rows } = JSON.parse(event.data);
      if (!content) return;
      if (rows) {
        const join = (column, more) => column.concat(more);
        const { step, time, values } = content.measured;
        const columns = Object.entries(values).map(([name, column]) => [name, join(column, rows.values[name])]);
        set.measured = { step: join(step, rows.step), time: join(time, rows.time), values: Object.fromEntries(columns) };
      }
      content = { ...content, ...set };
      say("");
      soon();
    });
    source.addEventListener("fault", (event) => say(JSON.parse(event.data).text));
    source.addEventListener("error", () => {
      say("The server does not answer, so the page shows what was last known; a run goes on without it.");
      if (source.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 5000);
    });
  }

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
    const back = single ? null : ps.make("nav", { class: "ps-back", "aria-label": "Runs" }, ps.make("a", { href: "/" }, "← all runs"));
    main.replaceChildren(...[back, element, page].filter(Boolean));
    let shown = null;
    let steer = null;
    follow((content) => {
      if (!shown) {
        shown = ps.showRun(page, content, (role) => load("picture", { role }));
        steer = showControls(shown.controls);
      } else {
        shown.update(content);
      }
      steer(content);
      const done = content.iterations ? `${Math.floor((100 * Math.min(content.step, content.iterations)) / content.iterations)} %, ` : "";
      document.title = `${content.state === "running" ? done : `${ps.runState(content).text}, `}${content.name} - plugstream`;
    }, say);
  }

  // Sigma and the step of now: what was last asked for, else what the settings say.
  function strengths({ settings, steering }) {
    const algorithm = settings.algorithm || {};
    const last = (name) => steering.findLast((event) => event[name] !== null && event[name] !== undefined)?.[name];
    const known = (value) => (value === undefined || value === null || value === "none" ? "" : String(value));
    const sigma = last("sigma") ?? (known(algorithm.sigma) || (known(algorithm.lam) && `from lambda ${algorithm.lam}`));
    return { sigma: known(sigma), step: known(last("step_size") ?? algorithm.step_size) };
  }

  // Buttons and fields that steer a run; returns what is called with its content as that changes.
  function showControls(element) {
    const told = ps.make("p", { class: "ps-asked", role: "status" });
    const sigma = ps.make("input", { type: "text", inputmode: "decimal", autocomplete: "off", size: 9 });
    const step = ps.make("input", { type: "text", autocomplete: "off", size: 9 });
    const fields = [ps.labelled("sigma", sigma), ps.labelled("step", step)];
    let known = { events: 0, refusals: 0 }; // how many there are
    let asked = null; // how many there were when something was asked for, until the run has answered
    let state = null;

    const send = async (command, text) => {
      told.textContent = `asked to ${text} …`;
      asked = known; // before it is sent: the run may answer before the server does
      try {
        await ask(command);
      } catch (error) {
        asked = null;
        told.textContent = `It was not asked to ${text}: ${error.message || "the server does not answer"}.`;
      }
    };
    const pause = ps.button("Pause", () => (state === "paused" ? send({ action: "resume" }, "go on") : send({ action: "pause" }, "pause")), { class: "ps-main" });
    const really = ps.make("span", { class: "ps-really", hidden: true }, "End the run here and keep its results?");
    const stop = ps.button("Stop and keep", () => sure(true));
    const yes = ps.button("End it", () => (sure(false), send({ action: "stop" }, "stop")), { class: "ps-danger" });
    const no = ps.button("Go on with it", () => sure(false));
    really.append(" ", yes, " ", no);
    really.addEventListener("keydown", (event) => event.key === "Escape" && sure(false));
    function sure(open) {
      really.hidden = !open;
      stop.hidden = open;
      (open ? no : stop).focus();
    }

    const form = ps.make("form", { class: "ps-change", "aria-label": "Change sigma or the step" }, ...fields, ps.make("button", { type: "submit" }, "Change"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const [first, second] = [sigma.value.trim().replace(",", "."), step.value.trim().replace(",", ".")];
      if (!first && !second) {
        told.textContent = "Write a sigma, a step, or both: a number, or for the step a multiple such as 0.5/L.";
        (first ? step : sigma).focus();
        return;
      }
      const number = first && Number(first);
      if (first && !(number >= 0 && Number.isFinite(number))) {
        told.textContent = `Sigma must be a number that is not negative, not "${first}".`;
        sigma.focus();
        return;
      }
      const parts = [first && `sigma ${first}`, second && `step ${second}`].filter(Boolean).join(" and ");
      send({ action: "change", ...(first ? { sigma: number } : {}), ...(second ? { step_size: second } : {}) }, `change to ${parts}`);
      sigma.value = step.value = "";
    });

    const group = ps.make("fieldset", {}, ps.make("legend", {}, "Steer the run"), ps.make("div", { class: "ps-steer" }, pause, stop, really, form), told);
    const locked = ps.make("p", { class: "ps-note" }, "To steer the run, open the address that the server printed, which has a token in it.");
    element.replaceChildren(token ? group : locked);

    return (content) => {
      state = content.state;
      const goes = state === "running" || state === "paused";
      element.hidden = !goes;
      if (!goes && element.contains(document.activeElement)) main.querySelector("h1")?.focus();
      pause.textContent = state === "paused" ? "Go on" : "Pause";
      const now = strengths(content);
      sigma.placeholder = now.sigma;
      step.placeholder = now.step;
      const refusals = content.notes.filter(({ text }) => text.includes("cannot be done"));
      known = { events: content.steering.length, refusals: refusals.length };
      if (asked && known.events > asked.events) told.textContent = describe(content.steering.at(-1));
      else if (asked && known.refusals > asked.refusals) told.textContent = refusals.at(-1).text;
      else return;
      asked = null;
    };
  }

  function describe({ step, action, sigma, step_size }) {
    const what = [sigma !== null && `sigma is ${sigma}`, step_size !== null && `the step is ${step_size}`].filter(Boolean).join(" and ");
    return { pause: `Paused at step ${step}.`, resume: `It goes on from step ${step}.`, stop: `It stops at step ${step}.` }[action] || `From step ${step + 1} on ${what}.`;
  }

  function showList() {
    const { element, say } = notice();
    const cards = ps.make("ul", { class: "ps-runs" });
    const empty = ps.make("p", { class: "ps-empty" }, "There are no runs here yet; the list shows them as they begin.");
    main.replaceChildren(ps.make("h1", {}, "Runs"), element, empty, cards);
    const known = new Map();
    const order = { running: 0, paused: 0 };
    follow((runs) => {
      const names = Object.keys(runs).filter((name) => runs[name] !== null);
      names.sort((a, b) => (order[runs[a].state] ?? 1) - (order[runs[b].state] ?? 1) || (runs[b].heard || 0) - (runs[a].heard || 0));
      empty.hidden = names.length > 0;
      for (const [name, card] of known) if (!names.includes(name)) (card.element.remove(), known.delete(name));
      names.forEach((name, place) => {
        if (!known.has(name)) known.set(name, makeCard(name));
        const card = known.get(name);
        card.update(runs[name]);
        if (cards.children[place] !== card.element) cards.insertBefore(card.element, cards.children[place] || null);
      });
    }, say);
  }

  function makeCard(name) {
    const link = ps.make("a", { href: `/?run=${encodeURIComponent(name)}` }, name);
    const image = ps.make("img", { class: "ps-thumb", alt: `The image of ${name}`, width: 120, height: 120, hidden: true });
    const pill = ps.make("span", { class: "ps-pill" });
    const title = ps.make("p", { class: "ps-what" });
    const bar = ps.make("progress", { "aria-label": `Steps of ${name} that are done` });
    const facts = ps.make("p", { class: "ps-small" });
    const element = ps.make("li", { class: "ps-run" }, ps.make("div", { class: "ps-frame" }, image), ps.make("div", { class: "ps-about" }, ps.make("div", { class: "ps-title" }, ps.make("h2", {}, link), pill), title, bar, facts));
    let stamp = null;
    let before = "";
    return {
      element,
      update(now) {
        const text = JSON.stringify(now);
        if (text === before) return;
        before = text;
        const { text: words, kind } = now.state === "unreadable" ? { text: "unreadable", kind: "failed" } : ps.runState(now);
        pill.className = `ps-pill ps-${kind}`;
        pill.textContent = words;
        title.textContent = now.reason || now.title;
        const goes = now.state === "running" || now.state === "paused";
        bar.hidden = !goes || !now.iterations;
        if (!bar.hidden) Object.assign(bar, { max: now.iterations, value: Math.min(now.step, now.iterations) });
        const parts = now.state === "unreadable" ? [] : [`step ${now.step}${now.iterations ? ` of ${now.iterations}` : ""}`];
        if (now.left) parts.push(`about ${ps.duration(now.left)} left`);
        for (const value of now.values || []) parts.push(`${value.title} ${ps.formatNumber(value.value)} ${value.unit}`.trim());
        facts.textContent = parts.join(" · ");
        if (now.thumbnail && now.thumbnail !== stamp) {
          stamp = now.thumbnail;
          image.src = `/api/thumbnail?${new URLSearchParams({ run: name, stamp })}`;
          image.hidden = false;
        }
      },
    };
  }

  if (run !== null || single) showOne();
  else showList();
})();
