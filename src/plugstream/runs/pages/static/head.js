// The top of a run's page: its name and state, how far it is, what was last measured, and how it ended.
"use strict";
(() => {
  const ps = window.plugstream;
  const STATES = { running: "running", paused: "paused", ended: "finished", killed: "ended without a word" };

  // In which state a run is: a word for it, and the kind that colours it.
  function runState(content) {
    if (content.doing) return { text: content.doing, kind: content.doing === "pausing" ? "paused" : content.state };
    if (content.state !== "ended" || !content.stop) {
      return { text: STATES[content.state] || content.state, kind: content.state };
    }
    if (content.stop.failed) return { text: "failed", kind: "failed" };
    const interrupted = content.stop.reason.endsWith("interrupted");
    return interrupted ? { text: "interrupted", kind: "paused" } : { text: "finished", kind: "ended" };
  }

  // Numbers of now, [name, text] each.
  function factsOf(content) {
    const { step, iterations, seconds, speed, left, at_most: atMost } = content;
    const facts = [["steps", iterations === null ? `${step}` : `${step} of ${iterations}`]];
    if (seconds !== null) facts.push(["time", ps.duration(seconds)]);
    if (speed) facts.push(["speed", `${ps.formatNumber(speed)} steps a second`]);
    if (left !== null) facts.push(["left", `${atMost ? "at most" : "about"} ${ps.duration(left)}`]);
    for (const quantity of content.quantities.slice(0, 3)) {
      const values = content.measured.values[quantity.name] || [];
      // After a search no view is held out, and the last misfit was of another image.
      const recent = quantity.name === "held_out" ? values.slice(-1) : values;
      const last = recent.findLast((value) => value !== null);
      const text = `${ps.formatNumber(last)} ${quantity.unit}`.trim();
      if (last !== undefined) facts.push([quantity.title || quantity.name, text]);
    }
    return facts;
  }

  // What there is to say of how a run ended, as paragraphs.
  function endOf({ state, stop, folder }) {
    const parts = [];
    if (stop?.verdict) {
      // A log of an earlier version has the first answer alone.
      const first = { word: stop.verdict, good: stop.trusted, text: stop.explanation || "" };
      const answers = Object.entries(stop.answers || { "": first });
      // First what holds whatever the answers are, such as directions that were not measured.
      for (const limit of answers.flatMap(([, answer]) => answer.word.split("; ").slice(1))) {
        const text = limit[0].toUpperCase() + limit.slice(1);
        parts.push(ps.make("p", { class: "ps-verdict ps-caution" }, ps.make("strong", {}, text)));
      }
      for (const [question, answer] of answers) {
        const kind = answer.good ? "ps-good" : "ps-caution";
        const word = ps.make("strong", {}, answer.word.split("; ")[0]);
        const text = answer.text ? `: ${answer.text.replaceAll(" %", "\u00a0%")}` : "";
        parts.push(ps.make("p", { class: `ps-verdict ${kind}` }, question ? `${question} ` : "", word, text));
      }
    }
    if (stop) {
      const image = stop.image_step === stop.step ? "" : ` The image is that of step ${stop.image_step}.`;
      parts.push(ps.make("p", { class: "ps-reason" }, `It stopped after step ${stop.step}: ${stop.reason}.${image}`));
    }
    if (state === "killed") {
      const text = "It did not say how it ended: it was killed, or its machine was. It goes on with: plugstream resume";
      parts.push(ps.make("p", { class: "ps-verdict ps-caution" }, `${text} ${folder}`));
    }
    return parts;
  }

  // Show the top of a page in an element. Returns {fill(content), tell(content)}: all of it, and its state alone.
  function showHead(element) {
    const name = ps.make("h1");
    // Screen readers are told when the state changes, and not with every step.
    const pill = ps.make("span", { role: "status" });
    const rest = ps.make("div");
    element.replaceChildren(ps.make("div", { class: "ps-title" }, name, pill), rest);

    function tell(content) {
      const { text, kind } = runState(content);
      pill.className = `ps-pill ps-${kind}`;
      if (pill.textContent !== text) pill.textContent = text;
    }
    function fill(content) {
      const { step, iterations } = content;
      tell(content);
      name.textContent = content.name;
      const parts = [];
      if (content.title) parts.push(ps.make("p", { class: "ps-what" }, content.title));
      if (iterations && content.state !== "ended") {
        const done = Math.min(step, iterations);
        parts.push(ps.make("progress", { max: iterations, value: done, "aria-label": "Steps done" }));
      }
      const facts = factsOf(content).map((fact) => {
        return ps.make("div", {}, ps.make("dt", {}, fact[0]), ps.make("dd", {}, fact[1]));
      });
      parts.push(ps.make("dl", { class: "ps-facts" }, ...facts), ...endOf(content));
      rest.replaceChildren(...parts);
    }
    return { fill, tell };
  }

  Object.assign(ps, { runState, showHead });
})();
