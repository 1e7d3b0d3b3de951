// The timeline: calls by when they came and the host time that each took.

const timeline = {
  picture: document.getElementById("timeline"),
  byTime: true,
  from: 0, // the window, in the unit of the horizontal axis
  to: 1,
  drag: null, // [x0, x1] while a stretch is being marked
};

const start = snapshot.calls[0]?.at_us;
const EDGE = { left: 58, right: 14, top: 12, bottom: 28 };

function at(index) {
  return timeline.byTime ? snapshot.calls[index].at_us - start : index;
}

function extent() {
  const end = snapshot.calls.reduce((most, _, index) => Math.max(most, at(index)), 1);
  return [-0.01 * end, 1.01 * end];
}

function isShown(call) {
  return !state.hidden.has(call.kind) && (!state.function || call.function === state.function);
}

// The calls that are shown and lie in the window.
function inSight() {
  return [...snapshot.calls.keys()].filter((index) =>
    isShown(snapshot.calls[index]) && at(index) >= timeline.from && at(index) <= timeline.to);
}

// Where the plot lies, and how values become pixels in it.
function scales() {
  const { clientWidth: width, clientHeight: height } = timeline.picture;
  const plot = { left: EDGE.left, right: width - EDGE.right, top: EDGE.top, bottom: height - EDGE.bottom };
  const [low, high] = timeline.decades;
  const wide = plot.right - plot.left;
  const tall = plot.bottom - plot.top;
  const { from, to } = timeline;
  return {
    ...plot,
    x: (value) => plot.left + ((value - from) / (to - from)) * wide,
    y: (us) => plot.bottom - ((Math.log10(Math.max(us, 10 ** low)) - low) / (high - low)) * tall,
    value: (x) => from + ((x - plot.left) / wide) * (to - from),
  };
}

// The logarithms of the least and of the most time that a call took, with some air.
function decades() {
  const times = snapshot.calls.map((c) => c.host_us).filter((us) => us > 0).sort((a, b) => a - b);
  if (!times.length) return [0, 3];
  const low = Math.log10(times[0]) - 0.15;
  return [low, Math.max(Math.log10(times.at(-1)) + 0.15, low + 1)];
}

function zoom(from, to) {
  const [first, last] = extent();
  const wide = Math.min(Math.max(to - from, (last - first) * 1e-5), last - first);
  timeline.from = Math.min(Math.max(from, first), last - wide);
  timeline.to = timeline.from + wide;
  document.getElementById("whole").disabled = wide >= (last - first) * 0.9999;
  paintTimeline();
}

function zoomBy(factor, middle = (timeline.from + timeline.to) / 2) {
  zoom(middle - (middle - timeline.from) * factor, middle + (timeline.to - middle) * factor);
}

function nearest(x, y) {
  const to = scales();
  let best = null;
  let least = 14 ** 2;
  for (const index of inSight()) {
    const distance = (to.x(at(index)) - x) ** 2 + (to.y(snapshot.calls[index].host_us) - y) ** 2;
    if (distance < least) [best, least] = [index, distance];
  }
  return best;
}

function beginTimeline() {
  const kept = snapshot.calls.length;
  if (!kept) {
    document.querySelectorAll("#calls .tools, #timeline, #timeline-keys").forEach((element) => element.remove());
    return fill("calls-lede", allCalls ? `None of ${counted(allCalls, "call")} is remembered.` : "Nothing was called.");
  }
  timeline.decades = decades();
  zoom(...extent());
  timeline.picture.setAttribute("aria-label",
    `${counted(kept, "call")} by time, with the host time of each on a logarithmic scale`);
  fill("calls-lede", kept < allCalls
    ? `${count(kept)} of ${counted(allCalls, "call")}, the last that were looked at, each with the time that it took on the host.`
    : "Every call, with the time that it took on the host.");
  document.getElementById("by-order").addEventListener("click", ({ target }) => {
    timeline.byTime = !timeline.byTime;
    target.setAttribute("aria-pressed", String(!timeline.byTime));
    zoom(...extent());
  });
  document.getElementById("whole").addEventListener("click", () => zoom(...extent()));
  legend();
  pointer();
  timeline.picture.addEventListener("keydown", timelineKey);
  new ResizeObserver(paintTimeline).observe(timeline.picture);
  watch(["recording", "call", "function", "hidden"], paintTimeline);
  watch(["call"], tellCall);
}

function legend() {
  const present = KINDS.filter(({ key }) => snapshot.calls.some((c) => c.kind === key));
  fill("legend", present.map(({ key, name }) => make("button", {
    type: "button", class: "kind", "data-kind": key, title: "Show or hide; the time is the median",
    click: () => change({ hidden: state.hidden.symmetricDifference(new Set([key])) }),
  }, swatch(key), name, make("span", { class: "soft" }, microseconds(typical[key])))));
  press("kind", "hidden", (kind) => !state.hidden.has(kind));
}

function pointer() {
  const { picture } = timeline;
  picture.addEventListener("pointerdown", (event) => {
    picture.setPointerCapture(event.pointerId);
    timeline.drag = [position(event)[0], position(event)[0]];
  });
  picture.addEventListener("pointermove", (event) => {
    const [x, y] = position(event);
    if (timeline.drag) {
      timeline.drag[1] = x;
      paintTimeline();
      return;
    }
    const index = nearest(x, y);
    picture.classList.toggle("over", index !== null);
    tip(event, index === null ? null : callLines(index));
  });
  picture.addEventListener("pointercancel", () => { timeline.drag = null; paintTimeline(); });
  picture.addEventListener("pointerup", (event) => {
    if (!timeline.drag) return; // it was pressed elsewhere
    const [x0, x1] = timeline.drag.toSorted((a, b) => a - b);
    timeline.drag = null;
    const to = scales();
    if (x1 - x0 > 5) zoom(to.value(x0), to.value(x1));
    else pickCall(nearest(...position(event)));
    paintTimeline();
  });
  picture.addEventListener("pointerleave", (event) => tip(event, null));
  picture.addEventListener("dblclick", () => zoom(...extent()));
  picture.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoomBy(Math.exp(event.deltaY / 300), scales().value(position(event)[0]));
  }, { passive: false });
}

function pickCall(index) {
  if (index === null) return change({ call: null });
  const { recording } = snapshot.calls[index];
  change({ call: index, ...(recordings.has(recording) ? { recording } : {}) });
}

function timelineKey(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (step) {
    let index = state.call === null ? (step > 0 ? 0 : snapshot.calls.length - 1) : state.call + step;
    while (snapshot.calls[index] && !isShown(snapshot.calls[index])) index += step;
    if (!snapshot.calls[index]) return;
    pickCall(index);
    const wide = timeline.to - timeline.from;
    if (at(index) < timeline.from || at(index) > timeline.to) zoom(at(index) - wide / 2, at(index) + wide / 2);
  } else if (event.key === "+" || event.key === "=") zoomBy(0.5, state.call === null ? undefined : at(state.call));
  else if (event.key === "-") zoomBy(2);
  else if (event.key === "Escape") zoom(...extent());
  else return;
  event.preventDefault();
}

function showCall(index) {
  pickCall(index);
  show("calls");
}

function kindName(call) {
  return KINDS.find(({ key }) => key === call.kind).name;
}

function placeOf(index) {
  return `call ${count(index + 1)}, ${microseconds(snapshot.calls[index].at_us - start)} after the first`;
}

function callLines(index) {
  const call = snapshot.calls[index];
  const of = call.recording === null ? call.function : nameOf(call.recording);
  return [`${of}: ${kindName(call)}`, `${microseconds(call.host_us)} on the host`, placeOf(index),
    ...(call.miss === null ? [] : ["missed: click for the reason"])];
}

function tellCall() {
  if (state.call === null) return fill("call", make("span", { class: "soft" }, "Choose a call to see what it was, and why it missed."));
  const call = snapshot.calls[state.call];
  fill("call",
    make("p", {}, swatch(call.kind), make("b", {}, kindName(call)), " of ",
      call.recording === null ? make("span", { class: "text" }, call.function) : recordingLink(call.recording),
      `, ${microseconds(call.host_us)} on the host; ${placeOf(state.call)}`),
    call.miss === null ? null : reasonList(snapshot.misses[call.miss]));
}
