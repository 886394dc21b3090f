// Small things that all scripts of a page share: elements, files to download, texts to copy, times in words.
"use strict";
(() => {
  let count = 0;

  // An element with attributes and children; text never becomes HTML, since names in a run may come from anybody.
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value === true) element.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }

  const newId = (stem) => `ps-${stem}-${++count}`;

  // A control with its label.
  function labelled(text, control, attributes = {}) {
    control.id ||= newId("control");
    return make("span", { class: "ps-field", ...attributes }, make("label", { for: control.id }, text), control);
  }

  function choice(text, options, chosen, changed) {
    const control = make("select", { onchange: () => changed(control.value) });
    const field = labelled(text, control);
    field.fill = (entries, value) => {
      control.replaceChildren(...entries.map(([key, label]) => make("option", { value: key }, label)));
      control.value = value;
    };
    field.fill(options, chosen);
    field.control = control;
    return field;
  }

  function button(text, pressed, attributes = {}) {
    return make("button", { type: "button", onclick: pressed, ...attributes }, text);
  }

  function saveFile(name, content, type) {
    const blob = content instanceof Blob ? content : new Blob([content], { type });
    const link = make("a", { href: URL.createObjectURL(blob), download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  // A button that copies a text, and says that it did; also where a page that is no secure one may not use the clipboard.
  function copyButton(label, text) {
    const told = make("span", { class: "ps-told", role: "status" });
    const copy = async () => {
      let done = true;
      try {
        await navigator.clipboard.writeText(text());
      } catch {
        const area = make("textarea", { class: "ps-offscreen" });
        area.value = text();
        document.body.append(area);
        area.select();
        done = document.execCommand("copy");
        area.remove();
      }
      told.textContent = done ? "copied" : "select the text and copy it";
      setTimeout(() => (told.textContent = ""), 2500);
    };
    return make("span", {}, button(label, copy), told);
  }

  // 3725 -> "1 h 2 min".
  function duration(seconds) {
    if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
    if (seconds < 1) return `${Math.max(0, seconds).toFixed(2)} s`;
    if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
    const whole = Math.round(seconds);
    const [days, hours] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24];
    const minutes = Math.floor(whole / 60) % 60;
    if (days) return `${days} d ${hours} h`;
    if (hours) return `${hours} h ${minutes} min`;
    return `${minutes} min ${whole % 60} s`;
  }

  // Seconds since the epoch as local time, the same in every language: 2026-11-15 23:59:16.
  function clock(seconds, withDay = true) {
    const date = new Date(1000 * seconds);
    const two = (n) => String(n).padStart(2, "0");
    const time = [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":");
    return withDay ? `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}` : time;
  }

  // A name for a file, of what may hold any character.
  const fileName = (text) => text.replace(/[^\w.-]+/g, "-").replace(/^[-.]+|-+$/g, "") || "run";

  window.plugstream = Object.assign(window.plugstream || {}, {
    button,
    choice,
    clock,
    copyButton,
    duration,
    fileName,
    labelled,
    make,
    newId,
    saveFile,
  });
})();
