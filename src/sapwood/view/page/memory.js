// Memory over time: what eager arrays, recordings and held outputs have, one on the other.

const moments = snapshot.memory_over_time ?? [];
const SHARES = [
  { key: "eager", use: "heap", name: "eager arrays" },
  { key: "recordings", use: "scratch", name: "recordings" },
  { key: "outputs", use: "live", name: "held outputs" },
];
const usage = { picture: document.getElementById("usage"), chosen: null };

function bytesOf(moment) {
  return SHARES.reduce((sum, { key }) => sum + moment[key], 0);
}

const most = moments.reduce((highest, moment) => Math.max(highest, bytesOf(moment)), 0);

function beginMemory() {
  const { limit_bytes: limit } = snapshot.device;
  if (!most) {
    document.querySelectorAll("#usage, #usage-keys").forEach((element) => element.remove());
    return fill("memory-lede", moments.length ? "No memory was in use." : "This snapshot does not tell of memory over time.");
  }
  fill("memory-lede", `At most ${size(most)} at once${limit === null ? "" : `, of ${size(limit)} allowed`}. `
    + "Looked at when a call was warmed up, recorded or missed.");
  fill("shares", SHARES.toReversed().map(({ use, name }) => make("span", { class: "use" }, swatch(use), name)));
  usage.picture.setAttribute("aria-label", `Memory over time: at most ${size(most)}, ${size(bytesOf(moments.at(-1)))} in the end`);
  usage.picture.addEventListener("pointermove", (event) => {
    const index = momentAt(position(event)[0]);
    atMoment(index);
    tip(event, momentLines(index));
  });
  usage.picture.addEventListener("pointerleave", (event) => { atMoment(null); tip(event, null); });
  usage.picture.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = usage.chosen === null ? (step > 0 ? 0 : moments.length - 1) : usage.chosen + step;
    atMoment(Math.min(Math.max(next, 0), moments.length - 1));
  });
  new ResizeObserver(paintMemory).observe(usage.picture);
}

function atMoment(index) {
  usage.chosen = index;
  fill("moment", index === null ? "" : momentLines(index).join(", "));
  paintMemory();
}

function frame() {
  const { clientWidth: width, clientHeight: height } = usage.picture;
  const plot = { left: EDGE.left + 12, right: width - EDGE.right, top: EDGE.top, bottom: height - EDGE.bottom };
  const first = moments[0].at_us;
  const wide = Math.max(moments.at(-1).at_us - first, 1) * 1.01;
  return {
    ...plot, wide,
    x: (us) => plot.left + ((us - first) / wide) * (plot.right - plot.left),
    y: (bytes) => plot.bottom - (bytes / (most * 1.05)) * (plot.bottom - plot.top),
  };
}

function momentAt(x) {
  const to = frame();
  return Math.max(0, moments.findLastIndex(({ at_us: us }) => to.x(us) <= x));
}

function momentLines(index) {
  const moment = moments[index];
  return [`${size(bytesOf(moment))} in use`, `${microseconds(moment.at_us - moments[0].at_us)} after the first`,
    ...SHARES.toReversed().map(({ key, name }) => `${name} ${moment[key] ? size(moment[key]) : "none"}`)];
}

function paintMemory() {
  const to = frame();
  const lower = moments.map(() => 0);
  const areas = SHARES.map(({ key, use }) => {
    const under = [...lower];
    moments.forEach((moment, index) => { lower[index] += moment[key]; });
    return draw("path", { fill: `var(--${use})`, d: `${steps(lower, to, false)}${steps(under, to, true)}z` });
  });
  const cursor = usage.chosen === null ? [] : [draw("path", { class: "now",
    d: `M${Math.round(to.x(moments[usage.chosen].at_us)) + 0.5} ${to.top}V${to.bottom}` })];
  usage.picture.replaceChildren(...heights(to), ...areas, ...instants(to), ...cursor);
}

// A line of steps, from left to right, or back: each value holds until the next moment.
function steps(values, to, back) {
  const corners = values.flatMap((value, index) => {
    const until = index + 1 < moments.length ? to.x(moments[index + 1].at_us) : to.right;
    return [[to.x(moments[index].at_us), to.y(value)], [until, to.y(value)]];
  });
  const line = (back ? corners.toReversed() : corners).map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`);
  return `${back ? "L" : "M"}${line.join("L")}`;
}

function heights(to) {
  const step = 2 ** Math.ceil(Math.log2(most / 4));
  const drawn = [];
  for (let bytes = step; bytes <= most * 1.05; bytes += step) {
    drawn.push(draw("path", { class: "line", d: `M${to.left} ${Math.round(to.y(bytes)) + 0.5}H${to.right}` }),
      draw("text", { x: to.left - 10, y: to.y(bytes) + 4, "text-anchor": "end" }, size(bytes)));
  }
  return drawn;
}

function instants(to) {
  const step = roundStep(to.wide, Math.max(2, (to.right - to.left) / 130));
  const drawn = [];
  for (let us = 0; us <= to.wide; us += step) {
    const x = Math.round(to.x(moments[0].at_us + us)) + 0.5;
    drawn.push(draw("path", { class: "line", d: `M${x} ${to.bottom}v5` }),
      draw("text", { x, y: to.bottom + 20, "text-anchor": "middle" }, us ? microseconds(us) : "0"));
  }
  return drawn;
}
