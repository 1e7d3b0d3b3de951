// What is chosen now, and who wants to know when that changes.

const state = {
  recording: null, // id
  call: null, // index
  page: null, // number
  function: "", // name; empty: all
  hidden: new Set(), // kinds of calls
};

const watchers = [];

// Calls `act` now, and after every change of one of `names`.
function watch(names, act) {
  watchers.push({ names, act });
  act();
}

function change(part) {
  const changed = Object.keys(part).filter((name) => state[name] !== part[name]);
  Object.assign(state, part);
  for (const { names, act } of watchers) if (names.some((name) => changed.includes(name))) act();
}

// Presses those buttons whose `data-…` is on, and again after every change of `name`.
function press(data, name, isOn) {
  watch([name], () => document.querySelectorAll(`[data-${data}]`).forEach((button) =>
    button.setAttribute("aria-pressed", String(isOn(button.dataset[data])))));
}

function choose(id) {
  change({ recording: id });
}

function show(element) {
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  document.getElementById(element).scrollIntoView({ behavior: calm ? "auto" : "smooth" });
}

// A recording's name, which chooses it.
function recordingLink(id) {
  if (!recordings.has(id)) return make("span", { class: "soft" }, nameOf(id));
  return link(nameOf(id), () => {
    choose(id);
    show("recordings");
  });
}
