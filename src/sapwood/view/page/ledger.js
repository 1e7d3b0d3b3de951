// Functions, the store and the last events: what is counted and what was noted.

function beginFunctions() {
  const sum = (f) => KINDS.reduce((n, { field }) => n + f[field], 0);
  const sorted = [...snapshot.functions].sort((a, b) => sum(b) - sum(a));
  if (!sorted.length) return;
  fill("functions", make("h3", {}, "By function"), few(sorted, 12, (f) => functionRow(f, sum(f))));
  press("function", "function", (name) => name === state.function);
}

function functionRow(f, whole) {
  const parts = Object.fromEntries(KINDS.map(({ key, field }) => [key, f[field]]));
  const notes = [f.evicted && `${count(f.evicted)} evicted`, f.copied_bytes && `${size(f.copied_bytes)} copied`,
    f.escaped && `${counted(f.escaped, "output")} escaped`,
    ...f.skipped.map(({ reason, calls }) => `${counted(calls, "call")} ran eagerly: ${reason}`)]
    .filter(Boolean).join(", ");
  return make("button", {
    type: "button", class: "function", "data-function": f.name, "aria-pressed": String(state.function === f.name),
    title: "Show only this function",
    click: () => change({ function: state.function === f.name ? "" : f.name }),
  }, make("span", { class: "text name" }, f.name), bar(parts, Math.max(1, whole)),
  make("span", { class: "number" }, counted(whole, "call")),
  make("span", { class: "number" }, `${percent(f.replays, Math.max(1, whole))} replayed`),
  make("span", { class: "soft notes" }, notes));
}

function beginStore() {
  const { store } = snapshot;
  if (!store) return fill("store-lede", "This runtime has no store: its recordings end with the process.");
  const asked = store.hits + store.misses;
  const found = (1000 * store.hits) / asked;
  fill("store-lede", make("span", { class: "text code" }, store.path));
  fill("store-body",
    asked ? strip("tall", `${count(store.hits)} of ${counted(asked, "look-up")} found`,
      [["restore", found], ["rule", 1000 - found]].filter(([, width]) => width)) : null,
    make("dl", { class: "figures small" },
      figure("Look-ups", count(asked), asked ? `${count(store.hits)} found, ${count(store.misses)} not` : "never asked"),
      figure("Put", count(store.puts), "new recordings kept"),
      figure("Entries", count(store.entries), `${size(store.bytes)} in all`),
      figure("Damaged", count(store.damaged), store.damaged ? "set aside, and made anew" : "every entry read was whole"),
      figure("Errors", count(store.errors), store.errors ? "calls went on without the store" : "it always answered")));
}

function beginEvents() {
  const { events } = snapshot;
  fill("events-lede", events.length > 1 ? `The last ${count(events.length)} events, newest first. A replay is no event.`
    : events.length ? "One event. A replay is none." : "Nothing was noted.");
  fill("events-body", few(runs([...events].reverse()), 12, ({ kind, text, times }) =>
    make("p", { class: "event" }, make("b", { class: "text" }, kind), make("span", { class: "text" }, text,
      times > 1 ? make("span", { class: "soft" }, ` × ${count(times)}`) : null))));
}

// The same event several times on end is told once.
function runs(events) {
  const told = [];
  for (const { kind, text } of events) {
    const last = told.at(-1);
    if (last?.kind === kind && last.text === text) last.times += 1;
    else told.push({ kind, text, times: 1 });
  }
  return told;
}
