// Ranges over pages: a strip for each function, in which a row is a recording, and a
// column a page that any recording uses.

const columns = [...new Set(snapshot.recordings.flatMap((r) => [...r.clobbers, ...r.output_pages]))]
  .sort((a, b) => a - b);
const columnOf = new Map(columns.map((number, column) => [number, column]));

function beginRanges() {
  if (!columns.length) return;
  const functions = Map.groupBy([...snapshot.recordings].sort((a, b) => a.id - b.id), (r) => r.function);
  const tall = Math.min(16, 480 / snapshot.recordings.length);
  fill("over", make("h3", {}, "By recording"),
    make("p", { class: "lede" }, "A row is a recording's range, a column a page. What lies in one column is shared."),
    [...functions.keys()].sort(BY_NAME).map((name) => rangesOf(name, functions.get(name), tall)));
}

function rangesOf(name, rows, tall) {
  const row = draw("rect", { stroke: "var(--focus)", width: columns.length, height: 1 });
  const column = draw("rect", { stroke: "var(--ink)", width: 1, height: rows.length });
  const svg = draw("svg", {
    class: "ranges", viewBox: `0 0 ${columns.length} ${rows.length}`, preserveAspectRatio: "none", role: "img",
    "aria-label": `Which pages recordings of ${name} use; the same is told in words beside a recording`,
    click: (event) => change(at(...position(event))),
  }, Object.entries(cells(rows)).map(([use, d]) => draw("path", { fill: `var(--${use})`, d })), row, column);
  svg.style.height = `${tall * rows.length}px`;
  svg.style.maxWidth = `${22 * columns.length}px`;
  const at = (x, y) => ({
    recording: rows[Math.min(rows.length - 1, Math.max(0, Math.floor(y / tall)))].id,
    page: columns[Math.floor((x / svg.clientWidth) * columns.length)] ?? state.page,
  });
  tells(svg, (x, y) => overLines(at(x, y)));
  const room = tall * rows.length > 12; // for its name
  const strip = make("div", { class: "over" }, make("span", { class: "text soft label" }, room ? name : ""), svg);
  watch(["recording", "page", "function"], () => {
    strip.classList.toggle("dim", state.function !== "" && state.function !== name);
    // What is not chosen is framed out of sight.
    const chosen = rows.findIndex(({ id }) => id === state.recording);
    row.setAttribute("y", chosen < 0 ? -2 : chosen);
    column.setAttribute("x", columnOf.get(state.page) ?? -2);
  });
  return strip;
}

// For each use, one path with a cell for each page of each row.
function cells(rows) {
  const paths = { scratch: "", output: "", live: "" };
  rows.forEach(({ clobbers, output_pages: outputs, live }, row) => {
    for (const number of new Set([...clobbers, ...outputs])) {
      const held = live && pages.get(number)?.use === "live" ? "live" : "output";
      paths[outputs.includes(number) ? held : "scratch"] += `M${columnOf.get(number)} ${row}h.93v.86h-.93z`;
    }
  });
  return paths;
}

function overLines({ recording, page }) {
  const { name, signature, clobbers, output_pages: outputs } = recordings.get(recording);
  const role = outputs.includes(page) ? "an output page of it" : clobbers.includes(page) ? "scratch to it" : "not in its range";
  return [name, signature, `page ${page}: ${role}`];
}
