// The timeline's picture.

const MARK = 0.7; // of the square of 12 that it is drawn in
const PATHS = Object.fromEntries(KINDS.map(({ key }) => [key, new Path2D(MARKS[key])]));

function paintTimeline(context, width, height) {
  const to = scales(width, height);
  context.clearRect(0, 0, width, height);
  context.font = "11.5px system-ui, sans-serif";
  context.lineWidth = 1;
  paintDecades(context, to);
  paintTicks(context, to);
  context.save();
  context.beginPath();
  context.rect(to.left - 6, to.top - 6, to.right - to.left + 12, to.bottom - to.top + 12);
  context.clip();
  paintCalls(context, to);
  context.restore();
  if (timeline.drag) paintStretch(context, to);
}

function paintDecades(context, to) {
  const [low, high] = timeline.decades;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (let power = Math.ceil(low); power <= high; power += 1) {
    const y = Math.round(to.y(10 ** power)) + 0.5;
    line(context, "rule", [to.left, y], [to.right, y]);
    context.fillStyle = colour("soft");
    context.fillText(microseconds(10 ** power), to.left - 10, y);
  }
}

// The round step nearest to `wide / number`: 1, 2 or 5 times a power of ten.
function roundStep(wide, number) {
  const rough = wide / number;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((step) => step * power >= rough);
}

function paintTicks(context, to) {
  const wide = timeline.to - timeline.from;
  let step = roundStep(wide, Math.max(2, (to.right - to.left) / 110));
  if (!timeline.byTime) step = Math.max(1, step);
  context.textBaseline = "top";
  context.textAlign = "center";
  for (let value = Math.max(0, Math.ceil(timeline.from / step) * step); value <= timeline.to; value += step) {
    const x = Math.round(to.x(value)) + 0.5;
    line(context, "rule", [x, to.bottom], [x, to.bottom + 5]);
    context.fillStyle = colour("soft");
    context.fillText(tickText(value, step), x, to.bottom + 10);
  }
}

// As many digits as tell one tick from the next.
function tickText(value, step) {
  if (!timeline.byTime) return count(value + 1);
  const [unit, name] = [[1e6, "s"], [1e3, "ms"], [1, "µs"]].find(([unit]) => timeline.to >= unit) ?? [1, "µs"];
  const digits = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
  return `${(value / unit).toFixed(Math.min(digits, 6))} ${name}`;
}

function paintCalls(context, to) {
  const least = timeline.from;
  const most = timeline.to;
  for (const { key } of KINDS) {
    context.fillStyle = colour(key);
    context.globalAlpha = key === "replay" && snapshot.calls.length > 400 ? 0.5 : 0.9;
    snapshot.calls.forEach((call, index) => {
      if (call.kind !== key || !isShown(call)) return;
      const value = at(index);
      if (value < least || value > most) return;
      context.save();
      context.translate(to.x(value) - 6 * MARK, to.y(call.host_us) - 6 * MARK);
      context.scale(MARK, MARK);
      context.fill(PATHS[key]);
      context.restore();
    });
  }
  context.globalAlpha = 1;
  if (state.recording !== null) paintRings(context, to, callsOf.get(state.recording) ?? [], 4, 1);
  if (state.call !== null) paintRings(context, to, [state.call], 8, 2);
}

function paintRings(context, to, indices, radius, line) {
  context.strokeStyle = colour(line > 1 ? "ink" : "accent");
  context.lineWidth = line;
  for (const index of indices) {
    context.beginPath();
    context.arc(to.x(at(index)), to.y(snapshot.calls[index].host_us), radius, 0, 7);
    context.stroke();
  }
}

function paintStretch(context, to) {
  const [x0, x1] = [...timeline.drag].sort((a, b) => a - b);
  context.globalAlpha = 0.14;
  context.fillStyle = colour("ink");
  context.fillRect(x0, to.top, x1 - x0, to.bottom - to.top);
  context.globalAlpha = 1;
}
