// The figures that matter, before anything else.

function summarise() {
  document.title = `Sapwood report, ${moment(snapshot.made)}`;
  fill("headline", allCalls
    ? [make("em", {}, percent(totals.replay, allCalls)),
      ` of ${counted(allCalls, "call")} ${totals.replay === 1 ? "was a replay" : "were replays"}`]
    : "No calls yet");
  const { device } = snapshot;
  const named = device.name === device.kind ? device.kind : `${device.name} (${device.kind})`;
  const limit = device.limit_bytes === null ? "" : `, limited to ${size(device.limit_bytes)}`;
  fill("about",
    `${named}, ${size(device.total_bytes)} in pages of ${size(device.page_bytes)}${limit}. `
    + `Taken ${moment(snapshot.made)}, sapwood ${snapshot.sapwood}.`);
  fill("kinds", bar(totals, allCalls, "tall"), key());
  fill("figures", replayFigure(), sharingFigure(), liveFigure());
}

// A bar of calls by kind; slivers stay visible.
function bar(parts, whole, className = "") {
  const present = KINDS.filter(({ key }) => parts[key]);
  const told = present.map(({ key, many }) => `${count(parts[key])} ${many}`).join(", ");
  const widths = present.map(({ key }) => Math.max(4, (1000 * parts[key]) / whole));
  const scale = 1000 / widths.reduce((sum, width) => sum + width, 0);
  return strip(className, told || "no calls",
    present.map(({ key }, index) => [key, widths[index] * scale, 1.5]));
}

// A strip, 1000 wide, of parts one after another: the colour of each, its width, and how
// much of that is a gap.
function strip(className, label, parts) {
  let x = 0;
  return draw("svg", {
    class: `strip ${className}`, viewBox: "0 0 1000 10", preserveAspectRatio: "none",
    ...(label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" }),
  }, parts.map(([name, width, gap = 0]) => {
    x += width;
    return draw("rect", { fill: `var(--${name})`, x: x - width, y: 0, width: Math.max(1, width - gap), height: 10 });
  }));
}

function key() {
  return make("ul", { class: "key" }, KINDS.filter(({ key }) => totals[key]).map(
    ({ key, many }) => make("li", {},
      swatch(key), make("b", {}, count(totals[key])), ` ${many} `,
      make("span", { class: "soft" }, percent(totals[key], allCalls))),
  ));
}

// The mark of a kind of call or use of a page, in a square of 12, filled by the even-odd
// rule in the colour of that name: a shape of its own, not a colour alone.
const MARKS = {
  replay: "M10.5 6A4.5 4.5 0 1 1 1.5 6 4.5 4.5 0 0 1 10.5 6z",
  record: "M1.8 1.8H10.2V10.2H1.8z",
  restore: "M6 .6 11.4 6 6 11.4.6 6z",
  "warm-up": "M6 1.2 11.3 10.6H.7z",
  "pass-through": "M1.2 2.8 2.8 1.2 6 4.4 9.2 1.2 10.8 2.8 7.6 6 10.8 9.2 9.2 10.8 6 7.6 2.8 10.8 1.2 9.2 4.4 6z",
  live: "M0 0H12V12H0zM4.5 4.5H7.5V7.5H4.5z",
  output: "M0 0H12V12H0z",
  scratch: "M0 0H12V12H0z",
  heap: "M0 0H11.2L0 11.2zM12 .8V12H.8z",
  free: "M0 0H12V12H0zM1.2 1.2H10.8V10.8H1.2z",
};

function mark(name) {
  return draw("path", { fill: `var(--${name})`, "fill-rule": "evenodd", d: MARKS[name] });
}

function swatch(name) {
  return draw("svg", { class: "swatch", viewBox: "0 0 12 12", "aria-hidden": "true" }, mark(name));
}

function figure(name, value, note) {
  return make("div", {}, make("dt", {}, name), make("dd", { class: "value" }, value),
    make("dd", { class: "note" }, note));
}

function replayFigure() {
  const { replay, "warm-up": warm } = typical;
  if (replay === null) return figure("Host time of a replay", "–", "none among the calls kept");
  const gain = warm === null ? "median of the calls kept"
    : `median; a warm‑up takes ${short(warm / replay)} times as long`;
  return figure("Host time of a replay", microseconds(replay), gain);
}

function sharingFigure() {
  const { "ranges.pages": ranges = 0, "pages.mapped": mapped = 0 } = snapshot.memory;
  const bytes = size(mapped * snapshot.device.page_bytes);
  if (!mapped) return figure("Memory of recordings", "0", "no recording holds pages");
  return figure("Memory of recordings", bytes,
    `${counted(mapped, "page")}, shared; ${count(ranges)} without sharing`);
}

function liveFigure() {
  const live = snapshot.pages.filter((p) => p.use === "live").length;
  const holders = snapshot.recordings.filter((r) => r.live).length;
  return figure("Outputs held", counted(live, "page"),
    live ? `of ${counted(holders, "recording")}` : "every output has been let go");
}
