// What the pointer, the wheel and the keys do to a view of an image.
"use strict";
(() => {
  const ps = window.plugstream;

  // Arguments: canvas; view, with what each gesture means there (see view.js).
  function followPointer(canvas, view) {
    const pointers = new Map();
    let drag = null; // what the pointer that is down does: "slide", "cursor" or "pan"
    let apart = 0;

    canvas.addEventListener("pointerdown", (event) => {
      if (event.button > 1) return;
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, event);
      const at = view.place(event);
      if (pointers.size === 2) {
        drag = "pinch";
        apart = distance();
      } else if (view.slides(at)) drag = "slide";
      else if (view.volume() && !event.shiftKey && event.button === 0) {
        drag = "cursor";
        view.moveCursor(at);
      } else drag = "pan";
      if (event.button === 1) event.preventDefault();
    });
    canvas.addEventListener("pointermove", (event) => {
      const at = view.place(event);
      const before = pointers.get(event.pointerId);
      if (!before) {
        canvas.style.cursor = view.slides(at) ? "ew-resize" : view.volume() ? "crosshair" : "default";
        view.point(event);
        return;
      }
      const earlier = view.place(before);
      pointers.set(event.pointerId, event);
      if (drag === "slide") view.slide(at);
      else if (drag === "cursor") view.moveCursor(at);
      else if (drag === "pinch" && pointers.size === 2) {
        const now = distance();
        if (apart > 0 && now > 0) view.zoomBy(now / apart, between());
        apart = now;
      } else if (drag === "pan") view.panBy((view.upwards() ? 1 : -1) * (at.v - earlier.v), earlier.u - at.u);
      if (drag !== "pan") view.point(event);
    });
    for (const kind of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(kind, (event) => {
        pointers.delete(event.pointerId);
        if (!pointers.size) drag = null;
      });
    }
    canvas.addEventListener("pointerleave", () => pointers.size || view.leave());
    canvas.addEventListener("dblclick", () => view.reset());
    // A page must scroll where there are images: the wheel zooms once the image was clicked, or with Ctrl.
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && document.activeElement !== canvas) return;
        event.preventDefault();
        view.zoomBy(Math.exp(-Math.max(-60, Math.min(60, event.deltaY)) / 200), view.place(event));
      },
      { passive: false },
    );
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const arrows = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      if (event.key in arrows) {
        const [down, right] = arrows[event.key];
        if (view.volume() && !event.shiftKey) view.step(down, right);
        else if (event.shiftKey || !view.slides || !right || !view.slideBy(right * 0.02)) {
          view.panBy((view.upwards() ? -1 : 1) * down * 0.1, right * 0.1);
        }
      } else if (event.key === "+" || event.key === "=") view.zoomBy(1.25, view.middle());
      else if (event.key === "-") view.zoomBy(0.8, view.middle());
      else if (event.key === "0") view.reset();
      else return;
      event.preventDefault();
    });

    const two = () => [...pointers.values()];
    const distance = () => {
      const [a, b] = two();
      return Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
    };
    const between = () => {
      const [a, b] = two();
      return view.place({ clientX: (a.clientX + b.clientX) / 2, clientY: (a.clientY + b.clientY) / 2 });
    };
  }

  Object.assign(ps, { followPointer });
})();
