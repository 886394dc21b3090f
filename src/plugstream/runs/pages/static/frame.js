// What is drawn around and over an image: axes in physical units, a colour bar, the line of a compare slider.
"use strict";
(() => {
  const ps = window.plugstream;

  function writeUpwards(context, text, x, y) {
    context.save();
    context.translate(x, y);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(text, 0, 0);
    context.restore();
  }

  function shorten(context, text, room) {
    let cut = text;
    while (cut.length > 3 && context.measureText(cut).width > room) cut = `${cut.slice(0, -2)}…`;
    return cut;
  }

  // The axes of a plot.
  //
  // Arguments: box, where the plot is; row and column, its axes; zone, the parts of them that are shown; upwards,
  // whether rows go up; photograph, whether its axes are called row and column; left, the room for numbers there.
  function drawAxes(context, box, colours, { row, column, zone, upwards, photograph, left }) {
    const unit = ps.lengthUnit([row, column]);
    const title = (axis, plain) => (photograph ? plain : unit.name ? `${axis.name} (${unit.name})` : axis.name);
    const ends = (axis, part) => {
      const [from, to] = ps.edges(axis);
      return part.map((share) => (from + share * (to - from)) * unit.factor);
    };
    context.strokeStyle = colours.line;
    context.lineWidth = 1;
    context.strokeRect(box.x - 0.5, box.y - 0.5, box.width + 1, box.height + 1);
    context.fillStyle = colours.faint;
    context.font = colours.small;
    const across = ends(column, zone.column);
    const xs = ps.niceTicks(...across, Math.min(6, box.width / 48));
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const tick of xs) {
      const x = box.x + ((tick - across[0]) / (across[1] - across[0])) * box.width;
      context.fillRect(x - 0.5, box.y + box.height + 1, 1, 4);
      context.fillText(ps.formatNumber(tick, xs[1] - xs[0]), x, box.y + box.height + 7);
    }
    context.fillText(title(column, "column"), box.x + box.width / 2, box.y + box.height + 23);
    const down = ends(row, zone.row);
    const ys = ps.niceTicks(...down, Math.min(6, box.height / 45));
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const tick of ys) {
      const share = (tick - down[0]) / (down[1] - down[0]);
      const y = box.y + (upwards ? 1 - share : share) * box.height;
      context.fillRect(box.x - 5, y - 0.5, 4, 1);
      context.fillText(ps.formatNumber(tick, ys[1] - ys[0]), box.x - 8, y);
    }
    writeUpwards(context, title(row, "row"), box.x - left + 8, box.y + box.height / 2);
  }

  // The colour bar of a plot. Arguments: map and range, of its colours; cyclic, from -π to π; label; right, its room.
  function drawBar(context, box, colours, { map, range, cyclic, label, right }) {
    const table = new Uint8Array(ps.colourTable(map).buffer);
    const x = box.x + box.width + 12;
    for (let n = 0; n < box.height; n++) {
      const i = Math.min(255, Math.floor((1 - n / box.height) * 256));
      context.fillStyle = `rgb(${table[4 * i]} ${table[4 * i + 1]} ${table[4 * i + 2]})`;
      context.fillRect(x, box.y + n, 12, Math.min(1.5, box.height - n));
    }
    context.strokeStyle = colours.line;
    context.strokeRect(x - 0.5, box.y - 0.5, 13, box.height + 1);
    context.fillStyle = colours.faint;
    context.font = colours.small;
    context.textAlign = "left";
    context.textBaseline = "middle";
    const ticks = cyclic ? [-Math.PI, 0, Math.PI] : ps.niceTicks(...range, Math.min(5, box.height / 40));
    ticks.forEach((tick, n) => {
      const y = box.y + (1 - (tick - range[0]) / (range[1] - range[0])) * box.height;
      context.fillRect(x + 13, y - 0.5, 3, 1);
      context.fillText(cyclic ? ["−π", "0", "π"][n] : ps.formatNumber(tick, ticks[1] - ticks[0]), x + 18, y);
    });
    writeUpwards(context, shorten(context, label, box.height), x + right - 20, box.y + box.height / 2);
  }

  // The line between two images and its handle, with the name of each. Arguments: split, the left one's part; names.
  function drawSlider(context, box, colours, split, names) {
    const x = box.x + split * box.width;
    const y = box.y + box.height / 2;
    context.fillStyle = "#fff";
    context.fillRect(x - 1, box.y, 2, box.height);
    context.beginPath();
    context.arc(x, y, 11, 0, 2 * Math.PI);
    context.shadowColor = "rgb(0 0 0 / 0.5)";
    context.shadowBlur = 4;
    context.fill();
    context.shadowBlur = 0;
    context.fillStyle = "#333";
    for (const side of [-1, 1]) {
      context.beginPath();
      context.moveTo(x + 7 * side, y);
      context.lineTo(x + 2.5 * side, y - 4);
      context.lineTo(x + 2.5 * side, y + 4);
      context.fill();
    }
    context.font = colours.small;
    context.textBaseline = "middle";
    names.forEach((text, n) => {
      const width = context.measureText(text).width + 12;
      const left = n === 0 ? box.x + 6 : box.x + box.width - 6 - width;
      context.fillStyle = "rgb(0 0 0 / 0.6)";
      context.fillRect(left, box.y + 6, width, 18);
      context.fillStyle = "#fff";
      context.textAlign = "left";
      context.fillText(text, left + 6, box.y + 15);
    });
  }

  // One canvas of several, so many in a row, on a ground of this colour.
  function joinCanvases(canvases, columns, ground) {
    const width = Math.max(...canvases.map((canvas) => canvas.width));
    const rows = [];
    for (let n = 0; n < canvases.length; n += columns) rows.push(canvases.slice(n, n + columns));
    const heights = rows.map((row) => Math.max(...row.map((canvas) => canvas.height)));
    const sheet = ps.make("canvas");
    [sheet.width, sheet.height] = [width * columns, heights.reduce((a, b) => a + b, 0)];
    const context = sheet.getContext("2d");
    context.fillStyle = ground;
    context.fillRect(0, 0, sheet.width, sheet.height);
    let y = 0;
    rows.forEach((row, n) => {
      row.forEach((canvas, k) => context.drawImage(canvas, k * width, y));
      y += heights[n];
    });
    return sheet;
  }

  Object.assign(ps, { joinCanvases, drawAxes, drawBar, drawSlider, shorten });
})();
