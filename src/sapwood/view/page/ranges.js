// Ranges over pages: a row for each recording, a column for each page that any uses.

const LEFT = 92;

const over = {
  rows: [...snapshot.recordings].sort((a, b) => BY_NAME(a.function, b.function) || a.id - b.id),
  columns: new Map(), // page number -> column
  redraw: () => {},
  pitch: 1,
  wide: 1,
};

function beginRanges() {
  const used = new Set();
  for (const { clobbers, output_pages: outputs } of over.rows) {
    for (const number of [...clobbers, ...outputs]) used.add(number);
  }
  [...used].sort((a, b) => a - b).forEach((number, column) => over.columns.set(number, column));
  if (!over.rows.length || !used.size) return;
  const canvas = make("canvas", {
    class: "chart", role: "img",
    "aria-label": "Which pages each recording uses; the same is told in words beside a recording",
  });
  fill("over", make("h3", {}, "By recording"),
    make("p", { class: "lede" }, "A row is a recording's range, a column a page. What lies in one column is shared."),
    make("div", {}, canvas));
  over.redraw = surface(canvas, overHeight, paintOver);
  tells(canvas, overLines);
  canvas.addEventListener("click", (event) => {
    const { recording, page } = overAt(...position(event));
    change({ ...(recording ? { recording: recording.id } : {}), ...(page === null ? {} : { page }) });
  });
  watch(["recording", "page", "function"], over.redraw);
}

function overHeight(width) {
  over.pitch = Math.min(16, 480 / over.rows.length);
  over.wide = Math.min(22, (width - LEFT) / over.columns.size);
  return Math.ceil(over.pitch * over.rows.length) + 4;
}

function paintOver(context, width, height) {
  context.clearRect(0, 0, width, height);
  const tall = Math.max(2, over.pitch - (over.pitch > 4 ? 2 : 0));
  const broad = Math.max(2, over.wide - (over.wide > 4 ? 1 : 0));
  over.rows.forEach((recording, row) => {
    const y = 2 + row * over.pitch;
    const dim = state.function && recording.function !== state.function;
    context.globalAlpha = dim ? 0.2 : 1;
    const outputs = new Set(recording.output_pages);
    for (const number of recording.clobbers) {
      if (!outputs.has(number)) paintUse(context, number, "scratch", y, broad, tall);
    }
    for (const number of outputs) {
      paintUse(context, number, recording.live && pages.get(number)?.use === "live" ? "live" : "output", y, broad, tall);
    }
  });
  context.globalAlpha = 1;
  paintFunctions(context, width);
  paintChosen(context, width, height);
}

function paintUse(context, number, use, y, broad, tall) {
  context.fillStyle = colour(use);
  context.fillRect(LEFT + over.columns.get(number) * over.wide, y, broad, tall);
}

// The names of functions beside the first of their rows, where there is room.
function paintFunctions(context, width) {
  context.font = "11.5px system-ui, sans-serif";
  context.textBaseline = "top";
  context.textAlign = "right";
  let free = 0;
  over.rows.forEach((recording, row) => {
    if (row && over.rows[row - 1].function === recording.function) return;
    const y = 2 + row * over.pitch;
    context.lineWidth = 1;
    const right = Math.min(width, LEFT + over.columns.size * over.wide);
    line(context, "rule", [LEFT - 6, Math.round(y) - 0.5], [right, Math.round(y) - 0.5]);
    if (y < free) return;
    context.fillStyle = colour("soft");
    context.fillText(recording.function, LEFT - 10, y + 1, LEFT - 14);
    free = y + 13;
  });
}

function paintChosen(context, width, height) {
  context.strokeStyle = colour("focus");
  context.lineWidth = 1.5;
  const row = over.rows.findIndex(({ id }) => id === state.recording);
  const right = Math.min(width, LEFT + over.columns.size * over.wide);
  if (row >= 0) {
    context.strokeRect(LEFT - 2.5, row * over.pitch + 0.5, right - LEFT + 3, Math.max(4, over.pitch + 1));
  }
  const column = over.columns.get(state.page);
  if (column !== undefined) {
    context.strokeStyle = colour("ink");
    context.strokeRect(LEFT + column * over.wide - 0.5, 0.75, Math.max(2, over.wide), height - 1.5);
  }
}

function overAt(x, y) {
  const recording = over.rows[Math.floor((y - 2) / over.pitch)] ?? null;
  const column = Math.floor((x - LEFT) / over.wide);
  const page = [...over.columns].find(([, place]) => place === column)?.[0] ?? null;
  return { recording, page };
}

function overLines(x, y) {
  const { recording, page } = overAt(x, y);
  if (!recording) return null;
  const lines = [recording.name, recording.signature];
  if (page === null) return lines;
  const role = recording.output_pages.includes(page) ? "an output page of it"
    : recording.clobbers.includes(page) ? "scratch to it" : "not in its range";
  return [...lines, `page ${page}: ${role}`];
}
