// The timeline's picture: lines and ticks, marks of calls, rings around what is chosen.

const MARKERS = KINDS.map(({ key }) => draw("marker", {
  id: `call-${key}`, viewBox: "0 0 12 12", refX: 6, refY: 6, markerWidth: 8.4, markerHeight: 8.4,
  markerUnits: "userSpaceOnUse", "fill-opacity": key === "replay" && snapshot.calls.length > 400 ? 0.5 : 0.9,
}, mark(key)));

function paintTimeline() {
  const to = scales();
  const indices = inSight();
  const own = state.recording === null ? [] : indices.filter((index) => snapshot.calls[index].recording === state.recording);
  const ring = (r, name, width) => (index) => draw("circle",
    { cx: to.x(at(index)), cy: to.y(snapshot.calls[index].host_us), r, stroke: `var(--${name})`, "stroke-width": width });
  timeline.picture.replaceChildren(
    ...MARKERS, ...decadeLines(to), ...ticks(to),
    ...KINDS.map(({ key }) => marks(key, indices.filter((index) => snapshot.calls[index].kind === key), to)),
    ...own.map(ring(4, "accent", 1)), ...indices.filter((index) => index === state.call).map(ring(8, "ink", 2)),
    stretch(to));
}

function decadeLines(to) {
  const [low, high] = timeline.decades;
  const powers = Array.from({ length: Math.floor(high) - Math.ceil(low) + 1 }, (_, index) => 10 ** (Math.ceil(low) + index));
  return powers.flatMap((us) => [
    draw("path", { class: "line", d: `M${to.left} ${Math.round(to.y(us)) + 0.5}H${to.right}` }),
    draw("text", { x: to.left - 10, y: to.y(us) + 4, "text-anchor": "end" }, microseconds(us)),
  ]);
}

// The round step nearest to `wide / number`: 1, 2 or 5 times a power of ten.
function roundStep(wide, number) {
  const rough = wide / number;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((step) => step * power >= rough);
}

function ticks(to) {
  let step = roundStep(timeline.to - timeline.from, Math.max(2, (to.right - to.left) / 110));
  if (!timeline.byTime) step = Math.max(1, step);
  const drawn = [];
  for (let value = Math.max(0, Math.ceil(timeline.from / step) * step); value <= timeline.to; value += step) {
    const x = Math.round(to.x(value)) + 0.5;
    drawn.push(draw("path", { class: "line", d: `M${x} ${to.bottom}v5` }),
      draw("text", { x, y: to.bottom + 20, "text-anchor": "middle" }, tickText(value, step)));
  }
  return drawn;
}

// As many digits as tell one tick from the next.
function tickText(value, step) {
  if (!timeline.byTime) return count(value + 1);
  const [unit, name] = unitOf(timeline.to);
  const digits = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
  return `${(value / unit).toFixed(Math.min(digits, 6))} ${name}`;
}

// A line that is not seen, with a mark at each point between its ends.
function marks(key, indices, to) {
  const points = indices.flatMap((index) => [to.x(at(index)), to.y(snapshot.calls[index].host_us)]);
  return draw("polyline", { "marker-mid": `url(#call-${key})`, points: [0, 0, ...points, 0, 0].join(" ") });
}

function stretch(to) {
  const [x0, x1] = timeline.drag ?? [0, 0];
  return draw("path", { class: "stretch", d: `M${x0} ${to.top}H${x1}V${to.bottom}H${x0}z` });
}
