// The map of pages: one cell each, in the order of their numbers.

const map = document.getElementById("map");
const ordered = [...snapshot.pages].sort((a, b) => a.number - b.number);
const held = Object.fromEntries(USES.map(({ key }) => [key, ordered.filter((p) => p.use === key).length]));

// Cells are as large as their number allows, where there is room for the map.
const LARGEST = 22;
const across = Math.floor(900 / Math.max(7, Math.min(LARGEST, Math.sqrt((900 * 260) / ordered.length))));

function beginPages() {
  const { page_bytes: bytes } = snapshot.device;
  fill("pages-lede", ordered.length
    ? `${counted(ordered.length, "page")} of ${size(bytes)}, by number. A page may be in many ranges at once.`
    : "No page is in use.");
  fill("uses", USES.filter(({ key }) => held[key]).map(({ key, name, says }) => make("span", { class: "use" },
    swatch(key), make("b", {}, name), ` ${count(held[key])} `, make("span", { class: "soft" }, says))));
  if (ordered.length) drawMap();
  else map.remove();
  watch(["page"], tellPage);
}

function drawMap() {
  map.setAttribute("viewBox", `0 0 ${across} ${Math.ceil(ordered.length / across)}`);
  map.style.maxWidth = `${across * LARGEST}px`;
  const [own, one] = ["focus", "ink"].map((name) => draw("path", { class: "frame", stroke: `var(--${name})` }));
  map.append(
    ...USES.map(({ key }) => draw("pattern", {
      id: `use-${key}`, viewBox: "0 0 14.3 14.3", width: 1, height: 1, patternUnits: "userSpaceOnUse",
    }, mark(key))),
    ...USES.map(({ key }) => draw("path", { fill: `url(#use-${key})`, d: squares((page) => page.use === key) })),
    own, one);
  map.addEventListener("pointermove", (event) => tip(event, pageLines(pageAt(...position(event)))));
  map.addEventListener("pointerleave", (event) => tip(event, null));
  map.addEventListener("click", (event) => change({ page: pageAt(...position(event))?.number ?? null }));
  map.addEventListener("keydown", mapKey);
  watch(["page", "recording"], () => {
    const { clobbers = [], output_pages: outputs = [] } = recordings.get(state.recording) ?? {};
    const numbers = new Set([...clobbers, ...outputs]);
    own.setAttribute("d", squares(({ number }) => numbers.has(number)));
    one.setAttribute("d", squares(({ number }) => number === state.page));
  });
}

// A path around the cells of those pages that fit.
function squares(fits) {
  return ordered.map((page, index) =>
    (fits(page) ? `M${index % across} ${Math.floor(index / across)}h.84v.84h-.84z` : "")).join("");
}

function pageAt(x, y) {
  const wide = map.clientWidth / across;
  return ordered[Math.floor(y / wide) * across + Math.floor(x / wide)];
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
  if (!page) return fill("page", make("p", { class: "soft" }, "Choose a page to see what it holds and whose ranges it is in."));
  const { says } = USES.find(({ key }) => key === page.use);
  fill("page",
    make("h3", {}, `Page ${page.number} `, swatch(page.use)),
    make("p", { class: "soft" }, `${page.use}: ${says}`),
    page.holds.length ? [make("h4", {}, "Holds"), few(page.holds, 12, (text) => make("p", { class: "text" }, text))] : null,
    page.recordings.length ? [make("h4", {}, `In ${counted(page.recordings.length, "range")}`),
      make("p", { class: "chips" }, few(page.recordings, 24, (id) => recordingLink(id)))] : null);
}

function mapKey(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across }[event.key];
  if (!step) return;
  event.preventDefault();
  const here = ordered.findIndex(({ number }) => number === state.page);
  const next = ordered[here < 0 ? 0 : here + step];
  if (next) change({ page: next.number });
}
