// What a page of the server asks it for: content and pictures, events as they come, and commands with the token.
"use strict";
(() => {
  const here = new URLSearchParams(location.search);
  const single = document.documentElement.dataset.single === "yes"; // the server shows one run, without a list
  const run = here.get("run");
  const HIDDEN = 20000; // milliseconds after which a page that nobody sees lets go of its connection
  const token = takeToken();

  // The token of the printed address is kept for this tab alone, and taken out of what the browser shows and remembers.
  function takeToken() {
    const given = here.get("token");
    try {
      if (given) {
        sessionStorage.setItem("plugstream-token", given);
        here.delete("token");
        history.replaceState(null, "", `${location.pathname}${here.size ? `?${here}` : ""}${location.hash}`);
      }
      return given || sessionStorage.getItem("plugstream-token");
    } catch {
      return given; // where a browser allows no storage the token is gone with the page
    }
  }

  function address(path, values = {}) {
    const query = new URLSearchParams(Object.entries({ run, ...values }).filter(([, value]) => value !== null));
    return `/api/${path}${query.size ? `?${query}` : ""}`;
  }

  // The picture of a role; of a preview the one that the content with this stamp was of.
  async function loadPicture(role, stamp) {
    const answer = await fetch(address("picture", { role, stamp: stamp || null }));
    if (!answer.ok) throw new Error((await answer.text()).trim());
    return answer.json();
  }

  // Ask the run for something; an error says why it was not asked.
  async function sendCommand(command) {
    const headers = { "Content-Type": "application/json", "X-Plugstream-Token": token || "" };
    const answer = await fetch(address("commands"), { method: "POST", headers, body: JSON.stringify(command) });
    if (!answer.ok) throw new Error((await answer.text()).trim());
  }

  // What there is by now, from messages: first all of it, then what changed.
  //
  // A page that nobody sees draws nothing. Where there may be many of them, it also lets go of its connection after a
  // while, since a browser has six for a server, and a seventh page would wait for ever.
  //
  // Arguments: show(content), called with it, no more often than the page is drawn; say, called with what is wrong, or
  // with nothing where all is well.
  function follow(show, say) {
    let source = null;
    let content = null;
    let due = 0;
    let rest = 0;

    function draw() {
      due = 0;
      show(content);
    }
    function news(now) {
      content = now;
      say("");
      if (!due && !document.hidden) due = requestAnimationFrame(draw);
    }
    function listen() {
      source = new EventSource(address("events"));
      source.addEventListener("content", (event) => news(JSON.parse(event.data)));
      source.addEventListener("change", (event) => content && news(merge(content, JSON.parse(event.data))));
      source.addEventListener("fault", (event) => say(JSON.parse(event.data).text));
      source.addEventListener("error", async () => {
        const refused = source.readyState === EventSource.CLOSED; // else the browser tries again by itself
        say((await reason()) || (refused ? "Too many pages are open. This one tries again; close some." : ""));
        if (refused) setTimeout(listen, 2000);
      });
    }
    document.addEventListener("visibilitychange", () => {
      clearTimeout(rest);
      if (document.hidden) {
        if (!single) rest = setTimeout(() => source.close(), HIDDEN);
      } else if (source.readyState === EventSource.CLOSED) {
        listen();
      } else if (content) {
        news(content);
      }
    });
    listen();
  }

  function merge(content, { set, rows }) {
    if (rows) {
      const { step, time, values } = content.measured;
      const join = (column, more) => column.slice(0, rows.keep).concat(more);
      const columns = Object.entries(values).map(([name, column]) => [name, join(column, rows.values[name])]);
      set.measured = {
        step: join(step, rows.step),
        time: join(time, rows.time),
        values: Object.fromEntries(columns),
      };
    }
    return { ...content, ...set };
  }

  // Why there are no events.
  async function reason() {
    try {
      const answer = await fetch(address(run === null && !single ? "runs" : "content"));
      if (answer.ok) return "";
      if (answer.status === 404 && single) return "The run has not begun yet.";
      return `The server says: ${(await answer.text()).trim()}.`;
    } catch {
      return "The server does not answer, so the page shows what was last known. A run goes on without it.";
    }
  }

  const stream = { follow, loadPicture, maySteer: Boolean(token), run, sendCommand, single };
  window.plugstream = Object.assign(window.plugstream || {}, { stream });
})();
