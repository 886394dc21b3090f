// The controls that steer a run: pause, stop and keep, sigma and step. What they ask for is told once the run has it.
"use strict";
(() => {
  const ps = window.plugstream;
  const { maySteer, sendCommand } = ps.stream;

  // Sigma and the step of now: what was last asked for, else what the settings say.
  function strengths({ settings, steering }) {
    const algorithm = settings.algorithm || {};
    const short = (value) => (Number.isFinite(Number(value)) ? Number(Number(value).toPrecision(4)) : value);
    const known = (value) => (value === undefined || value === null || value === "none" ? "" : String(short(value)));
    const last = (name) => known(steering.findLast((event) => known(event[name]))?.[name]);
    const lam = known(algorithm.lam);
    return {
      sigma: last("sigma") || known(algorithm.sigma) || (lam && `by lambda ${lam}`),
      step: last("step_size") || known(algorithm.step_size),
    };
  }

  // A command from what was typed, {command, text}, or {fault, field} where it is none.
  function readChange(sigma, step) {
    const [first, second] = [sigma, step].map((field) => field.value.trim().replace(",", "."));
    if (!first && !second) {
      const fault = "Write a sigma, a step, or both: a number, or for the step a multiple such as 0.5/L.";
      return { fault, field: sigma };
    }
    if (first && !(Number(first) >= 0 && Number.isFinite(Number(first)))) {
      return { fault: `Sigma must be a number that is not negative, not "${first}".`, field: sigma };
    }
    const command = { action: "change" };
    if (first) command.sigma = Number(first);
    if (second) command.step_size = second;
    return { command, text: [first && `sigma ${first}`, second && `step ${second}`].filter(Boolean).join(" and ") };
  }

  const ABOUT_TO = { pause: "pausing", resume: "going on", stop: "stopping" };

  // Put the controls into an element; tell is called at once when something is asked for. Returns what is called with the
  // run's content as that changes, and gives it back with what was asked for and is not answered yet.
  function showControls(element, tell) {
    if (!maySteer) {
      const text = "To steer the run, open the address that the server printed, which has a token in it.";
      element.replaceChildren(ps.make("p", { class: "ps-note" }, text));
      return (content) => {
        element.hidden = content.state !== "running" && content.state !== "paused";
        return content;
      };
    }
    const told = ps.make("p", { class: "ps-asked", role: "status" });
    const sigma = ps.make("input", { type: "text", inputmode: "decimal", autocomplete: "off" });
    const step = ps.make("input", { type: "text", autocomplete: "off" });
    let known = { events: 0, refusals: 0 }; // how many there are
    let asked = null; // how many there were when something was asked for, until the run has answered
    let doing = null; // what that makes the run be about to do
    let paused = false;

    async function send(command, text) {
      told.textContent = `asked to ${text} …`;
      asked = known; // before it is sent: the run may answer before the server does
      doing = ABOUT_TO[command.action] || null;
      if (doing) tell(doing);
      try {
        await sendCommand(command);
      } catch (error) {
        asked = doing = null;
        tell(null);
        told.textContent = `It was not asked to ${text}: ${error.message || "the server does not answer"}.`;
      }
    }

    const toggle = () => (paused ? send({ action: "resume" }, "go on") : send({ action: "pause" }, "pause"));
    const pause = ps.button("Pause", toggle, { class: "ps-main" });
    const stop = ps.button("Stop and keep", () => confirm(true));
    const end = () => {
      confirm(false);
      send({ action: "stop" }, "stop");
    };
    const yes = ps.button("End it", end, { class: "ps-danger" });
    const no = ps.button("Go on with it", () => confirm(false));
    const question = ["End the run here and keep its results?", yes, no];
    const really = ps.make("span", { class: "ps-really", role: "group", "aria-label": question[0] }, ...question);
    really.hidden = true;
    really.addEventListener("keydown", (event) => event.key === "Escape" && confirm(false));
    function confirm(open) {
      really.hidden = !open;
      stop.hidden = open;
      (open ? no : stop).focus();
    }

    const change = (event) => {
      event.preventDefault();
      const { command, text, fault, field } = readChange(sigma, step);
      if (fault) {
        told.textContent = fault;
        field.focus();
        return;
      }
      send(command, `change to ${text}`);
      sigma.value = step.value = "";
    };
    const form = ps.make(
      "form",
      { class: "ps-change", "aria-label": "Change sigma or the step", onsubmit: change },
      ps.labelled("sigma", sigma),
      ps.labelled("step", step),
      ps.make("button", { type: "submit" }, "Change"),
    );
    const row = ps.make("div", { class: "ps-steer" }, pause, stop, really, form);
    element.replaceChildren(ps.make("fieldset", {}, ps.make("legend", {}, "Steer the run"), row, told));

    return (content) => {
      paused = content.state === "paused";
      element.hidden = (!paused && content.state !== "running") || content.doing === "writing results";
      pause.textContent = paused ? "Go on" : "Pause";
      const now = strengths(content);
      sigma.placeholder = now.sigma;
      step.placeholder = now.step;
      const refusals = content.notes.filter(({ text }) => text.includes("cannot be done"));
      known = { events: content.steering.length, refusals: refusals.length };
      if (asked && known.events > asked.events) told.textContent = ps.describeSteering(content.steering.at(-1));
      else if (asked && known.refusals > asked.refusals) told.textContent = refusals.at(-1).text;
      else return doing && !content.doing && !element.hidden ? { ...content, doing } : content;
      asked = doing = null;
      return content;
    };
  }

  Object.assign(ps, { showControls });
})();
