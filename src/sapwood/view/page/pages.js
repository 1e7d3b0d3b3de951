// The map of pages: one cell each, in the order of their numbers.

const map = { canvas: document.getElementById("map"), redraw: () => {}, cell: 10, across: 1 };

const ordered = [...snapshot.pages].sort((a, b) => a.number - b.number);
const held = Object.fromEntries(USES.map(({ key }) => [key, ordered.filter((p) => p.use === key).length]));

function beginPages() {
  const { page_bytes: bytes } = snapshot.device;
  fill("pages-lede", ordered.length
    ? `${counted(ordered.length, "page")} of ${size(bytes)}, by number. A page may be in many ranges at once.`
    : "No page is in use.");
  fill("uses", USES.filter(({ key }) => held[key]).map(({ key, name, says }) => make("span", { class: "use" },
    swatch(key), make("b", {}, name), ` ${count(held[key])} `, make("span", { class: "soft" }, says))));
  if (!ordered.length) map.canvas.remove();
  else {
    map.redraw = surface(map.canvas, mapHeight, paintMap);
    tells(map.canvas, (x, y) => pageLines(pageAt(x, y)));
    map.canvas.addEventListener("click", (event) => change({ page: pageAt(...position(event))?.number ?? null }));
    map.canvas.addEventListener("keydown", mapKey);
  }
  watch(["page", "recording"], map.redraw);
  watch(["page"], tellPage);
}

// Cells as large as the number of pages allows.
function mapHeight(width) {
  const fits = Math.sqrt((width * 260) / ordered.length);
  map.cell = Math.max(7, Math.min(22, Math.floor(fits)));
  map.across = Math.max(1, Math.floor(width / map.cell));
  return Math.ceil(ordered.length / map.across) * map.cell + 2;
}

function paintMap(context, width, height) {
  context.clearRect(0, 0, width, height);
  const chosen = recordings.get(state.recording);
  const own = new Set(chosen ? [...chosen.clobbers, ...chosen.output_pages] : []);
  const inside = map.cell - (map.cell > 9 ? 3 : 2);
  ordered.forEach((page, index) => {
    const x = (index % map.across) * map.cell + 1;
    const y = Math.floor(index / map.across) * map.cell + 1;
    paintMark(context, page.use, x, y, inside);
    if (own.has(page.number)) frame(context, "focus", x, y, inside);
    if (page.number === state.page) frame(context, "ink", x, y, inside);
  });
}

function frame(context, name, x, y, inside) {
  context.strokeStyle = colour(name);
  context.lineWidth = 2;
  context.strokeRect(x - 0.5, y - 0.5, inside + 1, inside + 1);
}

function pageAt(x, y) {
  const column = Math.floor((x - 1) / map.cell);
  if (column < 0 || column >= map.across) return null;
  return ordered[Math.floor((y - 1) / map.cell) * map.across + column] ?? null;
}

function pageLines(page) {
  if (!page) return null;
  const shared = page.recordings.length;
  return [`Page ${page.number}: ${page.use}`, ...page.holds.slice(0, 4),
    ...(page.holds.length > 4 ? [`and ${count(page.holds.length - 4)} more`] : []),
    ...(shared ? [`in ${counted(shared, "range")}`] : [])];
}

function tellPage() {
  const page = pages.get(state.page);
  if (!page) {
    fill("page", make("p", { class: "soft" }, "Choose a page to see what it holds and whose ranges it is in."));
    return;
  }
  const { says } = USES.find(({ key }) => key === page.use);
  fill("page",
    make("h3", {}, `Page ${page.number} `, swatch(page.use)),
    make("p", { class: "soft" }, `${page.use}: ${says}`),
    page.holds.length ? [make("h4", {}, "Holds"), few(page.holds, 12, (text) => make("p", { class: "text" }, text))] : null,
    page.recordings.length ? [make("h4", {}, `In ${counted(page.recordings.length, "range")}`),
      make("p", { class: "chips" }, few(page.recordings, 24, (id) => recordingLink(id)))] : null);
}

function mapKey(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: map.across, ArrowUp: -map.across }[event.key];
  if (!step) return;
  event.preventDefault();
  const here = ordered.findIndex(({ number }) => number === state.page);
  const next = ordered[here < 0 ? 0 : here + step];
  if (next) change({ page: next.number });
}
