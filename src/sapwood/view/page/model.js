// The snapshot, and what follows from it: nothing here changes afterwards.

const snapshot = JSON.parse(document.getElementById("snapshot").textContent);

const KINDS = [
  { key: "replay", field: "replays", name: "replay", many: "replays" },
  { key: "record", field: "recordings", name: "recording", many: "recorded" },
  { key: "restore", field: "restored", name: "restored", many: "restored" },
  { key: "warm-up", field: "warmups", name: "warm-up", many: "warm-ups" },
  { key: "pass-through", field: "passed_through", name: "passed through", many: "passed through" },
];

const USES = [
  { key: "live", name: "live", says: "an output on it is still held" },
  { key: "output", name: "output", says: "kept for outputs, none held now" },
  { key: "scratch", name: "scratch", says: "temporaries, shared by all recordings" },
  { key: "heap", name: "heap", says: "eager arrays" },
  { key: "free", name: "free", says: "nothing" },
];

// Browsers of before 2024 have none.
Map.groupBy ??= (items, keyOf) => {
  const groups = new Map();
  for (const item of items) groups.set(keyOf(item), [...(groups.get(keyOf(item)) ?? []), item]);
  return groups;
};

const recordings = new Map(snapshot.recordings.map((r) => [r.id, r]));
const pages = new Map(snapshot.pages.map((p) => [p.number, p]));
const children = Map.groupBy(snapshot.recordings, ({ parent }) => (recordings.has(parent) ? parent : null));
const missesOf = Map.groupBy(snapshot.misses.flatMap(({ reasons }) => reasons), ({ recording }) => recording);
const callsOf = Map.groupBy(snapshot.calls.keys(), (index) => snapshot.calls[index].recording);

const totals = Object.fromEntries(
  KINDS.map(({ key, field }) => [key, snapshot.functions.reduce((sum, f) => sum + f[field], 0)]),
);
const allCalls = KINDS.reduce((sum, { key }) => sum + totals[key], 0);

const typical = Object.fromEntries(
  KINDS.map(({ key }) => [
    key,
    median(snapshot.calls.filter((c) => c.kind === key).map((c) => c.host_us)),
  ]),
);

function nameOf(id) {
  return recordings.get(id)?.name ?? `no. ${id}, evicted`;
}

// "why: about" is how a miss reads: the condition that failed, and what it was about.
function split(reason) {
  const colon = reason.indexOf(": ");
  return colon < 0 ? [reason, ""] : [reason.slice(0, colon), reason.slice(colon + 2)];
}
