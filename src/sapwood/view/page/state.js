// What is chosen now, and who wants to know when that changes.

const state = {
  recording: null, // id
  call: null, // index
  page: null, // number
  function: "", // name; empty: all
  hidden: new Set(), // kinds of calls
};

const watchers = [];

// `act(changed)` is called after every change with the names of what changed.
function watch(act) {
  watchers.push(act);
}

function change(part) {
  const changed = new Set(Object.keys(part).filter((key) => state[key] !== part[key]));
  Object.assign(state, part);
  if (changed.size) watchers.forEach((act) => act(changed));
}

function choose(id) {
  change({ recording: id });
}

function show(element) {
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  document.getElementById(element).scrollIntoView({
    behavior: calm ? "auto" : "smooth",
    block: "start",
  });
}

// A recording's name, which chooses it.
function recordingLink(id) {
  if (!recordings.has(id)) return make("span", { class: "soft" }, nameOf(id));
  return link(nameOf(id), () => {
    choose(id);
    show("recordings");
  });
}
