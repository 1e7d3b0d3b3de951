// The list of recordings: only the rows in sight are in the page.

const ROW = 30;
const STEP = 13;

const list = {
  root: document.getElementById("list"), rows: [], body: null, sizer: null,
  painted: new Map(), // index of a row: its element
};

function beginList() {
  const heads = COLUMNS.map((column) => {
    const button = make("button", { type: "button", click: () => { sortBy(column.key); relist(); } },
      column.title, make("span", { class: "arrow", "aria-hidden": "true" }));
    return make("div", { role: "columnheader", class: `cell col-${column.key}` }, button);
  });
  list.sizer = make("div", { class: "sizer", role: "presentation" });
  list.body = make("div", { class: "rows", role: "rowgroup" }, list.sizer);
  list.root.replaceChildren(
    make("div", { role: "rowgroup" }, make("div", { role: "row", class: "row heads", "aria-rowindex": 1 }, heads)),
    list.body);
  list.body.addEventListener("scroll", () => requestAnimationFrame(paintRows), { passive: true });
  list.root.addEventListener("keydown", listKey);
  new ResizeObserver(paintRows).observe(list.body);
  const filter = document.getElementById("filter");
  filter.addEventListener("input", () => { view.words = filter.value; relist(); });
  document.getElementById("as-tree").addEventListener("click", () => { view.sort = null; relist(); });
  watch(["function"], relist);
  watch(["recording"], () => { reveal(); paintRows(); });
  const functions = snapshot.functions.filter((f) => f.recordings + f.restored > f.evicted).length;
  fill("recordings-lede", snapshot.recordings.length
    ? `${counted(snapshot.recordings.length, "recording")} of ${counted(functions, "function")}. `
      + "Below each stand those that were made after it."
    : "Nothing is recorded now.");
}

function relist() {
  list.rows = rows();
  list.sizer.style.height = `${list.rows.length * ROW}px`;
  list.root.setAttribute("aria-rowcount", String(list.rows.length + 1));
  document.getElementById("as-tree").setAttribute("aria-pressed", String(view.sort === null));
  for (const { key } of COLUMNS) {
    const sorted = view.sort === key ? (view.down ? "descending" : "ascending") : "none";
    list.root.querySelector(`.heads .col-${key}`).setAttribute("aria-sort", sorted);
  }
  const all = snapshot.recordings.length;
  const shown = view.words || state.function ? list.rows.length : all;
  fill("found", shown === all ? "" : `${count(shown)} of ${count(all)}`);
  list.sizer.replaceChildren();
  list.painted.clear();
  if (!list.rows.length) {
    list.sizer.append(make("p", { class: "none" }, all
      ? "No recording matches. Clear the filter to see all." : "No recordings."));
  }
  paintRows();
}

// Rows that stay in sight keep their elements: a click that has begun on one is not lost.
function paintRows() {
  const { body, sizer, painted } = list;
  const first = Math.max(0, Math.floor(body.scrollTop / ROW) - 6);
  const last = Math.min(list.rows.length, Math.ceil((body.scrollTop + body.clientHeight) / ROW) + 6);
  for (const [index, element] of painted) {
    if (index >= first && index < last) continue;
    element.remove();
    painted.delete(index);
  }
  for (let index = last - 1, below = null; index >= first; index -= 1) {
    if (!painted.has(index)) {
      painted.set(index, rowElement(list.rows[index], index));
      sizer.insertBefore(painted.get(index), below);
    }
    below = painted.get(index);
    below.setAttribute("aria-selected", String(list.rows[index].recording.id === state.recording));
  }
  const chosen = document.getElementById(`row-${state.recording}`);
  if (chosen) list.root.setAttribute("aria-activedescendant", chosen.id);
  else list.root.removeAttribute("aria-activedescendant");
}

function rowElement(row, index) {
  const { recording, kids, depth } = row;
  const element = make("div", {
    role: "row", id: `row-${recording.id}`, class: "row", "aria-rowindex": index + 2,
    "aria-level": depth + 1, "aria-expanded": kids ? String(!view.closed.has(recording.id)) : null,
    click: () => choose(recording.id),
  }, COLUMNS.map(({ key, of, show = numberCell }) =>
    make("div", { role: "gridcell", class: `cell col-${key}` }, show(of(recording), row))));
  element.style.top = `${index * ROW}px`;
  return element;
}

function nameCell(name, row) {
  const { recording, kids } = row;
  const text = make("span", { class: "text name", title: name }, name);
  if (view.sort !== null || view.words || state.function) return text;
  const graph = branches(row);
  if (kids) {
    graph.classList.add("folds");
    graph.addEventListener("click", (event) => { event.stopPropagation(); toggle(recording.id); });
  }
  return [graph, text];
}

// The tree's lines beside a name: what passes by, how the row hangs, its knot.
function branches({ recording, depth, joins, passing, guides, kids }) {
  const x = (level) => 8 + level * STEP;
  const middle = ROW / 2;
  const here = x(depth);
  const closed = view.closed.has(recording.id);
  const own = passing ? guides.slice(0, -1) : guides;
  const lines = own.map((level) => `M${x(level) - STEP} 0V${ROW}`);
  if (joins === "chain") lines.push(`M${here} 0V${middle}`);
  if (joins === "branch") lines.push(`M${here - STEP} 0V${passing ? ROW : middle}M${here - STEP} ${middle}H${here}`);
  if (kids && !closed) lines.push(`M${here} ${middle}V${ROW}`);
  const knot = draw("circle", { class: `knot${closed ? " closed" : ""}`, cx: here, cy: middle, r: kids > 1 || closed ? 4 : 2.5 });
  return draw("svg", { class: "branches", width: here + 12, height: ROW, "aria-hidden": "true" },
    draw("path", { d: lines.join("") }), knot);
}

function numberCell(value) {
  return value ? count(value) : make("span", { class: "soft" }, "0");
}

function toggle(id) {
  if (!view.closed.delete(id)) view.closed.add(id);
  relist();
}

function reveal() {
  const index = list.rows.findIndex(({ recording }) => recording.id === state.recording);
  if (index < 0) return;
  const { body } = list;
  const top = index * ROW;
  if (top < body.scrollTop) body.scrollTop = top;
  else if (top + ROW > body.scrollTop + body.clientHeight) body.scrollTop = top + ROW - body.clientHeight;
}

function listKey(event) {
  if (event.target.tagName === "BUTTON" || !list.rows.length) return;
  const here = list.rows.findIndex(({ recording }) => recording.id === state.recording);
  const page = Math.max(1, Math.floor(list.body.clientHeight / ROW) - 1);
  const last = list.rows.length - 1;
  const to = {
    ArrowDown: here + 1, ArrowUp: here < 0 ? last : here - 1, PageDown: here + page,
    PageUp: here - page, Home: 0, End: last,
  }[event.key];
  if (to !== undefined) choose(list.rows[Math.min(last, Math.max(0, to))].recording.id);
  else if (here >= 0 && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
    const { recording, kids } = list.rows[here];
    const closed = view.closed.has(recording.id);
    if (kids && closed === (event.key === "ArrowRight")) toggle(recording.id);
    else if (event.key === "ArrowLeft" && recordings.has(recording.parent)) choose(recording.parent);
  } else return;
  event.preventDefault();
}
